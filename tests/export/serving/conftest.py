"""What the tests of the service share: artefacts that answer in a known way, and doors to them."""

import io

import pytest
from helpers import artefacts, local_service, seeded_artefact


@pytest.fixture(scope="package")
def tokenizer():
    return artefacts.tokenizer()


@pytest.fixture(scope="package")
def folder(tokenizer, tmp_path_factory):
    """A translator that no test changes."""
    return artefacts.write(tmp_path_factory.mktemp("artefact"), tokenizer)


@pytest.fixture(scope="package")
def seeded_folder(tokenizer, tmp_path_factory):
    return seeded_artefact.write(tmp_path_factory.mktemp("seeded"), tokenizer)


@pytest.fixture(scope="module")
def log():
    return io.StringIO()


@pytest.fixture(scope="module")
def running(folder, seeded_folder, log):
    """A translator `en-de` and a generator `story` behind all doors."""
    made = local_service.Running(
        {"en-de": local_service.Pool(folder), "story": local_service.Pool(seeded_folder)}, log=log
    )
    yield made
    made.stop()
