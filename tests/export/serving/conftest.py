"""Fixtures of the service tests: artefacts with known answers, and services that run them."""

import contextlib
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
    with local_service.Running({"en-de": local}, request.module.SMALL) as made:
        yield made


@pytest.fixture(scope="module")
def running(folder, seeded_folder):
    """A service with a translator `en-de` and a generator `story`."""
    pools = {"en-de": local_service.Pool(folder), "story": local_service.Pool(seeded_folder)}
    with local_service.Running(pools, log=io.StringIO()) as made:
        yield made


@pytest.fixture
def start(folder):
    """A function that starts a service of a translator, until the end of the test."""
    with contextlib.ExitStack() as stack:

        def started(limits=None, **options):
            pools = {"en-de": local_service.Pool(folder)}
            return stack.enter_context(local_service.Running(pools, limits, **options))

        yield started


@pytest.fixture(scope="session")
def anyio_backend():
    """The event loop of tests that are coroutine functions, marked `anyio`."""
    return "asyncio"
