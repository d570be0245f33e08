"""Shared parts of the examples: arguments, saving after Ctrl-C, best epoch, score."""

import json
import re

import keras
import numpy as np
import pytest
from support import task_run
from support.task_run import TaskRun


def arguments(tmp_path, *more):
    parser = task_run.make_parser("colours", "Learns colours.\n\nMore.", epochs=3)
    return task_run.parse(parser, ["--output", str(tmp_path / "run"), *more])


DATA = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


class Tell(keras.callbacks.Callback):
    """Logs a given value each epoch, and can stop the training."""

    def __init__(self, values, stop_after=None, name="val_score"):
        super().__init__()
        self.values, self.stop_after, self.weights = values, stop_after, []
        self.name = name

    def on_epoch_end(self, epoch, logs):
        logs[self.name] = self.values[epoch]
        self.weights.append(self.model.get_weights()[0])

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.stop_after:
            raise KeyboardInterrupt


def train(tmp_path, *more, models=1, stages=1, **options):
    """Runs a task that trains models in stages; returns the run, the last model and history."""
    with TaskRun(arguments(tmp_path, *more)) as run:
        for _ in range(models):
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            for _ in range(stages):
                history = run.fit(model, *DATA, **options)
    return run, model, history


@pytest.mark.full("val_loss-values1", "val_mean_squared_error-values3", "val_score-values0")
@pytest.mark.parametrize(
    "name, values",
    [
        ("val_score", [0.1, 0.3, 0.2]),
        ("val_loss", [0.3, 0.1, 0.2]),
        ("val_perplexity", [0.3, 0.1, 0.2]),
        ("val_mean_squared_error", [0.3, 0.1, 0.2]),
    ],
)
def test_the_best_epoch_is_kept(tmp_path, name, values):
    tell = Tell(values, name=name)
    run, model, _ = train(tmp_path, best=name, callbacks=[tell], epochs=3)
    for each in (model, keras.models.load_model(run.path / "model.keras")):
        np.testing.assert_array_equal(each.get_weights()[0], tell.weights[1])


@pytest.mark.parametrize("values", [[0.3, 0.1], []], ids=len)
def test_ctrl_c_leaves_the_model_so_far(tmp_path, capsys, values):
    tell, path = Tell(values, stop_after=len(values)), tmp_path / "run" / "model.keras"
    with pytest.raises(SystemExit) as stopped:
        train(tmp_path, best="val_score", callbacks=[tell], epochs=3)
    assert stopped.value.code == 130 and path.exists() == bool(values)
    said = "model.keras is the model so far" if values else "No epoch was finished"
    assert said in capsys.readouterr().out
    if values:
        saved = keras.models.load_model(path)
        np.testing.assert_array_equal(saved.get_weights()[0], tell.weights[0])


def test_the_score_file_records_the_run(tmp_path, capsys):
    with TaskRun(arguments(tmp_path, "--seed", "3")) as run:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        run.fit(model, *DATA, epochs=2)
        (run.path / "onnx").mkdir()
        (run.path / "onnx" / "model.onnx").write_bytes(bytes(123))
        run.write_score(model, {"accuracy": 0.75}, {"in the dark": {"accuracy": 0.5}}, data="made")
    report = json.loads((run.path / "score.json").read_text())
    expected = {
        **{"seed": 3, "epochs": 2, "parameters": 3, "artefact_bytes": 123, "data": "made"},
        **{"score": {"accuracy": 0.75}, "others": {"in the dark": {"accuracy": 0.5}}},
        "command": "python examples/colours.py --output run --seed 3",
    }
    assert {name: report[name] for name in expected} == expected
    assert 0 < report["minutes"]["training"] <= report["minutes"]["whole"]
    assert report["minutes"]["processor"] > 0
    told = capsys.readouterr().out
    assert re.search(r"accuracy 0\.75; in the dark: accuracy 0\.5; [\d.]+ minutes", told)


def test_a_trained_model_is_measured_again(tmp_path):
    run, before, trained = train(tmp_path, stages=2, epochs=2)
    earlier = json.loads((run.path / "training.json").read_text("utf-8"))["minutes"]
    run, model, again = train(tmp_path, "--trained", stages=2, epochs=2)
    run.write_score(model, {"accuracy": 0.5})
    np.testing.assert_array_equal(model.get_weights()[0], before.get_weights()[0])
    assert again.history == trained.history and len(again.history["loss"]) == 2
    report = json.loads((run.path / "score.json").read_text("utf-8"))
    assert report["epochs"] == 4 and report["command"] == "python examples/colours.py --output run"
    assert report["minutes"]["training"] == earlier["training"] < report["minutes"]["whole"]
    assert report["minutes"]["processor"] > earlier["processor"]


@pytest.mark.parametrize(
    "trained, more, message",
    [
        (0, ["--trained"], "holds no trained model"),
        (1, ["--trained", "--seed", "5"], "of another command"),
        (2, ["--trained"], "trained 2 models, .* only the last"),
        (0, [], "'val_score' is not logged; logged are"),
    ],
)
def test_models_and_measures_that_are_missing_are_refused(tmp_path, trained, more, message):
    if trained:
        train(tmp_path, models=trained)
    with pytest.raises(SystemExit, match=message):
        train(tmp_path, *more, best="val_score")


@pytest.mark.parametrize(
    "given, told",
    [
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--data", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path, capsys, given, told):
    with pytest.raises(SystemExit):
        arguments(tmp_path, *given)
    assert told in capsys.readouterr().err


def test_a_data_error_is_reported_in_one_line(tmp_path):
    with pytest.raises(SystemExit, match=r"examples/colours\.py: no such file"):
        with TaskRun(arguments(tmp_path)):
            raise OSError("no such file")


def test_a_task_without_real_data_has_no_data_argument(tmp_path, capsys):
    parser = task_run.make_parser("colours", "Learns colours.", epochs=3, data=False)
    assert task_run.parse(parser, []).epochs == 3
    with pytest.raises(SystemExit):
        task_run.parse(parser, ["--data", str(tmp_path)])
    assert "unrecognized arguments: --data" in capsys.readouterr().err
