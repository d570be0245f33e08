"""Run folders, selection of weights, recipes, devices and arguments of the examples."""

import json
import types

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from helpers.example_files import parallel, write  # noqa: E402
from support import arguments, recipes, selection  # noqa: E402
from support.devices import device_strategy  # noqa: E402
from support.run_folder import HistoryLog, RunFolder  # noqa: E402
from support.sets.text_sets import TextSets  # noqa: E402

from keras_transformer.training.checkpoints import write_checkpoint  # noqa: E402

SETTINGS = {"model": {"d_model": 22, "num_layers": (6, 2)}, "seed": 1}
AS_WRITTEN = json.loads(json.dumps(SETTINGS))  # without tuples
TEXT = ["a man rides a red hat"]


def make_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])


def save_epochs(run, *values):
    """Writes the weights of each epoch, all equal to its value."""
    for i, value in enumerate(values):
        arrays = {"weights/0": np.full((2, 1), value, "float32")}
        write_checkpoint(run.path / "weights" / f"weights-{i:05d}.npz", arrays, {"epoch": i})


def log_epochs(run, *epochs):
    """Writes the history: pairs of an epoch and its logs."""
    log = HistoryLog(run.path / "history.jsonl")
    for epoch, logs in epochs:
        log.on_epoch_begin(epoch)
        log.on_epoch_end(epoch, logs)


def value_of(model):
    (kernel,) = model.get_weights()
    assert len(set(kernel.ravel())) == 1
    return float(kernel[0, 0])


def read(run, name):
    return json.loads((run.path / name).read_text("utf-8"))


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.claim(SETTINGS)
    return folder


def test_a_folder_resumes_its_run_and_refuses_others(run, tmp_path):
    assert read(run, "run.json") == AS_WRITTEN
    with pytest.raises(ValueError, match="holds no finished epoch"):
        RunFolder(tmp_path / "new").claim(SETTINGS, finished=True)
    assert not (tmp_path / "new").exists()
    save_epochs(run, 1.0)
    for finished in (False, True):
        RunFolder(run.path).claim(SETTINGS, finished)
    with pytest.raises(ValueError, match=r"holds another run: it differs in model, seed\."):
        RunFolder(run.path).claim({"model": {"d_model": 23}, "seed": 2})
    (run.path / "run.json").unlink()
    with pytest.raises(ValueError, match=r"holds checkpoints, but no run\.json"):
        run.claim(SETTINGS)
    run.claim(SETTINGS, finished=True)  # they may be evaluated
    assert not (run.path / "run.json").exists()


def test_history_counts_an_epoch_once(run):
    assert run.history() == {}
    logs = {"loss": np.float32(3.0), "val_bleu": 41.0}  # not logged in every epoch
    # The second epoch runs twice.
    log_epochs(run, (0, {"loss": 5.0}), (1, {"loss": 4.0}), (1, logs), (2, {"loss": np.nan}))
    history = run.history()
    minutes = history.pop("minutes")
    np.testing.assert_equal(history, {"loss": [5.0, 3.0, np.nan], "val_bleu": [41.0]})
    assert len(minutes) == 3 and min(minutes) >= 0


def test_weights_of_epochs_are_averaged(run):
    save_epochs(run, 1.0, 5.0, 6.0)
    model = make_model()
    run.load(model, [1, 3])
    assert list(run.weights()) == [1, 2, 3] and value_of(model) == 3.5
    run.save_model(model)
    assert value_of(keras.models.load_model(run.path / "model.keras")) == 3.5


@pytest.mark.parametrize("size", [9, 9000])
def test_a_vocabulary_that_does_not_fit_names_the_option_of_the_command(run, size):
    with pytest.raises(ValueError, match=rf"--vocab-size {size} is .*Pass --vocab-size 2\d\d"):
        run.tokenizer(TEXT, size)
    assert not (run.path / "tokenizer.model").exists()


def test_the_tokenizer_is_trained_once(run):
    first = run.tokenizer(TEXT, 272)
    again = run.tokenizer(["other text, which is not looked at"], 290)
    assert again.model == first.model and first.vocab_size == 272


def test_the_report_holds_settings_and_history(run):
    pytest.importorskip("matplotlib")
    save_epochs(run, 1.0, 2.0)
    run.write_report()
    report = read(run, "metrics.json")
    assert report["minutes"] is report["tokens_per_second"] is None
    assert not (run.path / "learning_curve.png").exists()
    log_epochs(run, *((n, {"loss": 3.0, "tokens_per_second": 10.0 + 20 * n}) for n in range(2)))
    run.write_report(scores={"test": 7})
    report = read(run, "metrics.json")
    expected = {"recipe": AS_WRITTEN, "scores": {"test": 7}, "epochs": 2, "tokens_per_second": 20.0}
    assert expected.items() <= report.items()
    assert report["minutes"] == sum(report["history"]["minutes"])
    assert report["versions"]["keras"] == keras.__version__
    assert (run.path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_averages_are_of_the_last_epochs_and_around_the_best_loss():
    losses = [9, 8, 7, 2, 5, 6, 7, 7, 7]  # epoch 4 is best
    assert selection.averages(list(range(1, 10)), losses, usual=4) == [
        [9],
        [8, 9],
        [6, 7, 8, 9],
        [2, 3, 4, 5, 6, 7, 8, 9],
        [2, 3, 4, 5],
    ]
    assert selection.averages([1, 2, 3], [3, 2, 1], usual=4) == [[3], [2, 3], [1, 2, 3]]
    assert selection.averages([1, 2], [], usual=2) == [[2], [1, 2]]


def test_the_best_average_and_penalty_are_chosen(run, capsys):
    save_epochs(run, 2.0, 4.0, 6.0, 9.0)
    model, asked = make_model(), []

    def score(penalty):  # best at a weight of 7.5 and a penalty of 0.6
        asked.append((value_of(model), penalty))
        return 50 - abs(value_of(model) - 7.5) - abs(penalty - 0.6)

    chosen = selection.choose_weights(model, run, score, [0.6, 1.1, 1.7], usual=2)
    # First all averages with the penalty nearest to 1, then the best average with the others.
    assert asked == [(9.0, 1.1), (7.5, 1.1), (5.25, 1.1), (7.5, 0.6), (7.5, 1.7)]
    assert (chosen["epochs"], chosen["length_penalty"], chosen["bleu"]) == ([3, 4], 0.6, 50.0)
    assert len(chosen["tried"]) == 5 and value_of(model) == 7.5
    assert "3-4" in capsys.readouterr().out
    # The first of equal scores is chosen.
    chosen = selection.choose_weights(model, run, lambda penalty: 1.0, [1.0, 0.6], usual=2)
    assert chosen["epochs"] == [4] and chosen["length_penalty"] == 1.0


@pytest.mark.parametrize(("values", "penalties"), [((), [1.0]), ((1.0,), [])])
def test_selection_requires_an_epoch_and_a_penalty(run, values, penalties):
    save_epochs(run, *values)
    with pytest.raises(ValueError, match="nothing to choose from"):
        selection.choose_weights(make_model(), run, lambda penalty: 1.0, penalties, usual=2)


@pytest.mark.parametrize("recipe", recipes.RECIPES.values(), ids=recipes.RECIPES)
def test_every_recipe_has_all_settings_and_makes_a_rate(recipe):
    names = {"model", "rate", "tokens_per_batch", "vocab_size", "epochs", "average"}
    assert recipe.keys() == names
    assert recipe["model"]["d_model"] % recipe["model"]["num_heads"] == 0
    rate = recipes.learning_rate(updates=10_000, **recipe["rate"])
    assert 0 < float(rate(recipe["rate"]["warmup_steps"])) < 0.01


def test_one_replica_is_one_cpu_and_more_replicas_than_gpus_are_refused(monkeypatch):
    gpus = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    assert device_strategy().num_replicas_in_sync == 1
    gpus += [types.SimpleNamespace(name="gpu")] * 2
    with pytest.raises(ValueError, match="3 replicas are more than the 2 GPUs"):
        device_strategy(3)


@pytest.fixture
def parse():
    """A function from a command line to arguments."""
    parser = arguments.make_parser("python examples/some_task.py", "Learns.")
    return lambda line: arguments.parse(parser, line.split())


def test_presets_set_missing_arguments(parse):
    args = parse("--data /some/where/text/ --epochs 3 --output a/b/c")
    assert args.recipe is recipes.RECIPES["tiny"]
    expected = {"preset": "tiny", "epochs": 3, "vocab_size": 5000, "tokens_per_batch": 4096}
    # The command names only the last part of folders.
    expected["command"] = "python examples/some_task.py --data text --epochs 3 --output c"
    assert expected.items() <= vars(args).items()
    assert parse("--vocab-size 7").vocab_size == 7 and parse("--preset big").epochs == 20
    assert parse("").preset == "numbers" and parse("").output.name == "some_task"


@pytest.mark.parametrize("given", ["--epochs 0", "--seed -1", "--limit -3", "--preset huge"])
def test_arguments_out_of_range_are_refused(parse, given, capsys):
    with pytest.raises(SystemExit):
        parse(given)
    assert given.split()[0] in capsys.readouterr().err


def test_text_comes_from_files_or_is_made(parse, tmp_path):
    write(tmp_path, parallel("train", "a", "b") | parallel("valid", "c", "d"))
    args = parse(f"--data {tmp_path} --limit 1 --source de --target en")
    expected = TextSets([["a de"], ["a en"]], [["c de"], ["c en"]], {})
    assert arguments.read_text(args) == expected
    pytest.importorskip("num2words")
    made = arguments.read_text(parse("--limit 3"))
    assert [len(side) for side in (*made.train, *made.tests["test"])] == [3, 3, 3, 3]


def test_settings_identify_a_run(parse):
    def settings(given, text=("a", "b")):
        return arguments.run_settings(parse(given), [[t] for t in text])

    assert settings("--seed 3") == settings("--seed 3 --output elsewhere")
    assert settings("--seed 3") != settings("--seed 4")
    assert settings("") != settings("", text=("a", "c"))
    # The number of epochs counts only if the rate depends on it.
    assert settings("--preset base --epochs 3") == settings("--preset base --epochs 4")
    assert settings("--preset tiny --epochs 3") != settings("--preset tiny --epochs 4")
