"""Fixtures of the service tests: artefacts with known answers, and services that run them."""

import io

import pytest
from helpers import local_service, seeded_artefact


@pytest.fixture(scope="package")
def seeded_folder(tokenizer, tmp_path_factory):
    return seeded_artefact.write(tmp_path_factory.mktemp("seeded"), tokenizer)


@pytest.fixture(scope="module")
def local(folder):
    return local_service.Pool(folder)


@pytest.fixture(scope="module")
def small(local, request):
    """A service with the limits `SMALL` of the test module."""
    made = local_service.Running({"en-de": local}, request.module.SMALL)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def log():
    return io.StringIO()


@pytest.fixture(scope="module")
def running(folder, seeded_folder, log):
    """A service with a translator `en-de` and a generator `story`."""
    made = local_service.Running(
        {"en-de": local_service.Pool(folder), "story": local_service.Pool(seeded_folder)}, log=log
    )
    yield made
    made.stop()


@pytest.fixture(scope="session")
def anyio_backend():
    """The event loop of tests that are coroutine functions, marked `anyio`."""
    return "asyncio"
