"""What the tests of exports share: Node.js, with the package of `export/web`."""

import pytest
from helpers import node


@pytest.fixture(scope="package")
def node_folder(pytestconfig):
    """A folder, kept in pytest's cache, with the package, what it needs, and the drivers."""
    return node.installed(pytestconfig.cache.mkdir("node"))
