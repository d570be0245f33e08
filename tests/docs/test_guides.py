"""The code of every guide runs, from top to bottom, on little text and with small sizes."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
from support import exports, guides, ports

from keras_transformer.export import export_onnx
from keras_transformer.export.runtime import Translator

pytestmark = pytest.mark.slow
FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "guides"
FRAMEWORKS = ("keras", "tensorflow", "tensorflow_text", "jax", "torch", "tf2onnx", "onnx")
SMALL_MODEL = "num_layers=1, d_model=12, num_heads=2, d_ff=17"
MODEL = {"num_layers=4, d_model=128, num_heads=4, d_ff=256": SMALL_MODEL, "epochs=20": "epochs=1"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What the guides say an earlier guide has left: model, tokenizer, artefacts."""
    folder = tmp_path_factory.mktemp("saved")
    model, tokenizer = exports.tiny(num_layers=1), exports.tokenizer()
    model.save(folder / "model.keras")
    tokenizer.save(folder / "tokenizer.model")
    export_onnx(model, folder / "out/onnx", tokenizer, exports.BEAM, text=True, verbose=False)
    shutil.copytree(folder / "out/onnx", folder / "out/onnx_text")
    return folder


@pytest.fixture
def run(tmp_path, request):
    """Runs a guide in a folder that holds what it starts from, and returns that folder."""

    def run_guide(name, smaller=(), blocked=(), starts_from=()):
        guides.number_words(tmp_path)
        for file in starts_from:
            source, target = request.getfixturevalue("saved") / file, tmp_path / file
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        page = (FOLDER / f"{name}.md").read_text("utf-8")
        guides.run(guides.script(page, dict(smaller)), tmp_path, blocked)
        return tmp_path

    return run_guide


@pytest.mark.full
def test_train(run):
    folder = run("train", {**MODEL, "vocab_size=8000": "vocab_size=300"})
    assert (folder / "model.keras").exists() and (folder / "tokenizer.model").exists()
    assert len(list((folder / "run/weights").glob("*.npz"))) == 1


@pytest.mark.full
def test_data(run):
    assert run("data").is_dir()  # it trains, and leaves nothing


@pytest.mark.full
def test_several_devices(run, monkeypatch):
    for name, value in ports.REUSE.items():
        monkeypatch.setenv(name, value)
    with ports.reserved(2) as numbers:
        smaller = {**MODEL, "12345": str(numbers[0]), "12346": str(numbers[1])}
        folder = run("several_devices", smaller, starts_from=["tokenizer.model"])
    assert (folder / "model.keras").exists() and (folder / "from_workers.keras").exists()


@pytest.mark.full
def test_export(run):
    folder = run("export", starts_from=["model.keras", "tokenizer.model"])
    written = {path.parent.name for path in folder.glob("out/*/artefact.json")}
    assert written == {"onnx", "onnx_steps", "onnx_text", "classifier"}
    assert (folder / "out/saved_model/saved_model.pb").exists()
    assert (folder / "out/ctranslate2/model.bin").exists()
    assert (folder / "out/marian/model.safetensors").exists()


@pytest.mark.full
def test_encoders(run):
    assert (run("encoders") / "out/listener/artefact.json").exists()


@pytest.mark.full
def test_grammars(run):
    assert (run("grammars") / "out/dates/artefact.json").exists()


@pytest.mark.full
def test_serve(run):
    folder = run("serve", blocked=FRAMEWORKS, starts_from=["out/onnx", "out/onnx_text"])
    assert (folder / "out.txt").read_text("utf-8").count("\n") == 3


@pytest.mark.full
def test_browser(run):
    folder = run("browser", starts_from=["model.keras", "tokenizer.model"])
    written = {path.parent.name for path in folder.glob("site/models/*/artefact.json")}
    assert written == {"en-de", "en-de-attention"}


@pytest.mark.full
def test_service(run, saved):
    """What a client says on the page, beside the service of the page in this process."""
    from support import local_service

    making = local_service.Running({"en-de": local_service.Pool(saved / "out/onnx")})
    folder = run("service")
    command = [sys.executable, "ask.py", f"127.0.0.1:{making.port}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert making.stop() and done.returncode == 0, done.stderr
    translator = Translator(saved / "out/onnx")
    assert done.stdout == f"{translator.translate(['one hundred', 'two'])}\n"


@pytest.mark.full
def test_cuda(run):
    folder = run("cuda", blocked=FRAMEWORKS, starts_from=["out/onnx"])
    report = json.loads((folder / "check.json").read_text("utf-8"))
    assert report["status"] in (0, 1) and report["artefact"]["task"] == "translate"


@pytest.mark.full
def test_archive(run):
    folder = run("archive", blocked=FRAMEWORKS, starts_from=["out/onnx"])
    assert len(list((folder / "out/archive").glob("part-*.parquet"))) == 1


@pytest.mark.full
def test_triton(run):
    folder = run("triton", blocked=FRAMEWORKS, starts_from=["out/onnx", "out/onnx_text"])
    configs = {path.parent.name for path in folder.glob("repository/*/config.pbtxt")}
    assert configs == {"translator", "translator-text"}


@pytest.mark.full
def test_heads(run):
    folder = run("heads", starts_from=["tokenizer.model"])
    tasks = {"sentiment", "names", "answers", "vectors", "story", "digits"}
    assert {path.parent.name for path in folder.glob("out/*/artefact.json")} == tasks
    vectors = (folder / "vectors.jsonl").read_text("utf-8").split("\n")
    assert vectors[0].startswith("[") and vectors[1:2] == [""]


@pytest.mark.full
def test_layers(run):
    assert (run("layers") / "classifier.keras").exists()


@pytest.mark.full
def test_weights_from_elsewhere(run):
    assert (run("weights_from_elsewhere") / "from_elsewhere.keras").exists()


def test_every_guide_is_run():
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in FOLDER.glob("*.md")} - {"index"} <= tests


def test_a_page_becomes_a_script():
    page = "```python\nx = 10\n```\n```console\n$ no\n```\n```python\n# a.py\nprint(1)\n```\n"
    page += "```bash\npython a.py > out\n```\n```python\nprint(x + 1)\n```\n"
    code = guides.script(page, {"10": "20"})
    assert "x = 20" in code and "$ no" not in code and "print(1)\n" not in code.splitlines()
    with pytest.raises(AssertionError, match="30 is not on the page"):
        guides.script(page, {"30": "40"})


def test_a_script_that_fails_is_a_failure(tmp_path):
    assert guides.run("print(1)", tmp_path) == "1\n"
    with pytest.raises(AssertionError, match="no such thing"):
        guides.run("raise ValueError('no such thing')", tmp_path)
    with pytest.raises(AssertionError, match="CalledProcessError"):
        guides.run(guides.script("```bash\nfalse\ntrue\n```\n", {}), tmp_path)
