"""The package as a whole: imports without a framework, content of the wheel, the README."""

import email
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile

import pytest
from helpers import guides

import keras_transformer
from keras_transformer import export
from keras_transformer.export.artefact import signature
from keras_transformer.startup import SERVES

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
FRAMEWORKS = ("keras", "tensorflow", "tensorflow_text", "jax", "torch", "tf2onnx", "onnx")


def test_serving_side_reads_lines_and_runs_without_a_framework(tmp_path):
    """A name that needs Keras reports the extra to install."""
    (tmp_path / "text").write_bytes("a\u2028b\r\n\u0085c\n".encode())
    code = """
import keras_transformer, keras_transformer.files, keras_transformer.text.tokenizer
from keras_transformer import export
import keras_transformer.export.runtime
print(ascii(keras_transformer.read_lines("text")))
for package in (keras_transformer, export):
    for name in package.__all__:
        try:
            getattr(package, name)
        except ImportError as error:
            print(name, error)
"""
    lines, *errors = guides.run(code, tmp_path, FRAMEWORKS).splitlines()
    assert lines == r"['a\u2028b', '\x85c']"
    extras = dict.fromkeys(("export_onnx", "export_saved_model"), "train,export")
    for name, extra in {"MultiHeadAttention": "train", **extras}.items():
        (error,) = (error for error in errors if error.startswith(f"{name} "))
        assert f"pip install 'keras-transformer-onnx[{extra}] @ git+https://" in error


@pytest.mark.full
def test_training_on_another_backend_needs_no_tensorflow(tmp_path):
    code = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np
import keras_transformer as kt
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5)])
model.compile("sgd", kt.SequenceCrossentropy(pad_id=-1))
kept = kt.CheckpointAveraging("weights", last=2)
callbacks = [kt.StopOnNonFinite(), kt.Throughput(tokens_per_batch=7), kept]
x, y = np.ones((7, 3), "float32"), np.arange(7) % 5
model.fit(x, y, epochs=3, verbose=0, callbacks=callbacks)
assert [a.shape for a in kt.average_checkpoints("weights")] == [(3, 5), (5,)]
print(kt.training.__name__, kt.Run.__name__, kt.MultiHeadAttention.__name__)
try:
    kt.BeamSearch
except ImportError as error:
    print(error)
"""
    printed = guides.run(code, tmp_path, ["tensorflow", "tensorflow_text"])
    names = "keras_transformer.training Run MultiHeadAttention"
    assert printed.startswith(names)
    assert "BeamSearch needs tensorflow" in printed


@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=pytest.mark.full)])
def test_the_error_names_a_backend_that_is_not_installed(backend, tmp_path):
    code = f"""
import os
os.environ["KERAS_BACKEND"] = {backend!r}
import keras_transformer
try:
    keras_transformer.EncoderBlock
except ImportError as error:
    print(error)
"""
    printed = guides.run(code, tmp_path, [backend])
    assert f"EncoderBlock needs {backend}" in printed
    assert f"pip install {backend}, or set KERAS_BACKEND=tensorflow" in printed
    assert "keras-transformer-onnx" not in printed


def test_broken_installation_is_not_reported_as_a_missing_extra(tmp_path):
    code = """
try:
    import keras_transformer
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert guides.run(code, tmp_path, ["absl"]).strip() == "absl"


@pytest.mark.parametrize(
    "package", [keras_transformer, export], ids=lambda package: package.__name__
)
def test_every_public_name_is_there_and_no_other(package):
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert not hasattr(package, "no_such_name")
    assert set(package.__all__) <= set(dir(package))


def test_special_ids_of_artefacts_do_not_change():
    """Existing artefacts were written with these ids."""
    assert signature.SPECIAL_IDS == {"pad": 0, "unknown": 1, "begin": 2, "end": 3}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy so that the checkout stays clean."""
    folder = tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("keras_transformer", "export"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (path,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_wheel_holds_every_module_and_nothing_else(wheel):
    expected = {"keras_transformer/py.typed", "keras_transformer/importers/good_morning.ogg"}
    for name, parent in (("keras_transformer", ""), ("export", "keras_transformer/")):
        paths = (path.relative_to(ROOT).as_posix() for path in (ROOT / name).rglob("*.py"))
        expected |= {f"{parent}{path}" for path in paths}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A Python in which the wheel is installed, beside the packages of this environment."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    wheel.extractall(site)
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin" / "python"


IMPORTS = """
import keras_transformer.export.runtime
from keras_transformer.export.runtime import Translator
print(keras_transformer.export.runtime.__file__, Translator.__name__)
"""


@pytest.mark.quick("-m-elsewhere", "script-elsewhere", "REPL-clone")
@pytest.mark.parametrize("place", ["clone", "elsewhere"])
@pytest.mark.parametrize("way", ["script", "-c", "-m", "REPL", "pytest"])
def test_installed_wheel_is_imported_whole_in_the_root_of_a_clone(way, place, installed, tmp_path):
    """The clone's folder hides the installed package, and has `export/` beside it, not inside."""
    root = tmp_path / "root"
    root.mkdir()
    if place == "clone":
        for name in ("keras_transformer", "export"):
            (root / name).symlink_to(ROOT / name)
    (root / "script.py").write_text(IMPORTS)
    (root / "test_import.py").write_text(IMPORTS + "def test_it(): pass\n")
    arguments = {
        "script": ["script.py"],
        "-c": ["-c", IMPORTS],
        "-m": ["-m", "keras_transformer.export.runtime", "--help"],
        "REPL": ["-i"],
        "pytest": ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_import.py"],
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [installed, *arguments[way]],
        cwd=root,
        env=environment | {"PYTHONDONTWRITEBYTECODE": "1", SERVES: "1"},  # in seconds
        input=IMPORTS if way == "REPL" else "",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "Error" not in done.stderr, done.stdout + done.stderr
    if way == "-m":
        assert "usage: " in done.stdout
    else:
        where = ROOT / "export" if place == "clone" else installed.parents[1]
        (line,) = (line for line in done.stdout.splitlines() if line.endswith(" Translator"))
        path = pathlib.Path(line.removesuffix(" Translator")).resolve()
        assert path.is_relative_to(where.resolve())


def test_wheel_states_its_licence_and_requires_no_framework(wheel):
    (path,) = (name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(path))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())

    required = {
        (re.match(r"[\w-]+", line)[0], line.partition("extra == ")[2].strip('"'))
        for line in metadata.get_all("Requires-Dist")
    }
    serving = {("onnxruntime", "serve"), ("sentencepiece", "serve")}
    assert {pair for pair in required if pair[1] in ("", "serve")} == serving | {("numpy", "")}


def test_readme_commands_name_files_that_exist():
    named = set(re.findall(r"(?:python|bash) ((?:\w+/|\.ci/)[\w./]+)", README))
    assert {"examples/translate.py", ".ci/run"} <= named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_ci_runs_the_test_command_of_the_readme():
    """`.ci/run` takes the README's first line that calls pytest, and adds `--full`."""
    first = next(line for line in README.splitlines() if "-m pytest" in line)
    assert re.fullmatch(
        r"python3\.11 -m venv (\S+) && .*pip install .* && \1/bin/python -m pytest", first
    )
    taken = """test_command="$(grep -m 1 -- '-m pytest' README.md) --full\""""
    assert taken in (ROOT / ".ci/run").read_text("utf-8")


def test_readme_is_short_and_names_only_files_that_exist():
    """Links are absolute, so that they work on PyPI, and each is defined once at the end."""
    lines = README.splitlines()
    assert len(lines) <= 150
    links = dict(re.findall(r"^\[(.+)\]: \S+/blob/main/(\S+)$", README, re.MULTILINE))
    assert len(links) > 10
    assert [link for link in links.values() if not (ROOT / link).exists()] == []
    text = "\n".join(lines[: -len(links)])
    used = re.findall(r"\]\[([^\]]+)\]", text) + re.findall(r"\[(\w+)\](?![(\[])", text)
    assert links.keys() <= set(used) and "](docs/" not in text


def test_the_first_commands_of_the_readme_translate(tmp_path):
    """They run the model of the repository where no framework can be imported."""
    clone, install, command, promised = re.search(r"```bash\n(.*?)\n```", README, re.DOTALL)[
        1
    ].splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert clone.split()[:3] == ["git", "clone", project["urls"]["Repository"]]
    assert install == "pip install '.[serve]'" and "serve" in project["optional-dependencies"]
    shell = command.replace("python", sys.executable)
    done = subprocess.run(shell, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout == promised.removeprefix("# ") + "\n"
    assert done.stderr == "running on CPUExecutionProvider\n"


# Replacements that make the README's code run in seconds.
SMALLER = {
    "range(0, 10_000, 3)": "range(300)",
    "vocab_size=400": "vocab_size=300",
    "vocab_size=8000": "vocab_size=300",
    "epochs=20": "epochs=1",
    "epochs=10": "epochs=1",
    "num_layers=4": "num_layers=1",
}
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.full
def test_readme_code_runs(tmp_path):
    """Runs every Python block and every command of the package, in order."""
    guides.number_words(tmp_path)
    page = "".join(f"```python\n{code}```\n" for code in PYTHON)
    guides.run(guides.script(page, SMALLER), tmp_path)
    command = re.search(r"^python -m keras_transformer\..*?$", README, re.MULTILINE)[0]
    shell = command.replace("python", sys.executable, 1)
    subprocess.run(shell, shell=True, cwd=tmp_path, check=True, timeout=300)
    assert (tmp_path / "out.txt").read_text("utf-8").count("\n") == 3


HELD_OUT = """
held_out = range(31, 10_000, 93)  # none of them is a multiple of three
translations = Translator("en-de").translate([num2words(n) for n in held_out])
print(sum(text == num2words(n, lang="de") for text, n in zip(translations, held_out)))
"""


@pytest.mark.nightly  # a training
def test_the_first_example_of_the_readme_prints_what_it_promises(tmp_path):
    code, expected = PYTHON[0].rstrip().rsplit("\n# ", 1)
    *_, printed, right = guides.run(code + HELD_OUT, tmp_path).splitlines()
    assert printed == expected
    assert int(right) > 100  # of 108


def test_the_readme_gives_the_mean_of_several_seeds():
    """`benchmarks/first_example.py` measured them, with the example that the README has now."""
    report = json.loads((ROOT / "benchmarks/results/first_example.json").read_text("utf-8"))
    rows = report["rows"]
    assert len({row["seed"] for row in rows}) >= 5 and report["code"] == PYTHON[0].splitlines()
    assert all(row["as promised"] and row["margin"] > 1 for row in rows)
    right = int(100 * statistics.mean(row["right"] for row in rows))
    promised = f"{right} of 100 are translated correctly (mean of {len(rows)} seeds)"
    assert promised in README.replace("\n", " ")


def test_the_lock_files_of_images_have_the_versions_of_the_constraints():
    def versions(path):
        pins = re.findall(r"^([\w.-]+)==(\S+)", path.read_text("utf-8"), re.MULTILINE)
        return {name.replace("_", "-").lower(): version for name, version in pins}

    constraints = versions(ROOT / "constraints.txt")
    for path in (ROOT / "docker").glob("*.lock"):
        locked = versions(path)
        assert "onnxruntime" in {name.removesuffix("-gpu") for name in locked}
        assert {n: v for n, v in locked.items() if constraints.get(n, v) != v} == {}
        assert {"numpy", "sentencepiece"} <= locked.keys() & constraints.keys()


def test_the_conda_packages_need_what_the_extras_need():
    recipe = (ROOT / "conda" / "recipe.yaml").read_text("utf-8")
    assert f'version: "{keras_transformer.__version__}"' in recipe
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {"": project["dependencies"], **project["optional-dependencies"]}
    outputs = re.split(r"  - package:\n      name: keras-transformer-onnx", recipe)[1:]
    assert [text.partition("\n")[0] for text in outputs] == ["", "-serve", "-service"]
    for text in outputs:
        extra = text.partition("\n")[0].removeprefix("-")
        found = re.findall(
            r"^        - ([\w-]+ >=[\d.]+)$", text.partition("run:")[2], re.MULTILINE
        )
        found = {item.replace(" ", "") for item in found} - {"python>=3.11"}
        assert found == {item for item in extras[extra] if not item.startswith(project["name"])}
