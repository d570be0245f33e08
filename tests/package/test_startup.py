"""Commands that serve import no framework, and an import writes what TensorFlow writes, once."""

import subprocess
import sys

import pytest

from keras_transformer import startup


@pytest.mark.parametrize("server", startup.SERVERS)
def test_the_commands_that_serve_import_no_framework_even_where_one_is_installed(server):
    pytest.importorskip("tensorflow")
    command = [sys.executable, "-X", "importtime", "-m", server, "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    packages = {name.partition(".")[0] for name in imported if "." in name}
    assert done.returncode == 0
    assert {"onnxruntime", "keras_transformer.export.runtime"} <= imported
    assert not packages & set(startup.FRAMEWORKS)
