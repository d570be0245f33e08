"""The example script, from text to a measured model: on number words, and on files."""

import gzip
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")
pytest.importorskip("num2words")

import keras  # noqa: E402

import keras_transformer as kt  # noqa: E402
from keras_transformer.training import callbacks, checkpoints  # noqa: E402

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "translate.py"
SMALL = dict(num_layers=1, d_model=16, num_heads=2, d_ff=19, dropout=0.1)
ARGUMENTS = "--limit 67 --vocab-size 331 --tokens-per-batch 613 --beam-width 2 --length-penalty 1"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("translate_example", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Seconds, not minutes; it learns little, but something.
    module.PRESETS["numbers"]["model"] = SMALL
    module.PRESETS["numbers"]["rate"] = dict(peak=0.03, warmup_steps=5)
    return module


def run(script, output, more=""):
    script.main([*ARGUMENTS.split(), *more.split(), "--output", str(output)])


@pytest.fixture(scope="module")
def done(script, tmp_path_factory):
    """A run of two epochs."""
    folder = tmp_path_factory.mktemp("run")
    run(script, folder, "--epochs 2")
    return folder


def read_metrics(folder):
    return json.loads((folder / "metrics.json").read_text("utf-8"))


def test_leaves_what_it_promises(done):
    names = {path.name for path in done.iterdir()}
    pictures = {"learning_curve.png", "attention.png"}
    assert names == pictures | {
        "model.keras",
        "tokenizer.model",
        "metrics.json",
        "history.csv",
        "run.json",
        "weights",
        "state",
    }
    for name in pictures:
        assert (done / name).read_bytes().startswith(b"\x89PNG")


def test_metrics_say_how_and_what(done):
    metrics = read_metrics(done)
    assert metrics["command"].startswith("python examples/translate.py --limit 67")
    assert metrics["command"].endswith(f"--output {done.name}")  # not where it lies
    assert metrics["seed"] == 1 and metrics["epochs"] == 2 and metrics["beam_width"] == 2
    assert metrics["versions"]["keras"] == keras.__version__
    assert metrics["minutes"] > 0 and metrics["tokens_per_second"] > 0
    assert {len(values) for values in metrics["history"].values()} == {2}
    assert {"loss", "val_loss"} <= metrics["history"].keys()
    score = metrics["scores"]["test"]
    assert "tok:char" in score["signature"] and len(score["precisions"]) == 4
    assert score["lengths"]["reference"] > 0


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
    _, _, tests = script.number_words(script.parse_arguments(ARGUMENTS.split()))
    sources, references = tests["test"]
    search = kt.BeamSearch(2, chosen["length_penalty"])
    translations = callbacks.translate(search, model, tokenizer, sources)
    assert script.bleu(translations, references, "char") == metrics["scores"]["test"]


def test_interrupted_run_leaves_a_model_and_ends_as_if_it_had_not_been(
    script, done, tmp_path, monkeypatch, capsys
):
    class Interrupting(callbacks.Throughput):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if self._epoch == 1 and batch == 0:
                os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(kt, "Throughput", Interrupting)
        with pytest.raises(SystemExit) as stopped:
            run(script, tmp_path, "--epochs 2")
    assert stopped.value.code == 130  # as a shell reports Ctrl-C
    assert "average of epochs [1]" in capsys.readouterr().out
    assert keras.models.load_model(tmp_path / "model.keras").count_params() > 0
    assert not (tmp_path / "metrics.json").exists()

    run(script, tmp_path, "--epochs 2")
    last = "weights/weights-00001.npz"
    arrays, expected = (checkpoints.read_checkpoint(f / last)[0] for f in (tmp_path, done))
    assert arrays.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(arrays[name], expected[name], rtol=1e-6, atol=1e-7)
    for name in ("loss", "val_loss"):
        curves = (read_metrics(folder)["history"][name] for folder in (tmp_path, done))
        np.testing.assert_allclose(*curves, rtol=1e-5)


def test_evaluation_trains_nothing(script, done, capsys):
    weights = {path: path.read_bytes() for path in (done / "weights").iterdir()}
    before = read_metrics(done)
    run(script, done, "--evaluate --length-penalty 0")
    after = read_metrics(done)
    assert weights == {path: path.read_bytes() for path in (done / "weights").iterdir()}
    assert after["history"] == before["history"]
    assert after["chosen_on_validation"]["length_penalty"] == 0
    printed = capsys.readouterr().out
    assert "Epoch 1" not in printed and re.search(r"test: BLEU .*tok:char.*exact match", printed)
    assert " -> " in printed


def problem(script, arguments):
    """What the script says before it ends with an error."""
    with pytest.raises(SystemExit) as ended:
        script.main(arguments)
    return str(ended.value.code)


def test_other_arguments_do_not_go_on_with_a_run(script, done):
    said = problem(script, [*ARGUMENTS.split(), "--seed", "2", "--output", str(done)])
    assert "holds another run: it differs in seed." in said
    said = problem(script, [*ARGUMENTS.split(), "--limit", "66", "--output", str(done)])
    assert "differs in train_sha256." in said


def test_checkpoints_of_an_unknown_run_are_not_gone_on_with(script, tmp_path):
    checkpoints.write_checkpoint(tmp_path / "weights" / "weights-00000.npz", {}, {})
    said = problem(script, [*ARGUMENTS.split(), "--output", str(tmp_path)])
    assert "holds checkpoints, but no run.json" in said


def test_there_must_be_something_to_evaluate(script, tmp_path):
    said = problem(script, [*ARGUMENTS.split(), "--evaluate", "--output", str(tmp_path / "new")])
    assert "holds no finished epoch" in said and not (tmp_path / "new").exists()


def test_numbers_of_one_set_are_in_no_other(script):
    train, valid, tests = script.number_words(script.parse_arguments(["--limit", "701"]))
    sources = [lines for lines, _ in (train, valid, tests["test"])]
    assert [len(lines) for lines in sources] == [701, 500, 500]
    assert len(set().union(*sources)) == 1701


def test_languages_of_number_words_must_be_known(script, tmp_path):
    said = problem(script, ["--target", "tlh", "--output", str(tmp_path)])
    assert "num2words has" in said and "en and tlh" in said


def parallel(folder, name, lines, packed=False):
    for language in ("en", "de"):
        content = "".join(f"{line} {language}\n" for line in lines).encode()
        path = folder / f"{name}.{language}{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)


def read_folder(script, folder, more=""):
    return script.read_files(script.parse_arguments(["--data", str(folder), *more.split()]))


def test_files_are_found_packed_or_plain(script, tmp_path):
    parallel(tmp_path, "train", ["a", "b"], packed=True)
    parallel(tmp_path, "val", ["c@@ d"])
    parallel(tmp_path, "test.2016", ["e"], packed=True)
    parallel(tmp_path, "test_2017", ["f", "g"])
    assert read_folder(script, tmp_path) == (
        [["a en", "b en"], ["a de", "b de"]],
        [["c@@ d en"], ["c@@ d de"]],
        {
            "test.2016": [["e en"], ["e de"]],
            "test_2017": [["f en", "g en"], ["f de", "g de"]],
        },
    )
    assert read_folder(
        script, tmp_path, "--train test_2017 --valid train --test val --limit 1"
    ) == (
        [["f en"], ["f de"]],
        [["a en"], ["a de"]],
        {"val": [["c@@ d en"], ["c@@ d de"]]},
    )
    _, valid, tests = read_folder(script, tmp_path, "--undo-bpe --test")
    assert valid == [["cd en"], ["cd de"]] and tests == {}


def test_missing_files_are_named(script, tmp_path):
    parallel(tmp_path, "train", ["a"])
    with pytest.raises(ValueError, match=r"no valid or val or dev with both \.en and \.de"):
        read_folder(script, tmp_path)
    parallel(tmp_path, "dev", ["b"])
    (tmp_path / "test.en").write_text("no counterpart\n", "utf-8")
    with pytest.raises(ValueError, match="has no test with both"):
        read_folder(script, tmp_path)
    with pytest.raises(ValueError, match=r"is no folder, nor one of \['multi30k'"):
        read_folder(script, tmp_path / "nowhere")


def test_empty_files_are_named(script, tmp_path):
    parallel(tmp_path, "train", ["a"])
    parallel(tmp_path, "valid", [])
    said = problem(script, ["--data", str(tmp_path), "--output", str(tmp_path / "out")])
    assert re.search(r"valid\.en and .*valid\.de are empty", said)


def test_known_corpus_is_fetched_by_name(script, tmp_path, monkeypatch):
    def fetch(name, folder):
        folder.mkdir(parents=True)
        for part in ("train", "val"):
            parallel(folder, part, [name])

    monkeypatch.setattr(script.corpora, "fetch_corpus", fetch)
    monkeypatch.setattr(pathlib.Path, "home", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    text, _, tests = read_folder(script, "multi30k")
    assert text == [["multi30k en"], ["multi30k de"]] and tests == {}


@pytest.mark.parametrize("arguments", ["--epochs 0", "--seed -1", "--limit -3", "--preset huge"])
def test_arguments_out_of_range_are_refused(script, arguments, capsys):
    with pytest.raises(SystemExit):
        script.main(arguments.split())
    assert arguments.split()[0] in capsys.readouterr().err


def test_presets_choose_what_is_not_given(script):
    args = script.parse_arguments(["--data", "x", "--epochs", "3"])
    assert (args.preset, args.epochs, args.vocab_size) == ("tiny", 3, 5000)
    assert args.bleu_tokenize == "13a" and args.tokens_per_batch == 4096
    assert script.parse_arguments(["--vocab-size", "7"]).vocab_size == 7
    args = script.parse_arguments([])
    assert (args.preset, args.bleu_tokenize) == ("numbers", "char")


def test_averages_are_of_the_last_epochs_and_around_the_best_loss(script):
    losses = [9, 8, 7, 2, 5, 6, 7, 7, 7]  # the fourth epoch's is best
    assert script.averages(list(range(1, 10)), losses, usual=4) == [
        [9],
        [8, 9],
        [6, 7, 8, 9],
        [2, 3, 4, 5, 6, 7, 8, 9],
        [2, 3, 4, 5],
    ]
    assert script.averages([1, 2, 3], [3, 2, 1], usual=4) == [[3], [2, 3], [1, 2, 3]]
    assert script.averages([1, 2], [], usual=2) == [[2], [1, 2]]


def test_replicas_of_a_cpu_train_together(tmp_path):
    command = [sys.executable, str(SCRIPT), *"--limit 23 --vocab-size 310 --epochs 1".split()]
    command += [*"--replicas 2 --beam-width 1 --length-penalty 1".split(), "--output", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "2 replicas" in done.stdout and f"Saved in {tmp_path}" in done.stdout
    assert read_metrics(tmp_path)["recipe"]["replicas"] == 2
