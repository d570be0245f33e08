"""A small model, its training with checkpoints, and callbacks that break it off."""

import contextlib

import numpy as np


def dataset():
    import tensorflow as tf

    ids = np.random.default_rng(29).integers(0, 11, (13, 5)).astype("int32")
    return tf.data.Dataset.from_tensor_slices((ids, ids)).batch(3)  # five batches


def make_model(size=7, strategy=None, dropout=0.3, smoothing=0.0, rate=0.1, **optimizer):
    """Compiled; with dropout, so that the seeds matter."""
    import keras

    from keras_transformer.training.losses import SequenceCrossentropy
    from keras_transformer.training.metrics import TokenAccuracy

    keras.utils.set_random_seed(31)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        ids = keras.Input((None,), dtype="int32")
        x = keras.layers.Dropout(dropout)(keras.layers.Embedding(11, size)(ids))
        model = keras.Model(ids, keras.layers.Dense(11)(x))
        optimizer = keras.optimizers.Adam(rate, **optimizer)
        model.compile(optimizer, SequenceCrossentropy(smoothing), metrics=[TokenAccuracy()])
    return model


def stop_at(epoch, batch, action):
    """A callback that acts after some batch of some epoch, or at the epoch's end (batch None)."""
    import keras

    class StopAt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, number, logs=None):
            if (self.epoch, number) == (epoch, batch):
                action()

        def on_epoch_end(self, number, logs=None):
            if (number, None) == (epoch, batch):
                action()

    return StopAt()


class Crash(Exception):
    pass


def crash():
    raise Crash


def fit(model, folder, *extra, epochs=3, every=2, accumulate=1, **arguments):
    import keras

    from keras_transformer.training import prepare
    from keras_transformer.training.resume import TrainingCheckpoint

    if accumulate > 1:
        prepare(model, accumulate)
    early = keras.callbacks.EarlyStopping("loss", patience=7)
    saved = TrainingCheckpoint(folder, every=every, stateful=[early], **arguments)
    return model.fit(
        dataset(), epochs=epochs, verbose=0, shuffle=False, callbacks=[*extra, early, saved]
    ).history


def assert_equal_weights(one, other):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
