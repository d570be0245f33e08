"""Fixtures of the export tests: a small artefact, and Node.js with the package `export/web`."""

import pytest
from helpers import artefacts, node


@pytest.fixture(scope="session")
def tokenizer():
    return artefacts.tokenizer()


@pytest.fixture(scope="session")
def folder(tokenizer, tmp_path_factory):
    """A hand-made translator. Tests must not change it."""
    return artefacts.write(tmp_path_factory.mktemp("artefact"), tokenizer)


@pytest.fixture(scope="package")
def node_folder(pytestconfig):
    """A folder in pytest's cache with the package, its dependencies and the drivers."""
    return node.installed(pytestconfig.cache.mkdir("node"))
