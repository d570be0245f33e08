"""A run that goes on says so, refuses other settings, and leaves nothing behind in the process."""

import io
import json
import os
import pathlib
import signal
import zipfile

import keras
import numpy as np
import pytest
from support.resuming import Crash, assert_equal_weights, crash, dataset, fit, make_model, stop_at
from support.run_folder import HistoryLog, RunFolder

import keras_transformer as kt
from keras_transformer.training.checkpoints import read_checkpoint, write_checkpoint

LINES = ["ab", "abcd", "b", "bca", "dd", "cab", "a", "bad", "ac", "dab", "bb", "c", "ddd"]


class Letters:
    """A tokenizer whose tokens are letters, "a" being 4."""

    def encode(self, lines):
        return [[ord(letter) - 93 for letter in line] for line in lines]


def early_stopping(**arguments):
    """Stops at the first epoch whose loss is not above that of all others, so at the second one."""
    return keras.callbacks.EarlyStopping("loss", mode="max", **arguments)


def train(model, folder, *callbacks, epochs=3, stateful=(), **arguments):
    saved = kt.TrainingCheckpoint(folder, stateful=stateful, **arguments)
    callbacks = [*callbacks, saved]
    return model.fit(dataset(), epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks)


def updates(model):
    return int(model.optimizer.iterations)


# A fit that broke off


@pytest.mark.parametrize("ours", [True, False], ids=["our data", "other data"])
def test_fit_after_a_resumed_fit_that_broke_off_trains_on_its_own_data(tmp_path, ours):
    data = kt.translation_batches(LINES, [line[::-1] for line in LINES], Letters(), 12)
    assert data.batches.batches_per_epoch >= 5

    def start(model, *callbacks):
        saved = kt.TrainingCheckpoint(tmp_path, every=1, data=data if ours else None)
        model.fit(data, epochs=3, verbose=0, shuffle=False, callbacks=[*callbacks, saved])

    def make():
        model = kt.Transformer(11, num_layers=1, d_model=6, num_heads=2, d_ff=7)
        model.compile("adam", kt.SequenceCrossentropy())
        return model

    with pytest.raises(Crash):
        start(make(), stop_at(1, 2, crash))
    model = make()
    with pytest.raises(Crash):  # within the epoch that goes on
        start(model, stop_at(1, 4, crash))
    before = updates(model)
    seen = []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    other = data.take(2)
    model.fit(other, epochs=3, verbose=0, shuffle=False, callbacks=[watch])
    assert seen == [0, 1, 2]
    assert updates(model) - before == 3 * 2


def test_interrupt_after_a_fit_that_broke_off_acts_at_once(tmp_path, capsys):
    model = make_model()
    with pytest.raises(Crash):
        train(model, tmp_path, stop_at(0, 1, crash))
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(Crash):
        train(model, tmp_path, stop_at(0, 1, crash))
    before = updates(model)
    interrupt = stop_at(0, 2, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # of another fit of the same model
        model.fit(dataset(), verbose=0, shuffle=False, callbacks=[interrupt])
    assert updates(model) - before == 3
    assert "Saving after this update" not in capsys.readouterr().out


def test_interrupt_while_fit_builds_its_step_is_not_lost(tmp_path):
    class Interrupting:
        def __del__(self):  # Python and TensorFlow lose what is raised in places like this one
            signal.raise_signal(signal.SIGINT)

    model = make_model()
    make = model.make_train_function

    def interrupted():
        Interrupting()  # dropped at once
        return make()

    model.make_train_function = interrupted
    with pytest.raises(KeyboardInterrupt, match="start again to continue"):
        train(model, tmp_path)
    assert updates(model) == 1
    assert names(tmp_path) == ["checkpoint-00000-00000001.npz"]


def test_interrupt_while_training_ends_is_not_lost(tmp_path):
    late = keras.callbacks.LambdaCallback(
        on_train_end=lambda logs: signal.raise_signal(signal.SIGINT)
    )
    model = make_model()
    with pytest.raises(KeyboardInterrupt):
        train(model, tmp_path, late, epochs=1)


def test_ignored_interrupt_stays_ignored(tmp_path):
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupt = stop_at(0, 1, lambda: signal.raise_signal(signal.SIGINT))
        assert train(make_model(), tmp_path, interrupt, epochs=2).epoch == [0, 1]
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_signals_are_caught_in_fit_only(tmp_path, call):
    model, saved = make_model(), kt.TrainingCheckpoint(tmp_path)
    model.fit(dataset(), verbose=0, shuffle=False)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    getattr(model, call)(dataset(), verbose=0, callbacks=[saved])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_resumed_fit_that_breaks_off_at_its_start_leaves_the_next_one_whole(tmp_path):
    model = make_model()
    train(model, tmp_path, epochs=2)
    late = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: crash())
    callbacks = [kt.TrainingCheckpoint(tmp_path), late]
    with pytest.raises(Crash):
        model.fit(dataset(), epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
    assert model.fit(dataset(), epochs=3, verbose=0, shuffle=False).epoch == [0, 1, 2]


@pytest.mark.parametrize("validation", [None, dataset()], ids=["plain", "with validation"])
def test_stop_within_an_epoch_is_continued_there(tmp_path, capsys, validation):
    def start(model, folder, *callbacks):
        saved = kt.TrainingCheckpoint(folder)
        options = {"verbose": 0, "shuffle": False, "validation_data": validation}
        return model.fit(dataset(), epochs=3, callbacks=[*callbacks, saved], **options).history

    whole, resumed, first = make_model(), make_model(), make_model()
    expected = start(whole, tmp_path / "whole")
    start(first, tmp_path / "run", stop_at(1, 2, lambda: setattr(first, "stop_training", True)))
    capsys.readouterr()
    found = start(resumed, tmp_path / "run")
    assert "Continuing at epoch 2, batch 4" in capsys.readouterr().out
    assert found["loss"] == expected["loss"][1:]
    assert_equal_weights(whole, resumed)


def test_stop_after_the_last_batch_ends_the_run(tmp_path, capsys):
    model = make_model()
    train(model, tmp_path, stop_at(1, 4, lambda: setattr(model, "stop_training", True)))
    assert train(make_model(), tmp_path).epoch == []
    assert "stopped early after 2 epochs" in capsys.readouterr().out


# What a start says


def test_start_says_where_it_continues(tmp_path, capsys):
    with pytest.raises(Crash):
        train(make_model(), tmp_path, stop_at(1, 3, crash), every=2)
    assert capsys.readouterr().out == ""
    train(make_model(), tmp_path)
    path = tmp_path / "checkpoint-00001-00000002.npz"
    assert capsys.readouterr().out == f"Continuing at epoch 2, batch 3, from {path}.\n"


def test_finished_run_says_so_and_goes_on_if_asked_for_more(tmp_path, capsys):
    train(make_model(), tmp_path, epochs=2)
    assert train(make_model(), tmp_path, epochs=2).epoch == []
    text = capsys.readouterr().out
    assert "Nothing to train" in text and "complete after 2 epochs" in text
    whole, longer = make_model(), make_model()
    assert train(longer, tmp_path, epochs=3).epoch == [2]
    train(whole, tmp_path / "whole", epochs=3)
    assert_equal_weights(whole, longer)


def test_run_that_stopped_early_goes_on_if_asked_for_more(tmp_path, capsys):
    assert train(make_model(), tmp_path, early_stopping(patience=1), epochs=5).epoch == [0, 1]
    assert train(make_model(), tmp_path, early_stopping(patience=1), epochs=5).epoch == []
    text = capsys.readouterr().out
    assert "stopped early after 2 epochs" in text and "more than 5 epochs" in text
    assert train(make_model(), tmp_path, early_stopping(patience=9), epochs=6).epoch == [2, 3, 4, 5]


def test_patience_begins_anew_after_an_early_stop(tmp_path):
    for epochs, expected in ((9, [0, 1, 2]), (10, [3, 4])):
        stop = early_stopping(patience=2)
        assert train(make_model(), tmp_path, stop, epochs=epochs, stateful=[stop]).epoch == expected


@pytest.mark.parametrize("stateful", [True, False], ids=["stateful", "not stateful"])
@pytest.mark.parametrize("patience", [1, 9], ids=["early stop", "last epoch"])
def test_finished_run_gives_the_best_weights_again(tmp_path, patience, stateful):
    def start(model):
        stop = early_stopping(patience=patience, restore_best_weights=True)
        return train(model, tmp_path, stop, stateful=[stop] if stateful else [])

    first, again = make_model(), make_model()
    assert len(start(first).epoch) == (2 if patience == 1 else 3)
    assert start(again).epoch == []
    assert_equal_weights(first, again)


# What may not change


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dropout": 0.5}, r"rate was 0\.3, now 0\.5"),
        ({"use_ema": True}, "optimizer use_ema was False, now True"),
        ({"smoothing": 0.1}, r"loss label_smoothing was 0\.0, now 0\.1"),
    ],
)
def test_run_with_other_settings_is_refused(tmp_path, changed, message):
    train(make_model(), tmp_path, epochs=1)
    with pytest.raises(ValueError, match=rf"{message}.*delete .* to start anew"):
        train(make_model(**changed), tmp_path)
    assert train(make_model(), tmp_path).epoch == [1, 2]


def test_changed_learning_rate_is_used_and_said(tmp_path, capsys):
    train(make_model(), tmp_path, epochs=1)
    model = make_model(rate=0.025)
    train(model, tmp_path)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.025)
    assert "learning_rate was 0.1" in capsys.readouterr().out
    schedule = kt.InverseSquareRootWarmup(peak=0.5, warmup_steps=3)
    assert train(make_model(rate=schedule), tmp_path, epochs=4).epoch == [3]
    assert "InverseSquareRootWarmup" in capsys.readouterr().out


def test_learning_rate_that_training_has_changed_goes_on(tmp_path, capsys):
    def start(model, epochs):
        lower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
        train(model, tmp_path, *([lower] if epochs == 1 else []), epochs=epochs)

    start(make_model(), 1)
    resumed = make_model()
    start(resumed, 2)
    assert float(resumed.optimizer.learning_rate) == pytest.approx(0.05)
    assert "learning_rate was" not in capsys.readouterr().out


def halving():
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)


def test_learning_rate_that_training_has_changed_is_not_taken_for_a_setting(tmp_path, capsys):
    whole, model, resumed = make_model(), make_model(), make_model()
    train(whole, tmp_path / "whole", halving(), epochs=4)
    with pytest.raises(Crash):
        train(model, tmp_path / "run", halving(), stop_at(1, 1, crash), epochs=2)
    for epochs in (2, 3):
        train(model, tmp_path / "run", halving(), epochs=epochs)
    train(resumed, tmp_path / "run", halving(), epochs=4)
    assert "learning_rate was" not in capsys.readouterr().out
    assert float(resumed.optimizer.learning_rate) == pytest.approx(0.1 / 16)
    assert_equal_weights(whole, resumed)


def test_learning_rate_that_is_set_between_two_fits_is_used_and_said(tmp_path, capsys):
    model = make_model()
    train(model, tmp_path, halving(), epochs=1)
    model.optimizer.learning_rate = 0.02
    train(model, tmp_path, epochs=2)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.02)
    assert "learning_rate was 0.1" in capsys.readouterr().out
    resumed = make_model(rate=0.02)
    train(resumed, tmp_path, epochs=3)
    assert "learning_rate was" not in capsys.readouterr().out


def test_best_weights_are_those_of_a_run_that_did_not_break_off(tmp_path):
    def start(model, folder, *callbacks):
        stop = early_stopping(patience=9, restore_best_weights=True)
        train(model, folder, *callbacks, stop, stateful=[stop])

    whole, resumed = make_model(), make_model()
    start(whole, tmp_path / "whole")
    with pytest.raises(Crash):
        start(make_model(), tmp_path / "run", stop_at(1, 1, crash))
    start(resumed, tmp_path / "run")
    assert_equal_weights(whole, resumed)  # those of the first epoch


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 3}, "seed was 0, now 3"),
        ({"tokens_per_batch": 24}, "tokens_per_batch was 12, now 24"),
        ({"lines": LINES[1:]}, "tokens was"),
    ],
)
def test_other_data_is_refused_within_an_epoch(tmp_path, changed, message):
    def start(*callbacks, lines=LINES, tokens_per_batch=12, seed=0):
        data = kt.translation_batches(lines, lines, Letters(), tokens_per_batch, seed=seed)
        keras.utils.set_random_seed(31)
        model = kt.Transformer(11, num_layers=1, d_model=6, num_heads=2, d_ff=7)
        model.compile("adam", kt.SequenceCrossentropy())
        saved = kt.TrainingCheckpoint(tmp_path, every=1, data=data)
        return model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[*callbacks, saved])

    with pytest.raises(Crash):
        start(stop_at(0, 2, crash))
    with pytest.raises(ValueError, match=rf"other data: .*{message}.*delete .* to start anew"):
        start(**changed)
    start()
    assert start(**changed).epoch == []


def test_other_number_of_batches_is_refused_within_an_epoch(tmp_path):
    def start(batches, *callbacks, epochs=2):
        callbacks = [*callbacks, kt.TrainingCheckpoint(tmp_path, every=2)]
        options = {"verbose": 0, "shuffle": False, "callbacks": callbacks}
        return make_model().fit(dataset().take(batches), epochs=epochs, **options)

    with pytest.raises(Crash):
        start(5, stop_at(1, 3, crash))
    with pytest.raises(ValueError, match=r"other data: batches was 5, now 3"):
        start(3)
    assert start(5).epoch == [1]
    assert start(3, epochs=3).epoch == [2]  # at the beginning of an epoch


def test_model_that_is_not_built_is_refused(tmp_path):
    model = keras.Sequential([keras.layers.Embedding(11, 7), keras.layers.Dense(11)])
    model.compile("adam", kt.SequenceCrossentropy())
    with pytest.raises(ValueError, match="not built.*Call it once on a batch"):
        train(model, tmp_path)
    model(np.zeros((3, 5), "int32"))
    assert train(model, tmp_path, epochs=1).epoch == [0]


def test_other_backends_are_refused(tmp_path, monkeypatch):
    model = make_model()
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="Keras runs on jax"):
        patch.setattr(keras.backend, "backend", lambda: "jax")
        train(model, tmp_path)
    assert updates(model) == 0


def test_settings_of_a_callback_are_those_of_the_new_start(tmp_path):
    stop = early_stopping(patience=1)
    train(make_model(), tmp_path, stop, epochs=1, stateful=[stop])
    stop = early_stopping(patience=2)
    assert train(make_model(), tmp_path, stop, epochs=9, stateful=[stop]).epoch == [1, 2]


def test_other_stateful_callbacks_than_saved_are_refused(tmp_path):
    stop = early_stopping(patience=9)
    train(make_model(), tmp_path, stop, epochs=1, stateful=[stop])
    with pytest.raises(ValueError, match=r"progress of \['EarlyStopping'\].*`stateful` lists \[\]"):
        train(make_model(), tmp_path)


# Files


def names(folder):
    return sorted(path.name for path in folder.glob("*.npz"))


def test_keep_counts_whole_checkpoints(tmp_path):
    fit(make_model(), tmp_path, epochs=2, keep=2)
    older, newest = names(tmp_path)
    (tmp_path / newest).write_bytes(b"damaged")
    with pytest.raises(Crash):
        fit(make_model(), tmp_path, stop_at(1, None, crash), every=1, keep=2)
    assert names(tmp_path) == [older, "checkpoint-00001-00000005.npz"]
    for name in names(tmp_path):
        read_checkpoint(tmp_path / name)


def test_damaged_final_weights_are_written_again(tmp_path, caplog):
    first, again = make_model(), make_model()
    train(first, tmp_path, epochs=1)
    final = tmp_path / "final" / "weights-00001.npz"
    final.write_bytes(b"damaged")
    assert train(again, tmp_path, epochs=1).epoch == []
    assert f"{final} is damaged" in caplog.text
    assert_equal_weights(first, again)
    read_checkpoint(final)


def test_final_weights_of_a_deleted_run_are_not_used(tmp_path):
    train(make_model(rate=0.5), tmp_path, epochs=1)
    for path in tmp_path.glob("*.npz"):
        path.unlink()
    new, again = make_model(), make_model()
    late = keras.callbacks.LambdaCallback(on_train_end=lambda logs: crash())
    with pytest.raises(Crash):
        train(new, tmp_path, late, epochs=1)
    train(again, tmp_path, epochs=1)
    assert_equal_weights(new, again)


def test_folder_with_the_name_of_a_checkpoint_stays(tmp_path):
    folder = tmp_path / "checkpoint-00000-00000003.npz"
    folder.mkdir()
    assert train(make_model(), tmp_path, epochs=4).epoch == [0, 1, 2, 3]
    assert train(make_model(), tmp_path, epochs=5).epoch == [4]
    assert folder.is_dir()


def test_averages_are_of_the_new_run_in_the_folder(tmp_path):
    for epochs in (5, 2):
        model = make_model()
        averaging = kt.CheckpointAveraging(tmp_path, last=3)
        model.fit(dataset(), epochs=epochs, verbose=0, shuffle=False, callbacks=[averaging])
    assert names(tmp_path) == ["weights-00000.npz", "weights-00001.npz"]


class Twins(keras.Model):
    """Two layers of the same shape, made in some order; without a configuration."""

    def __init__(self, order):
        super().__init__()
        self.parts = {name: keras.layers.Dense(11, name=name) for name in order}
        for layer in self.parts.values():
            layer.build((None, 11))
        self.built = True

    def call(self, ids):
        x = keras.ops.one_hot(ids, 11)
        return self.parts["left"](keras.ops.relu(self.parts["right"](x)))

    def get_config(self):
        raise NotImplementedError

    @classmethod
    def made(cls, *order):
        keras.utils.set_random_seed(31)
        model = cls(order)
        for part in ("left", "right"):
            values = np.random.default_rng(len(part)).normal(size=(11, 11))
            model.parts[part].kernel.assign(values)
        model.compile(keras.optimizers.Adam(0.1), kt.SequenceCrossentropy())
        return model


def test_variables_are_known_by_their_paths(tmp_path):
    whole, resumed = Twins.made("left", "right"), Twins.made("right", "left")
    train(whole, tmp_path / "whole", epochs=2)
    train(Twins.made("left", "right"), tmp_path / "run", epochs=1)
    train(resumed, tmp_path / "run", epochs=2)
    for part in ("left", "right"):
        one, other = whole.parts[part], resumed.parts[part]
        np.testing.assert_allclose(one.kernel.numpy(), other.kernel.numpy(), rtol=1e-5, atol=1e-7)
    arrays, _ = read_checkpoint(tmp_path / "run" / "checkpoint-00002-00000000.npz")
    assert {"weights/left/kernel", "weights/right/kernel"} <= arrays.keys()


def test_layers_that_the_process_has_numbered_are_known_in_another_process(tmp_path):
    def made():
        ids = keras.Input((5,), dtype="int32")
        x = keras.layers.Dense(11)(keras.layers.Embedding(11, 7)(ids))
        model = keras.Model(ids, keras.layers.Dense(11)(keras.layers.Dense(11)(x)))
        model.compile("adam", kt.SequenceCrossentropy())
        return model

    keras.backend.clear_session()
    train(made(), tmp_path, epochs=1)
    keras.layers.Dense(3)
    train(made(), tmp_path, epochs=2)
    arrays, _ = read_checkpoint(tmp_path / "checkpoint-00002-00000000.npz")
    kernels = [name for name in arrays if name.startswith("weights") and "kernel" in name]
    assert sorted(kernels) == [f"weights/{name}/kernel" for name in ("dense", "dense_1", "dense_2")]


def test_pure_bfloat16_is_saved_and_averaged(tmp_path):
    def made():
        keras.utils.set_random_seed(31)
        model = kt.Transformer(11, num_layers=1, d_model=6, num_heads=2, d_ff=7, dtype="bfloat16")
        model.compile(keras.optimizers.SGD(0.1), kt.SequenceCrossentropy())
        return model

    data = kt.translation_batches(LINES, LINES, Letters(), 12)

    def start(model, folder, epochs):
        callbacks = [
            kt.CheckpointAveraging(folder / "weights"),
            kt.TrainingCheckpoint(folder / "state", data=data),
        ]
        model.fit(data, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks)

    whole, resumed = made(), made()
    start(whole, tmp_path / "whole", 2)
    start(made(), tmp_path / "run", 1)
    start(resumed, tmp_path / "run", 2)
    assert_equal_weights(whole, resumed)
    average = kt.average_checkpoints(tmp_path / "run" / "weights")
    assert {str(array.dtype) for array in average} == {"bfloat16"}
    both = [kt.average_checkpoints([path]) for path in (tmp_path / "run" / "weights").iterdir()]
    for mean, one, other in zip(average, *both, strict=True):
        expected = (one.astype("float32") + other.astype("float32")) / 2
        np.testing.assert_allclose(mean.astype("float32"), expected, rtol=1e-2)


def test_checkpoints_are_flushed_to_the_disk(tmp_path, monkeypatch):
    flushed, fsync = [], os.fsync

    def note(opened):
        flushed.append(pathlib.Path(os.readlink(f"/proc/self/fd/{opened}")).name)
        fsync(opened)

    monkeypatch.setattr(os, "fsync", note)
    train(make_model(), tmp_path / "run" / "state", epochs=1)
    name = "checkpoint-00001-00000000.npz"
    # The names of the new folders, the content of the file, and its name.
    assert flushed[: flushed.index(name) + 2] == ["run", tmp_path.name, name, "state"]


def damaged_files():
    def zipped(**members):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in members.items():
                archive.writestr(f"{name}.npy", content)
        return file.getvalue()

    def npy(text):
        file = io.BytesIO()
        np.save(file, np.array(text))
        return file.getvalue()

    huge = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**40,)}
    np.lib.format.write_array_header_1_0(huge, header)
    note = npy(json.dumps({"info": {}, "dtypes": {"weights/a": "float32"}}))
    bomb = io.BytesIO()
    np.savez_compressed(bomb, **{"weights/a": np.zeros(2**20)}, note=np.array("{}"))
    return {
        "huge shape": zipped(**{"weights/a": huge.getvalue(), "note": note}),
        "deep note": zipped(note=npy("[" * 100_000)),
        "note is a list": zipped(note=npy("[]")),
        "note is a number": zipped(note=npy(5)),
        "no dtype": zipped(**{"weights/a": npy(5.0)}, note=npy('{"info": 1, "dtypes": {}}')),
        "compressed": bomb.getvalue(),
        "empty": b"",
    }


@pytest.mark.parametrize("kind", damaged_files())
def test_any_damage_gives_way_to_the_checkpoint_before(tmp_path, kind):
    path = tmp_path / "checkpoint-00007-00000000.npz"
    path.write_bytes(damaged_files()[kind])
    with pytest.raises(ValueError, match="damaged or no checkpoint"):
        read_checkpoint(path)
    train(make_model(), tmp_path / "run", epochs=1)
    path.rename(tmp_path / "run" / path.name)
    assert kt.TrainingCheckpoint(tmp_path / "run").newest()[2]["epoch"] == 1


@pytest.mark.parametrize("note", [{"epoch": 7, "batch": 0}, [], "note"])
def test_checkpoint_of_another_kind_gives_way_to_the_one_before(tmp_path, note):
    train(make_model(), tmp_path, epochs=1)
    write_checkpoint(tmp_path / "checkpoint-00007-00000000.npz", {}, note)
    assert train(make_model(), tmp_path, epochs=2).epoch == [1]


@pytest.mark.parametrize(
    "write",
    [
        kt.TrainingCheckpoint,
        kt.CheckpointAveraging,
        RunFolder,
        HistoryLog,
        lambda path: write_checkpoint(path, {}, {}),
        lambda path: kt.BleuCallback(None, None, ["a"], ["a"], best_path=f"{path}/best.npz"),
    ],
)
def test_path_that_begins_with_a_tilde_is_refused(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"os\.path\.expanduser"):
        write("~/run")
    assert not list(tmp_path.iterdir())
