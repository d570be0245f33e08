"""Run folders, selection of weights, recipes, devices and arguments of the examples."""

import json
import types

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from support import arguments, recipes, selection  # noqa: E402
from support.devices import device_strategy  # noqa: E402
from support.run_folder import HistoryLog, RunFolder  # noqa: E402
from support.sets.text_sets import TextSets  # noqa: E402

from keras_transformer.training.checkpoints import write_checkpoint  # noqa: E402

SETTINGS = {"model": {"d_model": 22, "num_layers": (6, 2)}, "seed": 1}
AS_WRITTEN = json.loads(json.dumps(SETTINGS))  # without tuples


def make_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])


def save_epochs(run, *values):
    """Writes the weights of each epoch, all equal to its value."""
    for i, value in enumerate(values):
        arrays = {"weights/0": np.full((2, 1), value, "float32")}
        write_checkpoint(run.path / "weights" / f"weights-{i:05d}.npz", arrays, {"epoch": i})


def value_of(model):
    (kernel,) = model.get_weights()
    assert len(set(kernel.ravel())) == 1
    return float(kernel[0, 0])


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.claim(SETTINGS)
    return folder


def test_a_run_resumes_in_its_folder(run):
    assert json.loads((run.path / "run.json").read_text("utf-8")) == AS_WRITTEN
    save_epochs(run, 1.0)
    RunFolder(run.path).claim(SETTINGS)
    RunFolder(run.path).claim(SETTINGS, finished=True)


def test_a_folder_refuses_another_run(run):
    with pytest.raises(ValueError, match=r"holds another run: it differs in model, seed\."):
        RunFolder(run.path).claim({"model": {"d_model": 23}, "seed": 2})


def test_checkpoints_without_settings_are_not_resumed(tmp_path):
    run = RunFolder(tmp_path)
    save_epochs(run, 1.0)
    with pytest.raises(ValueError, match=r"holds checkpoints, but no run\.json"):
        run.claim(SETTINGS)
    run.claim(SETTINGS, finished=True)  # they may be evaluated
    assert not (tmp_path / "run.json").exists()


def test_evaluation_requires_a_finished_epoch(tmp_path):
    with pytest.raises(ValueError, match="holds no finished epoch"):
        RunFolder(tmp_path / "new").claim(SETTINGS, finished=True)
    assert not (tmp_path / "new").exists()


def test_history_counts_an_epoch_once(run):
    assert run.history() == {}
    log = HistoryLog(run.path / "history.jsonl")
    for epoch, loss in ((0, 5.0), (1, 4.0), (1, np.float32(3.0))):  # the second epoch runs twice
        log.on_epoch_begin(epoch)
        log.on_epoch_end(epoch, {"loss": loss})
    history = run.history()
    assert history["loss"] == [5.0, 3.0]
    assert len(history["minutes"]) == 2 and all(minutes >= 0 for minutes in history["minutes"])


def test_history_keeps_nan(run):
    log = HistoryLog(run.path / "history.jsonl")
    log.on_epoch_begin(0)
    log.on_epoch_end(0, {"loss": float("nan")})
    assert np.isnan(run.history()["loss"]).all()


def test_weights_of_epochs_are_averaged(run):
    save_epochs(run, 1.0, 5.0, 6.0)
    model = make_model()
    run.load(model, [1, 3])
    assert list(run.weights()) == [1, 2, 3] and value_of(model) == 3.5
    run.save_model(model)
    assert value_of(keras.models.load_model(run.path / "model.keras")) == 3.5


def test_an_unfinished_file_does_not_replace_the_old_one(run):
    run.write_json("metrics.json", {"whole": True})
    with pytest.raises(RuntimeError), run.replace("metrics.json") as aside:
        aside.write_text("half", "utf-8")
        raise RuntimeError
    assert json.loads((run.path / "metrics.json").read_text("utf-8")) == {"whole": True}


@pytest.mark.parametrize("size", [9, 9000])
def test_a_vocabulary_that_does_not_fit_names_the_option_of_the_command(run, size):
    with pytest.raises(ValueError, match=rf"--vocab-size {size} is .*Pass --vocab-size 2\d\d"):
        run.tokenizer(["a man rides a red hat"], size)
    assert not (run.path / "tokenizer.model").exists()


def test_the_tokenizer_is_trained_once(run):
    first = run.tokenizer(["a man rides a red hat"], 272)
    again = run.tokenizer(["other text, which is not looked at"], 290)
    assert again.model == first.model and first.vocab_size == 272


def test_the_report_holds_settings_and_history(run):
    pytest.importorskip("matplotlib")
    save_epochs(run, 1.0, 2.0)
    log = HistoryLog(run.path / "history.jsonl")
    for epoch, rate in enumerate((10.0, 30.0)):
        log.on_epoch_begin(epoch)
        log.on_epoch_end(epoch, {"loss": 3.0, "tokens_per_second": rate})
    run.write_report(scores={"test": 7})
    report = json.loads((run.path / "metrics.json").read_text("utf-8"))
    assert report["recipe"] == AS_WRITTEN and report["scores"] == {"test": 7}
    assert report["epochs"] == 2 and report["tokens_per_second"] == 20.0
    assert report["minutes"] == sum(report["history"]["minutes"])
    assert report["versions"]["keras"] == keras.__version__
    assert (run.path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_needs_no_history(run):
    save_epochs(run, 1.0)
    run.write_report()
    report = json.loads((run.path / "metrics.json").read_text("utf-8"))
    assert report["minutes"] is None and report["tokens_per_second"] is None
    assert not (run.path / "learning_curve.png").exists()


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


def test_the_first_of_equal_scores_is_chosen(run):
    save_epochs(run, 2.0, 4.0)
    chosen = selection.choose_weights(make_model(), run, lambda penalty: 1.0, [1.0, 0.6], usual=2)
    assert chosen["epochs"] == [2] and chosen["length_penalty"] == 1.0


@pytest.mark.parametrize(("values", "penalties"), [((), [1.0]), ((1.0,), [])])
def test_selection_requires_an_epoch_and_a_penalty(run, values, penalties):
    save_epochs(run, *values)
    with pytest.raises(ValueError, match="nothing to choose from"):
        selection.choose_weights(make_model(), run, lambda penalty: 1.0, penalties, usual=2)


def test_an_annealed_rate_ends_at_zero():
    rate = recipes.learning_rate(updates=90, peak=0.5, warmup_steps=10, anneal=True)
    values = [float(rate(step)) for step in (0, 5, 10, 50, 90)]
    np.testing.assert_allclose(values, [0, 0.25, 0.5, 0.25, 0], atol=1e-6)
    plain = recipes.learning_rate(updates=90, peak=0.5, warmup_steps=10)
    assert float(plain(40 - 1)) == pytest.approx(0.25)


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_recipe_has_all_settings_and_makes_a_rate(name):
    recipe = recipes.RECIPES[name]
    assert recipe.keys() == {
        *("model", "rate", "tokens_per_batch", "vocab_size", "epochs", "average")
    }
    assert recipe["model"]["d_model"] % recipe["model"]["num_heads"] == 0
    rate = recipes.learning_rate(updates=10_000, **recipe["rate"])
    assert 0 < float(rate(recipe["rate"]["warmup_steps"])) < 0.01


def test_one_replica_is_one_cpu(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    assert device_strategy().num_replicas_in_sync == 1


def test_more_replicas_than_gpus_are_refused(monkeypatch):
    gpu = types.SimpleNamespace(name="gpu")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [gpu] * 2)
    with pytest.raises(ValueError, match="3 replicas are more than the 2 GPUs"):
        device_strategy(3)


@pytest.fixture
def parser():
    return arguments.make_parser("python examples/some_task.py", "Learns.")


def test_presets_set_missing_arguments(parser):
    args = arguments.parse(parser, ["--data", "x", "--epochs", "3"])
    assert (args.preset, args.epochs, args.vocab_size) == ("tiny", 3, 5000)
    assert args.tokens_per_batch == 4096 and args.recipe is recipes.RECIPES["tiny"]
    assert arguments.parse(parser, ["--vocab-size", "7"]).vocab_size == 7
    assert arguments.parse(parser, []).preset == "numbers"
    assert arguments.parse(parser, ["--preset", "big"]).epochs == 20


@pytest.mark.parametrize("given", ["--epochs 0", "--seed -1", "--limit -3", "--preset huge"])
def test_arguments_out_of_range_are_refused(parser, given, capsys):
    with pytest.raises(SystemExit):
        arguments.parse(parser, given.split())
    assert given.split()[0] in capsys.readouterr().err


def test_the_command_names_only_the_last_part_of_folders(parser):
    args = arguments.parse(parser, ["--data", "/some/where/text/", "--output", "a/b/c d"])
    assert args.command == "python examples/some_task.py --data text --output 'c d'"
    assert str(arguments.parse(parser, []).output).endswith("some_task")


def test_text_comes_from_files_or_is_made(parser, tmp_path):
    for name in ("train.en", "train.de", "valid.en", "valid.de"):
        (tmp_path / name).write_text(f"{name}\nsecond\n", "utf-8")
    args = arguments.parse(parser, ["--data", str(tmp_path), "--limit", "1", "--source", "de"])
    args.target = "en"
    assert arguments.read_text(args) == TextSets(
        [["train.de"], ["train.en"]], [["valid.de"], ["valid.en"]], {}
    )
    pytest.importorskip("num2words")
    made = arguments.read_text(arguments.parse(parser, ["--limit", "3"]))
    assert [len(side) for side in (*made.train, *made.tests["test"])] == [3, 3, 3, 3]


def test_settings_identify_a_run(parser):
    def settings(given, text=("a", "b")):
        return arguments.run_settings(arguments.parse(parser, given.split()), [[t] for t in text])

    assert settings("--seed 3") == settings("--seed 3 --output elsewhere")
    assert settings("--seed 3") != settings("--seed 4")
    assert settings("") != settings("", text=("a", "c"))
    # The number of epochs counts only if the rate depends on it.
    assert settings("--preset base --epochs 3") == settings("--preset base --epochs 4")
    assert settings("--preset tiny --epochs 3") != settings("--preset tiny --epochs 4")


def test_history_holds_values_that_are_not_logged_in_every_epoch(tmp_path):
    run = RunFolder(tmp_path)
    log = HistoryLog(tmp_path / "history.jsonl")
    for epoch, logs in enumerate([{"loss": 3.0}, {"loss": 2.0, "val_bleu": 41.0}, {"loss": 1.0}]):
        log.on_epoch_begin(epoch)
        log.on_epoch_end(epoch, logs)
    history = run.history()
    assert (history["loss"], history["val_bleu"]) == ([3.0, 2.0, 1.0], [41.0])
