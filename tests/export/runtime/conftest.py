"""What the tests of the runtime share: a tokenizer, an artefact with it, and Node.js."""

import pytest
from support import artefacts, node


@pytest.fixture(scope="package")
def tokenizer():
    return artefacts.tokenizer()


@pytest.fixture(scope="package")
def folder(tokenizer, tmp_path_factory):
    """An artefact that no test changes."""
    return artefacts.write(tmp_path_factory.mktemp("artefact"), tokenizer)


@pytest.fixture(scope="package")
def node_folder(pytestconfig):
    """A folder, kept in pytest's cache, with the script for Node.js and the packages it needs."""
    return node.installed(pytestconfig.cache.mkdir("node"))
