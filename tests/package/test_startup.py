"""Commands and processes that serve: they import no framework."""

import os
import pathlib
import subprocess
import sys

import pytest

from keras_transformer import startup

EXPORT = pathlib.Path(__file__).parents[2] / "export"


def test_every_command_below_export_is_a_serving_command():
    commands = {path.parent.name for path in EXPORT.glob("*/__main__.py")}
    commands |= {
        path.stem
        for path in EXPORT.glob("*.py")
        if path.name != "__main__.py" and '__name__ == "__main__"' in path.read_text("utf-8")
    }
    commands -= {"compare"}  # it runs Keras
    commands = {f"keras_transformer.export.{name}" for name in commands}
    assert commands == set(startup.SERVERS)


@pytest.mark.parametrize("server", startup.SERVERS)
def test_serving_commands_import_no_framework_even_if_one_is_installed(server):
    pytest.importorskip("tensorflow")
    command = [sys.executable, "-X", "importtime", "-m", server, "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    packages = {name.partition(".")[0] for name in imported if "." in name}
    assert done.returncode == 0
    assert {"numpy", "keras_transformer.export.artefact"} <= imported
    assert not packages & set(startup.FRAMEWORKS)


def test_processes_with_the_serving_variable_import_no_framework():
    code = """
import sys
import keras_transformer.export.runtime
assert not {name for name in ("tensorflow", "keras", "torch") if sys.modules.get(name)}
"""
    environment = os.environ | {startup.SERVES: "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.full
def test_a_serving_program_can_use_the_whole_package():
    pytest.importorskip("tensorflow")
    code = """
from keras_transformer.export.runtime import Translator
import keras_transformer, keras
assert keras.saving.get_registered_object("keras_transformer>Transformer")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
