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


def compiled():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


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


def test_the_best_epoch_is_kept(tmp_path):
    tell = Tell([0.1, 0.3, 0.2])
    with TaskRun(arguments(tmp_path)) as run:
        model = compiled()
        run.fit(model, *DATA, best="val_score", callbacks=[tell], epochs=3)
    np.testing.assert_array_equal(model.get_weights()[0], tell.weights[1])
    saved = keras.models.load_model(run.path / "model.keras")
    np.testing.assert_array_equal(saved.get_weights()[0], tell.weights[1])


@pytest.mark.parametrize("name", ["val_loss", "val_perplexity", "val_mean_squared_error"])
def test_losses_and_errors_are_minimised(tmp_path, name):
    tell = Tell([0.3, 0.1, 0.2], name=name)
    with TaskRun(arguments(tmp_path)) as run:
        model = compiled()
        run.fit(model, *DATA, best=name, callbacks=[tell], epochs=3)
    np.testing.assert_array_equal(model.get_weights()[0], tell.weights[1])


def test_an_unknown_measure_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="'val_loss' is not logged; logged are"):
        with TaskRun(arguments(tmp_path)) as run:
            run.fit(compiled(), *DATA, best="val_loss")


def test_ctrl_c_leaves_the_model_so_far(tmp_path, capsys):
    tell = Tell([0.3, 0.1], stop_after=2)
    with pytest.raises(SystemExit) as stopped:
        with TaskRun(arguments(tmp_path)) as run:
            run.fit(compiled(), *DATA, best="val_score", callbacks=[tell], epochs=3)
    assert stopped.value.code == 130
    assert "model.keras is the model so far" in capsys.readouterr().out
    saved = keras.models.load_model(run.path / "model.keras")
    np.testing.assert_array_equal(saved.get_weights()[0], tell.weights[0])


def test_ctrl_c_in_the_first_epoch_saves_no_model(tmp_path, capsys):
    with pytest.raises(SystemExit):
        with TaskRun(arguments(tmp_path)) as run:
            run.fit(compiled(), *DATA, callbacks=[Tell([], stop_after=0)])
    assert "No epoch was finished" in capsys.readouterr().out
    assert not (run.path / "model.keras").exists()


def test_the_score_file_records_the_run(tmp_path, capsys):
    with TaskRun(arguments(tmp_path, "--seed", "3")) as run:
        model = compiled()
        run.fit(model, *DATA, epochs=2)
        (run.path / "onnx").mkdir()
        (run.path / "onnx" / "model.onnx").write_bytes(bytes(123))
        run.write_score(model, {"accuracy": 0.75}, {"in the dark": {"accuracy": 0.5}}, data="made")
    report = json.loads((run.path / "score.json").read_text())
    known = {"seed": 3, "epochs": 2, "parameters": 3, "artefact_bytes": 123, "data": "made"}
    assert known.items() <= report.items() and report["score"] == {"accuracy": 0.75}
    assert report["others"] == {"in the dark": {"accuracy": 0.5}}
    assert report["command"] == "python examples/colours.py --output run --seed 3"
    assert 0 < report["minutes"]["training"] <= report["minutes"]["whole"]
    assert report["minutes"]["processor"] > 0
    told = capsys.readouterr().out
    assert re.search(r"accuracy 0\.75; in the dark: accuracy 0\.5; [\d.]+ minutes", told)


def test_a_trained_model_is_measured_again(tmp_path):
    with TaskRun(arguments(tmp_path)) as run:
        model = compiled()
        run.fit(model, *DATA)  # the first of two stages
        trained = run.fit(model, *DATA, epochs=2)
        (weights, _), path = model.get_weights(), run.path
    with TaskRun(arguments(tmp_path, "--trained")) as run:
        model = compiled()
        run.fit(model, *DATA)
        again = run.fit(model, *DATA, epochs=2)
        run.write_score(model, {"accuracy": 0.5})
    np.testing.assert_array_equal(model.get_weights()[0], weights)
    assert again.history == trained.history and len(again.history["loss"]) == 2
    report = json.loads((path / "score.json").read_text("utf-8"))
    earlier = json.loads((path / "training.json").read_text("utf-8"))["minutes"]
    assert report["epochs"] == 3 and report["command"] == "python examples/colours.py --output run"
    assert report["minutes"]["training"] == earlier["training"] < report["minutes"]["whole"]
    assert report["minutes"]["processor"] > earlier["processor"]


def test_trained_refuses_missing_and_other_models(tmp_path):
    for message, more in (("holds no trained model", []), ("of another command", ["--seed", "5"])):
        with pytest.raises(SystemExit, match=message):
            with TaskRun(arguments(tmp_path, "--trained", *more)) as run:
                run.fit(compiled(), *DATA)
        with TaskRun(arguments(tmp_path)) as run:
            run.fit(compiled(), *DATA)
    with TaskRun(arguments(tmp_path)) as run:
        for _ in range(2):
            run.fit(compiled(), *DATA)
    with pytest.raises(SystemExit, match="trained 2 models, .* only the last"):
        with TaskRun(arguments(tmp_path, "--trained")) as run:
            run.fit(compiled(), *DATA)


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
