"""What the tests of exports share: a small artefact; Node.js, with the package of `export/web`."""

import pytest
from helpers import artefacts, node


@pytest.fixture(scope="session")
def tokenizer():
    return artefacts.tokenizer()


@pytest.fixture(scope="session")
def folder(tokenizer, tmp_path_factory):
    """A translator, made by hand, that no test changes."""
    return artefacts.write(tmp_path_factory.mktemp("artefact"), tokenizer)


@pytest.fixture(scope="package")
def node_folder(pytestconfig):
    """A folder, kept in pytest's cache, with the package, what it needs, and the drivers."""
    return node.installed(pytestconfig.cache.mkdir("node"))
