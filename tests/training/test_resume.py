"""Resumed runs of `Run`: equal results, messages, signals, refused settings and learning rates.

Killed runs train in other processes. Called as a script, this file forks one for each life of the
run. Importing it must not run TensorFlow, because a fork does not copy its threads.
"""

import functools
import itertools
import os
import pathlib
import signal
import sys
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
from helpers import processes, tiers
from helpers.resuming import (
    LINES,
    Crash,
    assert_equal_weights,
    crash,
    dataset,
    fit,
    fit_until,
    make_model,
    make_translator,
    names,
    pairs,
    stop_at,
)

import keras_transformer as kt

# Graphs read data sets, also in tests that run eagerly.
pytestmark = pytest.mark.filterwarnings("ignore:Even though the `tf.config")


def early_stopping(patience, **arguments):
    """Returns a callback that waits for a higher loss. The loss falls, so epoch 1 is the best."""
    return keras.callbacks.EarlyStopping("loss", mode="max", patience=patience, **arguments)


def halving():
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)


def updates(model):
    return int(model.optimizer.iterations)


def stopping(model):
    """Returns an action that stops the training of the model."""
    return lambda: setattr(model, "stop_training", True)


def transformed():
    data = pairs()
    return {"x": data.map(lambda x, y: (x, y)), "data": data}


def averaged():
    return make_model(use_ema=True, ema_momentum=0.5)


def replicated():
    import tensorflow as tf

    return make_model(strategy=tf.distribute.MirroredStrategy(["CPU:0"]))


def clipped():
    return kt.training.prepare(make_model(global_clipnorm=0.5), 2)


def accumulated():
    return kt.training.prepare(make_translator(), 2)


def swaps():
    return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]


class Broken(NamedTuple):
    """A run, and the epoch and the batch where it is broken; batch `None` is the epoch's end."""

    epoch: int
    batch: int | None
    make: Callable[[], keras.Model] = make_model
    data: Callable[[], dict] = lambda: {"x": dataset()}
    every: int = 2
    callbacks: Callable[[], list] = list
    tolerance: float = 0.0


BROKEN = {
    "within an epoch": Broken(1, 3),
    "averaged": Broken(1, 0, averaged),
    "end of an epoch": Broken(1, None),
    "accumulated": Broken(1, 3, clipped),
    "strategy": Broken(1, 3, replicated),
    # The last update of an epoch has one batch.
    "last_shorter_update": Broken(0, None, accumulated, lambda: {"x": pairs()}, every=1),
    "transformed dataset": Broken(1, 3, make_translator, transformed),
    # Weights are saved before their average replaces them. Keras swaps by sums, which round.
    "swapped": Broken(1, 2, averaged, callbacks=swaps, tolerance=1e-5),
}
QUICK = ["accumulated", "last_shorter_update", "transformed dataset", "swapped"]


# Resumed runs


@pytest.mark.full
@pytest.mark.parametrize("name", tiers.quick(BROKEN, *QUICK))
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, name):
    epoch, batch, make, data, every, callbacks, tolerance = BROKEN[name]
    whole, broken, resumed = make(), make(), make()
    options = {"epochs": 3, "verbose": 0, "shuffle": False, "callbacks": callbacks()}
    history = whole.fit(data()["x"], **options).history
    fit_until(epoch, batch, broken, tmp_path, *callbacks(), every=every, **data())
    rest = fit(resumed, tmp_path, *callbacks(), every=every, **data()).history
    assert_equal_weights(whole, resumed, tolerance)
    for metric, values in rest.items():  # metrics of the interrupted epoch continue
        expected = history[metric][-len(values) :]
        np.testing.assert_allclose(values, expected, rtol=1e-6 + tolerance, err_msg=metric)


@functools.cache
def uninterrupted():
    """Returns model and history of three epochs without checkpoints."""
    model = make_model()
    return model, model.fit(dataset(), epochs=3, verbose=0, shuffle=False).history


@pytest.mark.full
@pytest.mark.parametrize(
    "validated",
    [
        pytest.param(False, id="plain", marks=pytest.mark.full),
        pytest.param(True, id="with validation"),
    ],
)
def test_a_run_stopped_within_an_epoch_continues_there(tmp_path, capsys, validated):
    validation = dataset() if validated else None
    whole, expected = uninterrupted()
    resumed, first = make_model(), make_model()
    fit(first, tmp_path, stop_at(1, 2, stopping(first)), validation=validation)
    assert capsys.readouterr().out == ""
    found = fit(resumed, tmp_path, validation=validation).history
    path = tmp_path / "checkpoint-00001-00000003.npz"
    assert capsys.readouterr().out == f"Continuing at epoch 2, batch 4, from {path}.\n"
    assert found["loss"] == expected["loss"][1:]
    assert_equal_weights(whole, resumed)


@pytest.mark.full
def test_best_weights_and_counts_of_callbacks_are_resumed(tmp_path):
    def start(model, folder, until=None, epochs=3):
        stop = early_stopping(4, restore_best_weights=True)
        options = {"epochs": epochs, "stateful": [stop]}
        if until is not None:
            return fit_until(*until, model, folder, stop, **options)
        return stop, fit(model, folder, stop, **options)

    whole, resumed = make_model(), make_model()
    start(whole, tmp_path / "whole")
    start(make_model(), tmp_path / "run", until=(1, 1))
    start(resumed, tmp_path / "run")
    assert_equal_weights(whole, resumed)  # of the first epoch, which is the best
    stop, history = start(make_model(), tmp_path / "run", epochs=9)
    assert history.epoch == [3, 4] and stop.wait == 4


@pytest.mark.usefixtures("eager")
def test_the_smallest_change_of_a_callback_keeps_its_sign(tmp_path):
    def stop():  # the loss falls by less than `min_delta`
        return keras.callbacks.EarlyStopping("loss", patience=1, min_delta=1e3)

    first, second = stop(), stop()
    fit_until(1, 1, make_model(), tmp_path, first, epochs=9, stateful=[first])
    assert fit(make_model(), tmp_path, second, epochs=9, stateful=[second]).epoch == [1]


@pytest.mark.full
def test_a_finished_run_prints_so_and_continues_with_more_epochs(tmp_path, capsys):
    longer = make_model()
    fit(make_model(), tmp_path, epochs=2)
    again = make_model()
    assert fit(again, tmp_path, epochs=2).epoch == []
    assert "Nothing to train: the run in" in (text := capsys.readouterr().out)
    assert "complete after 2 epochs" in text
    assert fit(longer, tmp_path, epochs=3).epoch == [2]
    assert_equal_weights(uninterrupted()[0], longer)
    plain = again.fit(dataset(), epochs=1, verbose=0, shuffle=False)
    assert plain.epoch == [0]  # a later `fit` without the callback begins at 0


@pytest.mark.full
@pytest.mark.usefixtures("eager")
def test_a_run_that_stopped_early_continues_with_more_epochs(tmp_path, capsys):
    for patience, epochs, expected in (
        (1, 5, [0, 1]),
        (1, 5, []),
        (2, 9, [2, 3]),  # patience begins anew
        (9, 10, [4, 5, 6, 7, 8, 9]),
    ):
        stop = early_stopping(patience)
        assert fit(make_model(), tmp_path, stop, epochs=epochs, stateful=[stop]).epoch == expected
        if not expected:
            assert "stopped early after 2 epochs" in (text := capsys.readouterr().out)
            assert "more than 5 epochs" in text


def test_stop_after_the_last_batch_ends_the_run(tmp_path, capsys):
    model = make_model()
    fit(model, tmp_path, stop_at(1, 4, stopping(model)))
    assert fit(make_model(), tmp_path).epoch == []
    assert "stopped early after 2 epochs" in capsys.readouterr().out


@pytest.mark.full("9-False")
@pytest.mark.parametrize(
    ("patience", "stateful"),
    tiers.quick(itertools.product([1, 9], [True, False]), (1, True), (9, False)),
)
@pytest.mark.usefixtures("eager")
def test_a_finished_run_restores_the_best_weights(tmp_path, patience, stateful):
    def start(model):
        stop = early_stopping(patience, restore_best_weights=True)
        return fit(model, tmp_path, stop, stateful=[stop] if stateful else [])

    first, again = make_model(), make_model()
    assert len(start(first).epoch) == (2 if patience == 1 else 3)
    assert start(again).epoch == []
    assert_equal_weights(first, again)


# Interrupted fits


@pytest.mark.full
@pytest.mark.parametrize("kind", tiers.quick(["our data", "other data"], "our data"))
@pytest.mark.usefixtures("eager")
def test_fit_after_a_resumed_fit_that_crashed_starts_afresh(tmp_path, kind):
    data, model = pairs(), make_translator()
    assert data.batches.batches_per_epoch >= 5
    options = {"every": 1, "x": data if kind == "our data" else data.prefetch(1)}
    fit_until(1, 2, make_translator(), tmp_path, **options)
    fit_until(1, 4, model, tmp_path, **options)  # within the resumed epoch
    before = updates(model)
    assert model.fit(data.take(2), epochs=3, verbose=0).epoch == [0, 1, 2]
    assert updates(model) - before == 3 * 2


@pytest.mark.usefixtures("eager")
def test_fit_after_a_resumed_fit_that_crashed_at_its_start_runs_all_epochs(tmp_path):
    model = make_model()
    fit(model, tmp_path, epochs=2)
    late = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: crash())
    with pytest.raises(Crash):
        fit(model, tmp_path, late)
    assert model.fit(dataset(), epochs=3, verbose=0, shuffle=False).epoch == [0, 1, 2]


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_after_the_update_and_then_stops(tmp_path, number, capsys):
    before = signal.getsignal(number)
    interrupt = stop_at(1, 2, lambda: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt, match="start again to continue"):
        fit(make_model(), tmp_path, interrupt)
    assert signal.getsignal(number) is before
    assert "A second signal stops at once" in capsys.readouterr().out
    assert (tmp_path / "checkpoint-00001-00000003.npz").exists()


def test_an_interrupt_after_a_crashed_fit_acts_at_once(tmp_path, capsys):
    model = make_model()
    fit_until(0, 1, model, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    fit_until(0, 1, model, tmp_path)
    before = updates(model)
    interrupt = stop_at(0, 2, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # of another fit of the same model
        model.fit(dataset(), verbose=0, shuffle=False, callbacks=[interrupt])
    assert updates(model) - before == 3
    assert "Saving after this update" not in capsys.readouterr().out


@pytest.mark.full
def test_interrupt_while_fit_builds_its_step_or_ends_is_not_lost(tmp_path):
    class Interrupting:
        def __del__(self):  # Python and TensorFlow lose errors that are raised here
            signal.raise_signal(signal.SIGINT)

    model = make_model()
    make = model.make_train_function

    def interrupted():
        Interrupting()  # dropped at once
        return make()

    model.make_train_function = interrupted
    with pytest.raises(KeyboardInterrupt, match="start again to continue"):
        fit(model, tmp_path)
    assert updates(model) == 1
    assert names(tmp_path) == ["checkpoint-00000-00000001.npz"]
    late = keras.callbacks.LambdaCallback(
        on_train_end=lambda logs: signal.raise_signal(signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        fit(make_model(), tmp_path, late, epochs=1)


def test_ignored_interrupt_stays_ignored(tmp_path):
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupt = stop_at(0, 1, lambda: signal.raise_signal(signal.SIGINT))
        assert fit(make_model(), tmp_path, interrupt, epochs=2).epoch == [0, 1]
    finally:
        signal.signal(signal.SIGINT, handler)


# Refused changes


@pytest.mark.full
@pytest.mark.usefixtures("eager")
def test_run_with_other_settings_is_refused(tmp_path):
    fit(make_model(), tmp_path, epochs=1)
    for changed, message in (
        ({"size": 5}, "output_dim was 7, now 5"),
        ({"dropout": 0.5}, r"rate was 0\.3, now 0\.5"),
        ({"use_ema": True}, "optimizer use_ema was False, now True"),
        ({"smoothing": 0.1}, r"loss label_smoothing was 0\.0, now 0\.1"),
    ):
        with pytest.raises(ValueError, match=rf"{message}.*delete .* to start anew"):
            fit(make_model(**changed), tmp_path)
    assert fit(make_model(), tmp_path).epoch == [1, 2]


OTHER_DATA = {
    "seed": ({"seed": 3}, "seed was 0, now 3"),
    "size": ({"tokens_per_batch": 24}, "tokens_per_batch was 12, now 24"),
    "lines": ({"lines": LINES[1:]}, "tokens was"),
    # Data of the same size, which only its content tells apart.
    "order": ({"lines": LINES[::-1]}, "content was"),
    "buckets": ({"bucket_boundaries": [3, 6]}, "content was"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", tiers.quick(OTHER_DATA, "lines", "order"))
@pytest.mark.usefixtures("eager")
def test_other_data_is_refused_within_an_epoch(tmp_path, name):
    changed, message = OTHER_DATA[name]
    options = {"every": 1, "epochs": 2}
    fit_until(0, 2, make_translator(), tmp_path, x=pairs(), **options)
    with pytest.raises(ValueError, match=rf"other data: .*{message}.*delete .* to start anew"):
        fit(make_translator(), tmp_path, x=pairs(**changed), **options)
    fit(make_translator(), tmp_path, x=pairs(), **options)
    assert fit(make_translator(), tmp_path, x=pairs(**changed), **options).epoch == []


@pytest.mark.full
def test_other_number_of_batches_is_refused_within_an_epoch(tmp_path):
    options = {"every": 2, "epochs": 2}
    fit_until(1, 3, make_model(), tmp_path, **options)
    with pytest.raises(ValueError, match=r"other data: batches was 5, now 3"):
        fit(make_model(), tmp_path, x=dataset().take(3), **options)
    assert fit(make_model(), tmp_path, **options).epoch == [1]
    options["epochs"] = 3  # at the beginning of an epoch
    assert fit(make_model(), tmp_path, x=dataset().take(3), **options).epoch == [2]


@pytest.mark.full
@pytest.mark.usefixtures("eager")
def test_a_resumed_run_uses_the_new_settings_of_a_callback(tmp_path):
    for patience, epochs, expected in ((1, 1, [0]), (2, 9, [1, 2])):
        stop = early_stopping(patience)
        assert fit(make_model(), tmp_path, stop, epochs=epochs, stateful=[stop]).epoch == expected
    with pytest.raises(ValueError, match=r"progress of \['EarlyStopping'\].*`stateful` lists \[\]"):
        fit(make_model(), tmp_path)


def test_unfit_models_and_backends_are_refused(tmp_path, monkeypatch):
    model = keras.Sequential([keras.layers.Embedding(11, 7), keras.layers.Dense(11)])
    with pytest.raises(ValueError, match="needs a compiled model"):
        fit(model, tmp_path)
    model.compile("adam", kt.SequenceCrossentropy())
    with pytest.raises(ValueError, match="not built.*Call it once on a batch"):
        fit(model, tmp_path)
    model(np.zeros((3, 5), "int32"))
    assert fit(model, tmp_path, epochs=1).epoch == [0]
    model = make_model()
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="Keras runs on jax"):
        patch.setattr(keras.backend, "backend", lambda: "jax")
        fit(model, tmp_path)
    assert updates(model) == 0


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model = make_model()
    spoil = stop_at(1, None, lambda: model.layers[1].embeddings.assign(np.full((11, 7), np.nan)))
    with pytest.raises(ValueError, match="not finite any more"):
        fit(model, tmp_path, spoil)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00001-00000000.npz"]


# The learning rate


@pytest.mark.full
@pytest.mark.usefixtures("eager")
def test_a_changed_learning_rate_is_used_and_printed(tmp_path, capsys):
    model = make_model()
    fit(model, tmp_path, halving(), epochs=1)
    model.optimizer.learning_rate = 0.0625  # between two fits
    for epochs, each, rate, printed in (
        (2, model, 0.0625, "learning_rate was 0.1"),
        (3, make_model(rate=0.0625), 0.0625, ""),
        (4, make_model(rate=0.03125), 0.03125, "learning_rate was 0.0625"),
    ):
        fit(each, tmp_path, epochs=epochs)
        assert float(each.optimizer.learning_rate) == pytest.approx(rate)
        text = capsys.readouterr().out
        assert printed in text and bool(printed) == ("learning_rate was" in text)
    schedule = kt.InverseSquareRootWarmup(peak=0.5, warmup_steps=3)
    assert fit(make_model(rate=schedule), tmp_path, epochs=5).epoch == [4]
    assert "InverseSquareRootWarmup" in capsys.readouterr().out


@pytest.mark.full
def test_a_learning_rate_changed_by_training_is_no_changed_setting(tmp_path, capsys):
    whole, model, resumed = make_model(), make_model(), make_model()
    fit(whole, tmp_path / "whole", halving(), epochs=4)
    fit_until(1, 1, model, tmp_path / "run", halving(), epochs=2)
    for epochs in (2, 3):
        fit(model, tmp_path / "run", halving(), epochs=epochs)
    fit(resumed, tmp_path / "run", halving(), epochs=4)
    assert float(resumed.optimizer.learning_rate) == pytest.approx(0.1 / 16)
    assert_equal_weights(whole, resumed)
    kept = make_model()
    fit(kept, tmp_path / "run", epochs=5)  # without the callback, the rate stays
    assert float(kept.optimizer.learning_rate) == pytest.approx(0.1 / 16)
    assert "learning_rate was" not in capsys.readouterr().out


# Killed runs


def live(folder, name, *extra):
    """Trains on batches of pairs. A process that survives writes the weights."""
    model = make_translator()
    fit(model, folder / name, *extra, every=3, x=pairs())
    np.savez(folder / f"{name}.npz", *model.get_weights())


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def killed_while_writing(folder):
    os.replace = lambda *_: kill()
    live(folder, "run")


def lives(folder):
    for number, life in enumerate(
        [
            lambda: live(folder, "whole"),
            lambda: live(folder, "run", stop_at(1, 4, kill)),
            lambda: killed_while_writing(folder),
            lambda: live(folder, "run"),
        ]
    ):
        child = os.fork()
        if not child:
            life()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(f"life {number}: signal {os.WTERMSIG(status)}, code {status >> 8}", flush=True)


@pytest.mark.full
@pytest.mark.slow
def test_a_run_killed_twice_equals_an_uninterrupted_one(tmp_path):
    done = processes.run(__file__, tmp_path)
    lines = [line for line in done.stdout.splitlines() if line.startswith("life")]
    signals = (0, 9, 9, 0)
    expected = [f"life {i}: signal {number}, code 0" for i, number in enumerate(signals)]
    assert lines == expected, done.stderr[-3000:]
    assert not list((tmp_path / "run").glob("*.partial"))  # the fourth life removed the third's
    whole, run = (np.load(tmp_path / f"{name}.npz") for name in ("whole", "run"))
    for name in whole.files:
        np.testing.assert_array_equal(whole[name], run[name])


if __name__ == "__main__":
    lives(pathlib.Path(sys.argv[1]))
