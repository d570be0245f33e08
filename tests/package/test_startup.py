"""What libraries in C++ say while they start stays out of sight; errors, and last words, do not."""

import os
import subprocess
import sys

import pytest

from keras_transformer import startup


def run(code, *arguments, **environment):
    """What a process of its own writes to stderr, and its exit status."""
    variables = {name: value for name, value in os.environ.items() if name != startup.LEVEL}
    command = [sys.executable, *(arguments or ("-c", code))]
    done = subprocess.run(command, capture_output=True, text=True, env=variables | environment)
    return done.stderr, done.returncode


def test_lines_are_dropped_by_their_start_and_others_passed_on(capfd):
    with startup.without_lines("I0000 ", "note"):
        os.write(2, b"I0000 told\nnote\nan error I0000\nno")
        os.write(2, b"te\n")
    os.write(2, b"I0000 later\n")
    assert capfd.readouterr().err == "an error I0000\nI0000 later\n"


def test_an_error_inside_ends_the_silence(capfd):
    with pytest.raises(RuntimeError), startup.without_lines("I0000 "):
        raise RuntimeError
    os.write(2, b"I0000 later\n")
    assert capfd.readouterr().err == "I0000 later\n"


def test_the_last_words_of_a_process_that_crashes_are_told():
    code = """
import os
from keras_transformer.startup import without_lines
with without_lines("I0000 "):
    os.write(2, b"I0000 begins\\nF0000 no such instruction\\n")
    os.abort()
"""
    block = "import sys; sys.modules.update(dict.fromkeys(['tensorflow', 'keras']))\n"
    told, status = run(block + code)
    assert told == "F0000 no such instruction\n" and status < 0


@pytest.mark.parametrize("level", [None, "0"])
def test_nothing_is_dropped_unless_silence_is_asked_for(level, monkeypatch, capfd):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.delenv(startup.LEVEL, raising=False)
    if level:
        monkeypatch.setenv(startup.LEVEL, level)
    with startup.quiet_import():
        os.write(2, b"I0000 told\n")
    assert capfd.readouterr().err == "I0000 told\n"


def test_nothing_is_done_where_tensorflow_is_there_already(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    monkeypatch.setenv(startup.LEVEL, "3")
    with startup.quiet_import():
        os.write(2, b"I0000 told\n")
    assert capfd.readouterr().err == "I0000 told\n"


def test_commands_of_the_package_say_nothing_at_their_start():
    pytest.importorskip("tensorflow")
    told, status = run("", "-m", "keras_transformer.export", "--help")
    assert (told, status) == ("", 0)


@pytest.mark.parametrize("server", startup.SERVERS)
def test_the_commands_that_serve_import_no_framework_even_where_one_is_installed(server):
    pytest.importorskip("tensorflow")
    told, status = run("", "-X", "importtime", "-m", server, "--help")
    imported = {line.rpartition("|")[2].strip() for line in told.splitlines()}
    packages = {name.partition(".")[0] for name in imported if "." in name}  # not asked for in vain
    assert status == 0 and {"onnxruntime", "keras_transformer.export.artefact"} <= imported
    assert not packages & set(startup.FRAMEWORKS)


def test_processes_that_are_told_to_serve_import_no_framework():
    code = """
import sys
import keras_transformer.export.runtime
assert not {name for name in ("tensorflow", "keras", "torch") if sys.modules.get(name)}
"""
    assert run(code, **{startup.SERVES: "1"}) == ("", 0)


def test_a_program_that_serves_has_the_whole_package():
    pytest.importorskip("tensorflow")
    code = """
from keras_transformer.export.runtime import Translator
import keras_transformer, keras
assert keras.saving.get_registered_object("keras_transformer>Transformer")
"""
    assert run(code)[1] == 0


def test_a_script_that_asks_for_silence_has_it():
    pytest.importorskip("tensorflow")
    code = "import keras_transformer, keras; keras.ops.zeros(3)"
    told, status = run(code, **{startup.LEVEL: "3"})
    assert (told, status) == ("", 0)


def test_the_level_that_a_user_has_set_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["-m", "x"])
    monkeypatch.setenv(startup.LEVEL, "0")
    startup.quiet_commands()
    assert os.environ[startup.LEVEL] == "0"
    monkeypatch.setattr(sys, "argv", ["script.py"])
    monkeypatch.delenv(startup.LEVEL)
    startup.quiet_commands()
    assert startup.LEVEL not in os.environ
