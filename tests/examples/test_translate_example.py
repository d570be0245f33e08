"""The translation example, from number words to a measured and exported model."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers import processes, scripts

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")
pytest.importorskip("num2words")

import keras  # noqa: E402
from support import recipes  # noqa: E402
from support.scores.bleu import bleu  # noqa: E402
from support.sets.number_words import number_words  # noqa: E402

import keras_transformer as kt  # noqa: E402
from keras_transformer.export.runtime import Translator  # noqa: E402
from keras_transformer.training import checkpoints  # noqa: E402

pytestmark = pytest.mark.slow
# Trains in seconds; the model learns little.
SMALL = dict(
    model=dict(num_layers=1, d_model=16, num_heads=2, d_ff=19, dropout=0.1),
    rate=dict(peak=0.03, warmup_steps=5),
    average=6,
)
# Runs the script in a separate process, without modules imported earlier.
SMALL_SCRIPT = f"""import runpy, sys
sys.path.insert(0, {str(scripts.EXAMPLES)!r})
script = runpy.run_path({str(scripts.EXAMPLES / "translate.py")!r})
from support import recipes
recipes.RECIPES["numbers"] |= {SMALL!r}
script["main"]()
"""
ARGUMENTS = "--limit 67 --vocab-size 331 --tokens-per-batch 613 --beam-width 2 --length-penalty 1"


@pytest.fixture(scope="module")
def script():
    module = scripts.load("translate")
    with pytest.MonkeyPatch.context() as patch, processes.forked_proofs():
        patch.setitem(recipes.RECIPES, "numbers", recipes.RECIPES["numbers"] | SMALL)
        yield module


def run(script, output, more="--no-export"):
    script.main([*ARGUMENTS.split(), *more.split(), "--output", str(output)])


@pytest.fixture(scope="module")
def done(script, tmp_path_factory):
    """Returns the folder of a run of two epochs, with its exports."""
    folder = tmp_path_factory.mktemp("run")
    run(script, folder, "--epochs 2")
    return folder


def read_metrics(folder):
    return json.loads((folder / "metrics.json").read_text("utf-8"))


@pytest.mark.full
def test_a_run_writes_all_its_files_and_metrics(done):
    names = {path.name for path in done.iterdir()}
    pictures = {"learning_curve.png", "attention.png"}
    files = {"model.keras", "tokenizer.model", "metrics.json", "history.jsonl", "run.json"}
    assert names == pictures | files | {"weights", "state", "saved_model", "onnx"}
    for name in pictures:
        assert (done / name).read_bytes().startswith(b"\x89PNG")
    metrics = read_metrics(done)
    assert metrics["command"].startswith("python examples/translate.py --limit 67")
    assert metrics["command"].endswith(f"--output {done.name}")  # without the path
    assert {"seed": 1, "epochs": 2, "beam_width": 2}.items() <= metrics.items()
    assert metrics["minutes"] > 0 and metrics["tokens_per_second"] > 0
    assert {len(values) for values in metrics["history"].values()} == {2}
    assert {"loss", "val_loss"} <= metrics["history"].keys()
    compared = metrics["onnx_beside_keras"]
    assert compared["sentences"] == compared["same_tokens"] == compared["same_texts"] == 67
    assert compared["keras_seconds"] > 0 and compared["onnx_seconds"] > 0


@pytest.mark.full
def test_saved_model_is_the_chosen_average_and_gives_the_reported_bleu(script, done):
    metrics = read_metrics(done)
    chosen = metrics["chosen_on_validation"]
    assert chosen["bleu"] == max(attempt["bleu"] for attempt in chosen["tried"])
    assert [attempt["epochs"] for attempt in chosen["tried"]] == [[2], [1, 2]]

    model = keras.models.load_model(done / "model.keras")
    assert model.dtype_policy.name == "float32" and model.count_params() == metrics["parameters"]
    files = [done / "weights" / f"weights-{epoch - 1:05d}.npz" for epoch in chosen["epochs"]]
    for weight, mean in zip(
        model.get_weights(), checkpoints.average_checkpoints(files), strict=True
    ):
        np.testing.assert_array_equal(weight, mean)

    tokenizer = kt.Tokenizer.load(done / "tokenizer.model")
    sources, references = number_words(limit=67).tests["test"]
    search = kt.BeamSearch(2, chosen["length_penalty"])
    translations = kt.translate(search, model, tokenizer, sources)
    assert bleu(translations, references, "char") == metrics["scores"]["test"]
    assert Translator(done / "onnx").translate(sources[:7]) == translations[:7]


@pytest.mark.full
def test_a_run_can_start_from_another(script, done, tmp_path):
    run(script, tmp_path / "more", f"--start-from {done} --peak 1e-9 --epochs 1 --no-export")
    both = done, tmp_path / "more"
    first, second = (kt.Tokenizer.load(each / "tokenizer.model").pieces for each in both)
    assert first == second
    weights = (keras.models.load_model(each / "model.keras").get_weights() for each in both)
    for old, new in zip(*weights, strict=True):
        np.testing.assert_allclose(new, old, atol=1e-5)
    with pytest.raises(SystemExit, match="tokenizer.model"):
        run(script, tmp_path / "other", f"--start-from {tmp_path / 'missing'} --epochs 1")


def stopped(*args, **options):
    raise KeyboardInterrupt


@pytest.mark.full
def test_a_run_stopped_in_or_after_training_reports_it(script, done, tmp_path, monkeypatch, capsys):
    before = read_metrics(done)
    (done / "model.keras").unlink()
    for owner, name, folder, more, said in (
        (keras.Model, "fit", tmp_path, "--no-export", "No epoch is finished. Repeat the command"),
        (keras.Model, "fit", done, "--epochs 2 --no-export", "the average of epochs [1, 2]"),
        (script, "choose_weights", done, "--evaluate", "evaluate with --evaluate"),
    ):
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setattr(owner, name, stopped)
            run(script, folder, more)
        assert ended.value.code == 130 and said in capsys.readouterr().out
    assert not (tmp_path / "model.keras").exists()
    assert keras.models.load_model(done / "model.keras").count_params() == before["parameters"]


@pytest.mark.full
def test_evaluation_trains_nothing(script, done, capsys):
    weights = {path: path.read_bytes() for path in (done / "weights").iterdir()}
    before = read_metrics(done)
    run(script, done, "--evaluate --no-export --length-penalty 0")
    after = read_metrics(done)
    assert weights == {path: path.read_bytes() for path in (done / "weights").iterdir()}
    assert after["history"] == before["history"] and after["onnx_beside_keras"] is None
    assert after["chosen_on_validation"]["length_penalty"] == 0
    printed = capsys.readouterr().out
    assert "Epoch 1" not in printed and re.search(r"test: BLEU .*tok:char.*exact match", printed)
    assert " -> " in printed


@pytest.mark.parametrize(
    "arguments, message",
    [
        pytest.param(
            f"{ARGUMENTS} --seed 2 --output {{done}}",
            r"^translate\.py: .*another run: it differs in seed\.",
            marks=pytest.mark.full,
        ),
        pytest.param(
            f"{ARGUMENTS} --limit 66 --output {{done}}",
            r"differs in train_sha256\.",
            marks=pytest.mark.full,
        ),
        (f"{ARGUMENTS} --evaluate --output {{new}}", "holds no finished epoch"),
        ("--target tlh --output {new}", "num2words has.*, got en and tlh"),
        ("--data {folder} --output {new}", r"has no train with both \.en and \.de"),
    ],
)
def test_errors_name_the_problem(script, tmp_path, request, arguments, message):
    folders = {"new": tmp_path / "new", "folder": tmp_path}
    if "{done}" in arguments:
        folders["done"] = request.getfixturevalue("done")
    with pytest.raises(SystemExit, match=message):
        script.main(arguments.format(**folders).split())
    assert not (tmp_path / "new").exists()


def test_number_words_are_measured_in_characters(script):
    assert script.parse_arguments([]).bleu_tokenize == "char"
    assert script.parse_arguments(["--data", "x"]).bleu_tokenize == "13a"
    assert script.parse_arguments(["--bleu-tokenize", "none"]).bleu_tokenize == "none"


@pytest.mark.parametrize("arguments", ["--beam-width 0", "--length-penalty x"])
def test_translation_arguments_are_checked(script, arguments, capsys):
    with pytest.raises(SystemExit):
        script.main(arguments.split())
    assert arguments.split()[0] in capsys.readouterr().err


@pytest.mark.nightly  # `training/test_replicas.py` trains on replicas, too
def test_cpu_replicas_train_together_without_warnings(tmp_path):
    options = "--limit 23 --vocab-size 310 --epochs 1 --replicas 2 --beam-width 1"
    options += f" --length-penalty 1 --no-export --output {tmp_path}"
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", SMALL_SCRIPT, *options.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "2 replicas" in done.stdout and f"Saved in {tmp_path}" in done.stdout
    assert read_metrics(tmp_path)["recipe"]["replicas"] == 2
    assert "Error" not in done.stderr and "Warning" not in done.stderr


def test_examples_are_short_and_in_the_index():
    index = (scripts.EXAMPLES / "README.md").read_text("utf-8")
    paths = sorted(scripts.EXAMPLES.glob("*.py"))
    assert paths
    for path in paths:
        assert len(path.read_text("utf-8").splitlines()) <= 210, path.name
        assert f"| `{path.name}` |" in index
