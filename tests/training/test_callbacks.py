"""Runs that were stopped end as if they had not been; averages, BLEU, throughput, NaN.

The run that is killed trains in processes of its own: this file, called as a script, forks one for
each life of the run.
"""

import logging
import os
import pathlib
import signal
import sys

import numpy as np
import pytest
from support import processes
from support.resuming import Crash, assert_equal_weights, crash, dataset, fit, make_model, stop_at

LINES = ["ab", "abcd", "b", "bca", "dd", "cab", "a", "bad", "ac", "dab", "bb", "c", "ddd"]


class Letters:
    """A tokenizer whose tokens are letters, "a" being 4."""

    def encode(self, lines):
        return [[ord(letter) - 93 for letter in line] for line in lines]

    def decode(self, rows):
        return ["".join(chr(i + 93) for i in row if i > 3) for row in np.asarray(rows)]


class Result:
    def __init__(self, ids):
        self.ids = ids


class Upside:
    """A search that "translates" by turning each sentence round; remembers its batches' shapes."""

    def __init__(self):
        self.shapes = []

    def __call__(self, model, source_ids):
        self.shapes.append(source_ids.shape)
        ids = np.zeros((len(source_ids), 1, source_ids.shape[1]), "int32")
        for row, source in enumerate(source_ids):
            letters = source[source > 3]
            ids[row, 0, : len(letters)] = letters[::-1]
            ids[row, 0, len(letters)] = 3
        return Result(ids)


# A run that goes on


@pytest.mark.parametrize(
    ("epoch", "batch", "accumulate", "optimizer"),
    [
        (1, 3, 1, {}),
        (1, 0, 1, {"use_ema": True, "ema_momentum": 0.5}),
        (1, None, 1, {}),
        (1, 3, 2, {"global_clipnorm": 0.5}),
    ],
)
def test_a_run_that_broke_off_ends_as_one_that_did_not(
    tmp_path, epoch, batch, accumulate, optimizer
):
    whole = make_model(**optimizer)
    history = fit(whole, tmp_path / "whole", accumulate=accumulate)
    with pytest.raises(Crash):
        broken = stop_at(epoch, batch, crash)
        fit(make_model(**optimizer), tmp_path / "run", broken, accumulate=accumulate)
    resumed = make_model(**optimizer)
    rest = fit(resumed, tmp_path / "run", accumulate=accumulate)
    assert_equal_weights(whole, resumed)
    for name, values in rest.items():  # metrics of the begun epoch go on, too
        np.testing.assert_allclose(values, history[name][-len(values) :], rtol=1e-6, err_msg=name)


def test_a_run_under_a_strategy_goes_on_as_well(tmp_path):
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    whole = make_model(strategy=strategy)
    history = fit(whole, tmp_path / "whole")
    with pytest.raises(Crash):
        fit(make_model(strategy=strategy), tmp_path / "run", stop_at(1, 3, crash))
    resumed = make_model(strategy=strategy)
    rest = fit(resumed, tmp_path / "run")
    assert_equal_weights(whole, resumed)
    assert rest["token_accuracy"] == history["token_accuracy"][1:]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_after_the_update_and_then_stops(tmp_path, number, capsys):
    before = signal.getsignal(number)
    interrupt = stop_at(1, 2, lambda: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt, match="start again to continue"):
        fit(make_model(), tmp_path / "run", interrupt, every=None)
    assert signal.getsignal(number) is before
    assert "once more stops at once" in capsys.readouterr().out
    assert (tmp_path / "run" / "checkpoint-00001-00000003.npz").exists()


def test_a_run_that_has_ended_is_not_prolonged(tmp_path):
    import keras

    end = keras.callbacks.EarlyStopping("loss", mode="max", patience=0)
    first = make_model()
    assert len(fit(first, tmp_path, end, epochs=9)["loss"]) < 9
    again = make_model()
    assert fit(again, tmp_path, end, epochs=9) == {}
    assert_equal_weights(first, again)
    assert again._initial_epoch is None  # a later `fit` without the callback begins at 0


def test_other_callbacks_keep_their_counts(tmp_path):
    import keras

    from keras_transformer.training.resume import TrainingCheckpoint

    def callbacks():
        early = keras.callbacks.EarlyStopping("loss", mode="max", patience=4)
        return [early, TrainingCheckpoint(tmp_path, stateful=[early])]

    model = make_model()
    model.fit(dataset(), epochs=3, verbose=0, shuffle=False, callbacks=callbacks())
    seen = []
    resumed = callbacks()
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(resumed[0].wait))
    history = make_model().fit(
        dataset(), epochs=9, verbose=0, shuffle=False, callbacks=[*resumed, watch]
    )
    # The first epoch is best where the loss should rise; the fourth after it is the end.
    assert seen == [3, 4]
    assert history.epoch == [3, 4]


# Checkpoint files


def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(tmp_path, caplog):
    from keras_transformer.training.resume import TrainingCheckpoint

    fit(make_model(), tmp_path)
    newest = sorted(tmp_path.glob("checkpoint-*.npz"))[-1]
    newest.write_bytes(newest.read_bytes()[:-50])
    (tmp_path / "checkpoint-00007-00000000.npz.1.partial").write_bytes(b"half")
    with caplog.at_level(logging.INFO):
        _, _, info = TrainingCheckpoint(tmp_path).newest()
    assert (info["epoch"], info["batch"]) == (2, 4)
    assert "damaged" in caplog.text
    assert "was not finished" in caplog.text


def test_any_changed_byte_of_an_array_is_noticed(tmp_path):
    from keras_transformer.training.checkpoints import read_checkpoint, write_checkpoint

    path = tmp_path / "one.npz"
    write_checkpoint(path, {"weights/0": np.arange(1000.0)}, {"epoch": 5})
    arrays, info = read_checkpoint(path)
    np.testing.assert_array_equal(arrays["weights/0"], np.arange(1000.0))
    assert info == {"epoch": 5}
    assert list(tmp_path.iterdir()) == [path]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        read_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        read_checkpoint(tmp_path / "none.npz")


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    fit(make_model(), tmp_path, epochs=1)
    with pytest.raises(ValueError, match=r"output_dim was 7, now 5.* delete .* to start anew"):
        fit(make_model(size=5), tmp_path)


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model = make_model()
    spoil = stop_at(1, None, lambda: model.layers[1].embeddings.assign(np.full((11, 7), np.nan)))
    with pytest.raises(ValueError, match="not finite any more"):
        fit(model, tmp_path, spoil, every=None)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00001-00000000.npz"]


@pytest.mark.parametrize("arguments", [{"every": 0}, {"keep": 0}])
def test_numbers_below_one_are_refused(tmp_path, arguments):
    from keras_transformer.training.resume import TrainingCheckpoint

    with pytest.raises(ValueError, match="must be at least 1"):
        TrainingCheckpoint(tmp_path, **arguments)


# Averages


def test_the_average_is_over_the_last_files_and_keeps_integers(tmp_path):
    from keras_transformer.training.checkpoints import average_checkpoints, write_checkpoint

    for i, value in enumerate((100.0, 2.0, 5.0)):
        arrays = {
            "weights/0": np.full((2, 3), value, "float32"),
            "weights/1": np.array(i, "int64"),
            "optimizer/0": np.zeros(7),
        }
        write_checkpoint(tmp_path / f"{i}.npz", arrays, {})
    weight, count = average_checkpoints(tmp_path, last=2)
    np.testing.assert_array_equal(weight, np.full((2, 3), 3.5, "float32"))
    assert weight.dtype == "float32"
    assert count == 2
    assert average_checkpoints([tmp_path / "0.npz"])[0][0, 0] == 100
    write_checkpoint(tmp_path / "3.npz", {"weights/0": np.zeros(5)}, {})
    with pytest.raises(ValueError, match="other names or shapes"):
        average_checkpoints(tmp_path)
    with pytest.raises(ValueError, match="there are 4"):
        average_checkpoints(tmp_path, last=5)
    with pytest.raises(ValueError, match="list or folder is empty"):
        average_checkpoints([])


def test_averaging_keeps_the_last_epochs_on_disk(tmp_path):
    from keras_transformer.training.checkpoints import CheckpointAveraging

    kept = []
    averaging = CheckpointAveraging(tmp_path, last=2)
    model = make_model()
    keep = stop_at(2, None, lambda: kept.append(model.get_weights()))
    also = stop_at(3, None, lambda: kept.append(model.get_weights()))
    model.fit(dataset(), epochs=4, verbose=0, shuffle=False, callbacks=[averaging, keep, also])
    assert [p.name for p in sorted(tmp_path.iterdir())] == [
        "weights-00002.npz",
        "weights-00003.npz",
    ]
    model.set_weights(averaging.average())
    for one, a, b in zip(model.get_weights(), *kept, strict=True):
        np.testing.assert_allclose(one, (a + b) / 2, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match="last must be at least 1"):
        CheckpointAveraging(tmp_path, last=0)


# BLEU

SOURCES = ["abcde", "b", "dcbab", "bcdab", "ccabd"]
REFERENCES = ["edcba", "b", "babcd", "badcb", "dbacc"]


def bleu(**arguments):
    from keras_transformer.training.callbacks import BleuCallback

    return BleuCallback(Upside(), Letters(), SOURCES, REFERENCES, tokenize="char", **arguments)


def test_bleu_joins_the_logs_and_stops_early(tmp_path, capsys):
    import keras

    from keras_transformer.training.checkpoints import average_checkpoints

    path = tmp_path / "best" / "model.npz"
    callback = bleu(best_path=path, tokens_per_batch=12)
    stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=1)
    model, kept = make_model(), []
    keep = stop_at(0, None, lambda: kept.append(model.get_weights()))
    history = model.fit(
        dataset(), epochs=5, verbose=0, shuffle=False, callbacks=[callback, stop, keep]
    ).history
    # All translations are right from the first epoch on, so the second one is no better.
    np.testing.assert_allclose(history["val_bleu"], [100, 100])
    assert callback.translations == REFERENCES
    assert (callback.best_epoch, round(callback.best, 6)) == (1, 100)
    # Two sentences of five letters and an end mark are 12 tokens.
    assert callback.search.shapes[:3] == [(2, 6), (2, 6), (1, 2)]
    text = capsys.readouterr().out
    assert "tok:char" in text and "epoch 1: BLEU" in text and "epoch 0" not in text
    assert [p.name for p in path.parent.iterdir()] == ["model.npz"]
    model.set_weights(average_checkpoints([path]))
    for best, first in zip(model.get_weights(), kept[0], strict=True):
        np.testing.assert_array_equal(best, first)


def test_tensorboard_writes_what_our_callbacks_log(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    import keras

    from keras_transformer.training.callbacks import Throughput

    board = keras.callbacks.TensorBoard(tmp_path, write_graph=False)
    callbacks = [bleu(), Throughput(tokens_per_batch=13), board]
    make_model().fit(dataset(), verbose=0, shuffle=False, callbacks=callbacks)
    written = {
        name: b"".join(path.read_bytes() for path in (tmp_path / name).iterdir())
        for name in ("train", "validation")
    }
    assert b"epoch_tokens_per_second" in written["train"]
    assert b"epoch_bleu" in written["validation"]  # where Keras puts what begins with `val_`


def test_bleu_may_start_late_and_rest_between():
    callback = bleu(start=1, every=2)
    scores = []
    for epoch in range(4):
        logs = {}
        callback.search.shapes.clear()
        callback.set_model(None)
        callback.on_epoch_end(epoch, logs)
        scores.append((bool(callback.search.shapes), {n: round(s) for n, s in logs.items()}))
    assert scores == [(False, {}), (True, {"val_bleu": 100})] * 2


@pytest.mark.filterwarnings("ignore:.*val_bleu")  # Keras warns where the value is missing
def test_callbacks_of_keras_pass_over_epochs_without_a_translation(tmp_path):
    import keras

    stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=2)
    best = tmp_path / "best.keras"
    best_only = {"monitor": "val_bleu", "mode": "max", "save_best_only": True}
    history = make_model().fit(
        dataset(),
        epochs=20,
        verbose=0,
        shuffle=False,
        callbacks=[
            bleu(every=3),
            stop,
            keras.callbacks.ModelCheckpoint(best, **best_only),
            keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        ],
    )
    # Translations after epochs 0, 3 and 6: the first is perfect, and two are not better.
    assert history.epoch == list(range(7))
    np.testing.assert_allclose(history.history["val_bleu"], [100] * 3)
    assert best.exists()
    rows = (tmp_path / "log.csv").read_text().splitlines()
    column = rows[0].split(",").index("val_bleu")
    assert [row.split(",")[column] == "NA" for row in rows[1:]] == [e % 3 > 0 for e in range(7)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source_lines": [], "reference_lines": []}, "at least one sentence"),
        ({"source_lines": ["a"], "reference_lines": ["a", "b"]}, "1 sentences and 2 references"),
        ({"every": 0}, "every must be at least 1"),
        ({"best_path": "best.h5"}, "must end in"),
    ],
)
def test_bleu_refuses_what_makes_no_sense(arguments, message):
    from keras_transformer.training.callbacks import BleuCallback

    with pytest.raises(ValueError, match=message):
        BleuCallback(
            Upside(), Letters(), **{"source_lines": ["a"], "reference_lines": ["a"], **arguments}
        )


# Translation


def test_lines_are_translated_in_their_order_in_batches_of_similar_length():
    import keras_transformer as kt

    search = Upside()
    lines = ["abc", "abcdabcdabcd", "ab", "", "abcdab"]
    # Lines of 13 and 7 tokens are longer than a batch of 6 tokens.
    assert kt.translate(search, None, Letters(), lines, 6) == [line[::-1] for line in lines]
    assert search.shapes == [(1, 13), (1, 7), (1, 4), (2, 3)]
    assert kt.translate(search, None, Letters(), []) == []


def test_translation_refuses_a_single_string_and_empty_batches():
    import keras_transformer as kt

    with pytest.raises(TypeError, match=r"a list of strings, got 'abc'. Pass \[line\]"):
        kt.translate(Upside(), None, Letters(), "abc")
    with pytest.raises(ValueError, match="tokens_per_batch must be at least 1, but it is 0"):
        kt.translate(Upside(), None, Letters(), ["abc"], 0)


# Throughput, and values gone astray


def test_throughput_is_tokens_by_seconds(monkeypatch):
    import types

    from keras_transformer.training import callbacks

    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: clock.now)
    throughput = callbacks.Throughput(tokens_per_batch=30)
    optimizer = types.SimpleNamespace(iterations=np.array(7))
    throughput.set_model(types.SimpleNamespace(optimizer=optimizer, steps_per_execution=1))
    throughput.set_params({"steps": 5, "epochs": 3})
    throughput.on_train_begin()
    throughput.on_epoch_begin(1)
    logs = {}
    for batch in range(5):
        clock.now += 2.0
        optimizer.iterations += batch > 0  # the first one is passed over by a run that goes on
        throughput.on_train_batch_end(batch, logs)
        if batch == 2:  # two updates in six seconds; two batches and an epoch of five are left
            assert logs["tokens_per_second"] == pytest.approx(10)
            assert logs["minutes_left"] == pytest.approx(7 * 3 / 60)
    clock.now += 3.0  # validation
    logs = {}
    throughput.on_epoch_end(1, logs)
    assert logs["tokens_per_second"] == pytest.approx(4 * 30 / 10)
    throughput.on_epoch_begin(2)
    clock.now += 2.0
    optimizer.iterations += 1
    throughput.on_train_batch_end(0, logs)
    # Four batches of two seconds and the validation of the last epoch.
    assert logs["minutes_left"] == pytest.approx((4 * 2 + 3) / 60)


def test_throughput_counts_tokens_and_stands_in_the_progress_bar(capsys):
    from keras_transformer.training.callbacks import Throughput

    data = dataset()
    throughput = Throughput(data)
    tokens = sum(np.count_nonzero(x) for x, _ in data)
    assert throughput.tokens_per_batch == tokens / 5
    make_model().fit(data, verbose=1, shuffle=False, callbacks=[throughput])
    assert "tokens_per_second" in capsys.readouterr().out


def test_throughput_needs_one_source_of_tokens():
    from keras_transformer.training.callbacks import Throughput

    with pytest.raises(ValueError, match="either data or tokens_per_batch"):
        Throughput()
    with pytest.raises(ValueError, match="no tokens to count"):
        Throughput([(np.zeros((3, 5), "int32"), np.zeros((3, 5), "int32"))])


def test_a_loss_that_is_not_a_number_ends_training():
    from keras_transformer.training.callbacks import StopOnNonFinite

    model = make_model()
    model.layers[1].embeddings.assign(np.full((11, 7), np.nan))
    with pytest.raises(ValueError, match="The loss is nan in epoch 1, batch 1"):
        model.fit(dataset(), verbose=0, shuffle=False, callbacks=[StopOnNonFinite()])


# The run that is killed


def live(folder, name, *extra):
    """One life of a run of a real model on real batches; the last one writes its weights."""
    import keras

    from keras_transformer.data.translation import translation_batches
    from keras_transformer.models import Transformer
    from keras_transformer.training.losses import SequenceCrossentropy
    from keras_transformer.training.resume import TrainingCheckpoint

    keras.utils.set_random_seed(37)
    model = Transformer(11, num_layers=1, d_model=6, num_heads=2, d_ff=7, dropout=0.3)
    model.compile(keras.optimizers.Adam(0.01), SequenceCrossentropy(0.1))
    data = translation_batches(LINES, [line[::-1] for line in LINES], Letters(), 12)
    saved = TrainingCheckpoint(folder / name, every=3, data=data)
    model.fit(data, epochs=3, verbose=0, shuffle=False, callbacks=[*extra, saved])
    np.savez(folder / f"{name}.npz", *model.get_weights())


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def lives(folder):
    import keras_transformer  # noqa: F401  imported once, before the forks

    def killed_in_an_epoch():
        live(folder, "run", stop_at(1, 4, kill))

    def killed_while_writing():
        os.replace = lambda *_: kill()
        live(folder, "run")

    for number, life in enumerate(
        [
            lambda: live(folder, "whole"),
            killed_in_an_epoch,
            killed_while_writing,
            lambda: live(folder, "run"),
        ]
    ):
        child = os.fork()
        if not child:
            life()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(f"life {number}: signal {os.WTERMSIG(status)}, code {status >> 8}", flush=True)


@pytest.mark.slow
def test_a_run_that_is_killed_twice_ends_as_one_that_is_not(tmp_path):
    done = processes.run(__file__, tmp_path)
    assert [line for line in done.stdout.splitlines() if line.startswith("life")] == [
        "life 0: signal 0, code 0",
        "life 1: signal 9, code 0",
        "life 2: signal 9, code 0",
        "life 3: signal 0, code 0",
    ], done.stderr[-3000:]
    assert list((tmp_path / "run").glob("*.partial"))  # the second life left its half behind
    whole, run = (np.load(tmp_path / f"{name}.npz") for name in ("whole", "run"))
    for name in whole.files:
        np.testing.assert_array_equal(whole[name], run[name])


if __name__ == "__main__":
    lives(pathlib.Path(sys.argv[1]))
