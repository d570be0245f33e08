"""The programs of the guide on other languages: C runs, Java compiles."""

import pathlib
import re
import shutil
import subprocess
import sysconfig

import onnxruntime
import pytest
from helpers import bindings, exports

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.hub import model_card
from keras_transformer.export.runtime import Translator

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = ROOT / "examples" / "languages"
NUMBERS = ["seven thousand and twenty-one", "one hundred", "ninety-nine thousand"]


@pytest.fixture(scope="module")
def interface(pytestconfig):
    """A folder with ONNX Runtime's headers and Java classes."""
    return bindings.installed(pytestconfig.cache.mkdir("bindings"))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A folder with ONNX Runtime's library, from its Python package, under the linker's names."""
    folder = tmp_path_factory.mktemp("library")
    found = list(pathlib.Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    if not found:
        pytest.skip("this onnxruntime has no libonnxruntime.so")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / name).symlink_to(found[0])
    return folder


@pytest.fixture(scope="module")
def compiled(interface, library, tmp_path_factory):
    """A function that compiles a program in C and returns its path."""
    compiler = shutil.which("cc") or pytest.skip("cc is not installed")

    def compile_program(name):
        path = tmp_path_factory.mktemp(name) / name
        options = ["-Wall", "-Wextra", "-Werror", "-I", str(interface / "headers")]
        options += ["-L", str(library), "-l", "onnxruntime", f"-Wl,-rpath,{library}"]
        run([compiler, str(PROGRAMS / f"{name}.c"), *options, "-o", str(path)])
        return path

    return compile_program


def run(command, **environment):
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=120,
        env=environment or None,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.full
def test_ids_in_c_are_those_of_python(compiled):
    program, folder = compiled("translate_ids"), ROOT / "examples" / "model"
    translator = Translator(folder, threads=1)
    for line, text in zip(NUMBERS, translator.translate(NUMBERS), strict=True):
        ids = [*translator.tokenizer.encode(line), 3]
        found = run([program, folder / signature.MODEL_FILE, *ids]).split()
        assert len(found) > 1 and translator.tokenizer.decode(list(map(int, found))) == text
    card = model_card(read_artefact(folder), "someone/model")
    (ids,), (printed,) = (re.findall(form, card) for form in (r"onnx ([\d ]+)\n", r"prints (.*)\."))
    assert run([program, folder / signature.MODEL_FILE, *ids.split()]).strip() == printed
    missing = subprocess.run([program, "nothing.onnx", "3"], capture_output=True, text=True)
    assert missing.returncode == 1 and "nothing.onnx" in missing.stderr


@pytest.mark.full
def test_strings_in_c_are_those_of_python(compiled):
    extensions = pytest.importorskip("onnxruntime_extensions")
    # The library of the Python package needs Python's symbols; other packages' libraries do not.
    names = {sysconfig.get_config_var(name) for name in ("LDLIBRARY", "INSTSONAME")}
    folder = pathlib.Path(sysconfig.get_config_var("LIBDIR"))
    python = [
        folder / name for name in names if name and ".so" in name and (folder / name).exists()
    ]
    if not python:
        pytest.skip("this Python has no shared library")
    artefact, program = exports.artefact(), compiled("translate_text")
    library = extensions.get_library_path()
    command = [program, artefact / signature.TEXT_MODEL_FILE, library, *exports.LINES]
    found = run(command, LD_PRELOAD=str(python[0]))
    translator = Translator(artefact, threads=1)
    assert found.splitlines() == translator.translate(exports.LINES)


@pytest.mark.full
@pytest.mark.parametrize("name", ["TranslateIds", "TranslateText"])
def test_java_compiles(interface, tmp_path, name):
    compiler = shutil.which("javac") or pytest.skip("javac is not installed")
    options = ["-Xlint:all", "-Werror", "-cp", interface / "classes.jar", "-d", tmp_path]
    run([compiler, *options, PROGRAMS / f"{name}.java"])
    assert (tmp_path / f"{name}.class").exists()
