"""Small models, resumable training, and callbacks that interrupt it."""

import contextlib

import keras
import numpy as np
import pytest

import keras_transformer as kt

LINES = ["ab", "abcd", "b", "bca", "dd", "cab", "a", "bad", "ac", "dab", "bb", "c", "ddd"]


class Letters:
    """A tokenizer of letters; "a" has id 4."""

    def encode(self, lines):
        return [[ord(letter) - 93 for letter in line] for line in lines]

    def decode(self, rows):
        return ["".join(chr(i + 93) for i in row if i > 3) for row in np.asarray(rows)]


def dataset():
    import tensorflow as tf

    ids = np.random.default_rng(29).integers(0, 11, (13, 5)).astype("int32")
    return tf.data.Dataset.from_tensor_slices((ids, ids)).batch(3)  # five batches


def pairs(lines=LINES, tokens_per_batch=12, **options):
    """Returns batches of lines and the same lines backwards."""
    backwards = [line[::-1] for line in lines]
    return kt.translation_batches(lines, backwards, Letters(), tokens_per_batch, **options)


def make_model(size=7, strategy=None, dropout=0.3, smoothing=0.0, rate=0.1, **optimizer):
    """Returns a compiled model for `dataset`, with dropout so that seeds matter."""
    keras.utils.set_random_seed(31)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        ids = keras.Input((None,), dtype="int32")
        x = keras.layers.Dropout(dropout)(keras.layers.Embedding(11, size)(ids))
        model = keras.Model(ids, keras.layers.Dense(11)(x))
        optimizer = keras.optimizers.Adam(rate, **optimizer)
        loss = kt.SequenceCrossentropy(smoothing)
        model.compile(optimizer, loss, metrics=[kt.TokenAccuracy()])
    return model


def make_translator(optimizer="adam", dtype="float32"):
    """Returns a compiled model for `pairs`. It trains five times as fast as a `Transformer`."""
    keras.utils.set_random_seed(31)
    names = "source_ids", "target_ids"
    embedding = keras.layers.Embedding(11, 7, dtype=dtype)
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    source, target = (embedding(inputs[name]) for name in names)
    x = target + keras.ops.mean(source, axis=1, keepdims=True)
    x = keras.layers.Dropout(0.3, dtype=dtype)(x)
    model = keras.Model(inputs, keras.layers.Dense(11, dtype=dtype)(x))
    model.compile(optimizer, kt.SequenceCrossentropy())
    return model


def stop_at(epoch, batch, action):
    """Returns a callback that acts after a batch of an epoch, or at its end (batch None)."""

    class StopAt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, number, logs=None):
            if (self.epoch, number) == (epoch, batch):
                action()

        def on_epoch_end(self, number, logs=None):
            self.on_train_batch_end(None)

    return StopAt()


class Crash(Exception):
    pass


def crash():
    raise Crash


def fit(model, folder, *callbacks, epochs=3, x=None, validation=None, **arguments):
    """Trains a `Run` of these arguments. Returns the `History`."""
    return kt.Run(folder, **arguments).fit(
        model,
        dataset() if x is None else x,
        validation_data=validation,
        epochs=epochs,
        verbose=0,
        shuffle=False,
        callbacks=callbacks,
    )


def fit_until(epoch, batch, model, folder, *callbacks, **arguments):
    """Trains until a batch, where the run crashes."""
    with pytest.raises(Crash):
        fit(model, folder, *callbacks, stop_at(epoch, batch, crash), **arguments)


def assert_equal_weights(one, other, tolerance=0.0):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def names(folder):
    return sorted(path.name for path in folder.glob("*.npz"))
