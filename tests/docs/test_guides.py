"""The code of every guide runs, from top to bottom, on little text and with small sizes.

All guides run in one folder, one after the other, as a reader copies them.
"""

import json
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import time
import types
from typing import NamedTuple

import pytest
from helpers import exports, guides, local_service, ports, tiers

from keras_transformer.export import export_onnx
from keras_transformer.export.runtime import Translator

pytestmark = pytest.mark.slow
FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "guides"
FRAMEWORKS = ("keras", "tensorflow", "tensorflow_text", "jax", "torch", "tf2onnx", "onnx")
SMALL_MODEL = "num_layers=1, d_model=12, num_heads=2, d_ff=17"
MODEL = {"num_layers=4, d_model=128, num_heads=4, d_ff=256": SMALL_MODEL, "epochs=20": "epochs=1"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with the files of earlier guides: model, tokenizer, artefacts."""
    folder = tmp_path_factory.mktemp("saved")
    model, tokenizer = exports.tiny(num_layers=1), exports.tokenizer()
    model.save(folder / "model.keras")
    tokenizer.save(folder / "tokenizer.model")
    export_onnx(model, folder / "out/onnx", tokenizer, exports.BEAM, text=True, verbose=False)
    shutil.copytree(folder / "out/onnx", folder / "out/onnx_text")
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with folders of published weights, small and random."""
    from helpers import minilm_folder  # skips without `transformers`

    folder = tmp_path_factory.mktemp("published")
    minilm_folder.write(folder / "minilm")
    return folder


class Guide(NamedTuple):
    """Settings that run a guide in seconds, and the files that it writes.

    Args:
        leaves: paths of files that the guide writes.
        smaller: dict from text of the page to its replacement.
        starts_from: files of earlier guides.
        weights: folders of published weights.
        serves: bool, whether importing a framework fails.
        holds: dict from a written file to a pattern of its text.
    """

    leaves: tuple[str, ...] = ()
    smaller: dict[str, str] = {}
    starts_from: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    serves: bool = False
    holds: dict[str, str] = {}


MODEL_FILES = ("model.keras", "tokenizer.model")
GUIDES = {
    "train": Guide(
        (*MODEL_FILES, "run/weights/weights-00000.npz"),
        {**MODEL, "vocab_size=8000": "vocab_size=300"},
    ),
    "callbacks": Guide(("run/averaged/weights-00000.npz",), MODEL, ("tokenizer.model",)),
    "fine_tuning": Guide(
        ("out/fine_tuned/artefact.json",),
        {
            "num_layers=4, d_model=128, num_heads=4, d_ff=256": SMALL_MODEL,
            "epochs=2,": "epochs=1,",
            "vocab_size=8000": "vocab_size=310",
        },
        MODEL_FILES,
    ),
    "student": Guide(
        ("out/student/artefact.json",),
        {
            "num_layers=(6, 2), d_model=128, num_heads=4, d_ff=512": SMALL_MODEL,
            "vocab_size=5000": "vocab_size=300, hard_vocab_limit=False",
            "epochs=20)": "epochs=1)",
        },
        ("out/onnx",),
    ),
    "quantization": Guide(("out/int8/artefact.json",), {}, MODEL_FILES),
    "data": Guide(),
    "documents": Guide(("out/aligned/model.onnx", "page.de.md"), {}, MODEL_FILES),
    "several_devices": Guide(("model.keras", "from_workers.keras"), MODEL, ("tokenizer.model",)),
    "export": Guide(
        (
            *(f"out/{name}/artefact.json" for name in ("onnx", "onnx_steps", "onnx_text")),
            "out/classifier/artefact.json",
            "out/saved_model/saved_model.pb",
            "out/ctranslate2/model.bin",
            "out/marian/model.safetensors",
        ),
        starts_from=MODEL_FILES,
    ),
    "encoders": Guide(("out/listener/artefact.json",)),
    "control": Guide(("out/dates/artefact.json",)),
    "serve": Guide(
        ("out.txt", "from_strings.py"),
        starts_from=("out/onnx", "out/onnx_text"),
        serves=True,
        holds={"out.txt": r"(.*\n){3}$"},
    ),
    "browser": Guide(
        ("site/models/en-de/artefact.json", "site/models/en-de-attention/artefact.json"),
        starts_from=MODEL_FILES,
    ),
    "litert": Guide(
        tuple(f"out/{name}/model.tflite" for name in ("litert", "litert_int8")),
        starts_from=MODEL_FILES,
    ),
    "other_languages": Guide(starts_from=("out/onnx",), serves=True),
    "cuda": Guide(
        ("check.txt",),
        starts_from=("out/onnx",),
        serves=True,
        holds={"check.txt": r"[\s\S]*verdict: serves on "},
    ),
    "archive": Guide(("out/archive/part-000000.parquet",), starts_from=("out/onnx",), serves=True),
    "triton": Guide(
        ("repository/translator/config.pbtxt", "repository/translator-text/config.pbtxt"),
        starts_from=("out/onnx", "out/onnx_text"),
        serves=True,
    ),
    "heads": Guide(
        (
            "vectors.jsonl",
            *(f"out/{task}/artefact.json" for task in ("sentiment", "names", "answers", "vectors")),
            *(f"out/{task}/artefact.json" for task in ("story", "digits")),
        ),
        starts_from=("tokenizer.model",),
        holds={"vectors.jsonl": r"\[.*\n\n"},  # an empty line has no vector
    ),
    "layers": Guide(("classifier.keras",)),
    "weights_from_elsewhere": Guide(("from_elsewhere.keras",)),
    "classify_texts": Guide(
        ("out/requests/artefact.json",), {"epochs=15": "epochs=1"}, weights=("minilm",)
    ),
    "tag_words": Guide(
        ("out/entities/artefact.json",), {"epochs=25": "epochs=1"}, weights=("minilm",)
    ),
    "rerank": Guide(
        ("out/reranker_tuned/artefact.json",), {"epochs=30": "epochs=1"}, weights=("minilm",)
    ),
    "embed": Guide(
        ("out/minilm/artefact.json", "out/codes/artefact.json"),
        {"epochs=15": "epochs=1"},
        weights=("minilm",),
    ),
    "summarize": Guide(
        ("out/corrector/artefact.json",),
        {"epochs=100": "epochs=1", "num_layers=2": "num_layers=1"},
    ),
    "read_pictures": Guide(("out/squares/artefact.json",), {"epochs=20": "epochs=1"}),
    "service": Guide(("ask.py",)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a reader."""
    folder = tmp_path_factory.mktemp("guides")
    guides.number_words(folder)
    return folder


@pytest.fixture
def run(folder, request):
    """A function that runs a guide in the folder, and returns the folder.

    The files of earlier guides are there, or copies of `saved` if these guides have not run.
    """

    def run_guide(name, **smaller):
        guide = GUIDES[name]
        for file in (*guide.starts_from, *guide.weights):
            if not (folder / file).exists():
                made = "published" if file in guide.weights else "saved"
                source = request.getfixturevalue(made) / file
                (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / file)
        page = (FOLDER / f"{name}.md").read_text("utf-8")
        if "import transformers" in page:
            pytest.importorskip("transformers")
        code = guides.script(page, guide.smaller | smaller)
        start = time.time()
        guides.run(code, folder, FRAMEWORKS if guide.serves else ())
        written = {path for path in guide.leaves if (folder / path).exists()}
        assert written == set(guide.leaves)
        assert [path for path in written if (folder / path).stat().st_mtime < start - 1] == []
        for path, pattern in guide.holds.items():
            assert re.match(pattern, (folder / path).read_text("utf-8")), path
        return folder

    return run_guide


OTHERS = ("several_devices", "service")
LONG = ("archive", "control", "fine_tuning", "quantization", "student")  # trainings, and a cluster


@pytest.mark.parametrize(
    "name", tiers.quick([name for name in GUIDES if name not in OTHERS], nightly=LONG)
)
def test_the_code_of_a_guide_runs(run, name):
    run(name)


@pytest.mark.nightly
def test_several_devices(run, monkeypatch):
    for name, value in ports.REUSE.items():
        monkeypatch.setenv(name, value)
    with ports.reserved(2) as numbers:
        run("several_devices", **{"12345": str(numbers[0]), "12346": str(numbers[1])})


@pytest.mark.full
def test_a_service_answers_the_client_of_its_page(run, saved):
    """The service of the page runs in this process."""
    making = local_service.Running({"en-de": local_service.Pool(saved / "out/onnx")})
    folder = run("service")
    command = [sys.executable, "ask.py", f"127.0.0.1:{making.port}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert making.stop() and done.returncode == 0, done.stderr
    translator = Translator(saved / "out/onnx")
    assert done.stdout == f"{translator.translate(['one hundred', 'two'])}\n"


def test_every_guide_is_run():
    pages = {path.stem for path in FOLDER.glob("*.md")} - {"index"}
    assert pages - {"whisper"} <= GUIDES.keys()  # needs the weights of Whisper


def test_a_notebook_has_the_code_and_the_links_of_its_page(tmp_path):
    pytest.importorskip("jupytext")
    (tmp_path / "guides").mkdir()
    text = "# A\n\n[Notebook](../notebooks/a.ipynb)\n\n[b](b.md#c), [d](https://d.md)\n\n"
    text += (
        "```python\nx = 1\n\ny = 2\n```\n\nThen:\n\n```python\nprint(x)\n```\n\n```text\n1\n```\n"
    )
    (tmp_path / "guides/a.md").write_text(text, "utf-8")
    (tmp_path / "guides/b.md").write_text("# B\n", "utf-8")
    conf = runpy.run_path(str(FOLDER.parent / "conf.py"))
    conf["notebooks"](types.SimpleNamespace(srcdir=tmp_path))
    (path,) = (tmp_path / "notebooks").iterdir()
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    told = "".join(
        line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"]
    )
    assert path.name == "a.ipynb" and code == ["x = 1\n\ny = 2", "print(x)"]
    assert f"({conf['html_baseurl']}guides/b.html#c), [d](https://d.md)" in told
    assert "ipynb" not in told and "```text\n1\n```" in told


def test_a_page_becomes_a_script():
    page = "```python\nx = 10\n```\n```console\n$ no\n```\n```python\n# a.py\nprint(1)\n```\n"
    page += "```bash\npython a.py > out\n```\n```python\nprint(x + 1)\n```\n"
    code = guides.script(page, {"10": "20"})
    assert "x = 20" in code and "$ no" not in code and "print(1)\n" not in code.splitlines()
    with pytest.raises(AssertionError, match="30 is not on the page"):
        guides.script(page, {"30": "40"})


def test_a_script_that_fails_is_a_failure(tmp_path):
    assert guides.run("print(1)", tmp_path, ["keras"]) == "1\n"
    with pytest.raises(AssertionError, match="no such thing"):
        guides.run("raise ValueError('no such thing')", tmp_path, ["keras"])
    with pytest.raises(AssertionError, match="CalledProcessError"):
        guides.run(guides.script("```bash\nfalse\ntrue\n```\n", {}), tmp_path, ["keras"])
