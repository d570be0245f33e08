"""What the tests of the runtime share: a tokenizer, and an artefact with it."""

import pytest
from support import artefacts


@pytest.fixture(scope="package")
def tokenizer():
    return artefacts.tokenizer()


@pytest.fixture(scope="package")
def folder(tokenizer, tmp_path_factory):
    """An artefact that no test changes."""
    return artefacts.write(tmp_path_factory.mktemp("artefact"), tokenizer)
