"""Baselines for generated pictures (frequencies, a PixelCNN), and a classifier to judge them.

Shapes: N pictures, (S, S) pixels, L grey levels, F filters.
"""

import keras
import numpy as np
from keras import layers
from support.recipes import learning_rate


def frequency_bits(train, test, levels):
    """Computes bits per pixel from the frequency of each level at each pixel in each class.

    Each level counts once more than it occurs, so that no frequency is 0.

    Args:
        train, test: pixels, integers (N, S, S) from 0 to L - 1, and classes (N,).
        levels: int, L.

    Example:

    >>> pixels, classes = np.array([[[1]], [[1]], [[0]]]), np.array([0, 0, 0])
    >>> frequency_bits((pixels, classes), (pixels[:1], classes[:1]), 2)  # 3 of 5
    0.736965...
    """
    pixels, classes = train
    counts = np.ones((classes.max() + 1, *pixels.shape[1:], levels))
    for level in range(levels):
        np.add.at(counts[..., level], classes, pixels == level)
    shares = (counts / counts.sum(axis=-1, keepdims=True))[test[1]]
    return float(-np.log2(np.take_along_axis(shares, test[0][..., None], axis=-1)).mean())


class CausalConv2D(layers.Conv2D):
    """A convolution over the previous pixels in reading order, and over the pixel itself if `own`.

    Args:
        filters: int, F.
        size: int, height and width, odd.
        own: bool, whether to include the pixel itself. Defaults to `True`.
    """

    def __init__(self, filters, size, own=True):
        super().__init__(filters, size, padding="same")
        middle = size // 2
        self.seen = np.zeros((size, size, 1, 1), "float32")
        self.seen[:middle] = 1
        self.seen[middle, : middle + own] = 1

    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel * self.seen)


def pixel_cnn(size, levels, classes, filters=48, blocks=5):
    """Makes a small PixelCNN (van den Oord et al. 2016, arXiv 1601.06759) with classes.

    Args:
        size: int, S.
        levels: int, L.
        classes: int, number of classes.
        filters: int, F. Defaults to 48.
        blocks: int, number of residual blocks. Defaults to 5.

    Returns:
        `keras.Model` from pixels (N, S, S) and classes (N,), int32, to logits (N, S, S, L). It
        predicts each pixel from the previous ones.
    """
    pixels, label = keras.Input((size, size), dtype="int32"), keras.Input((), dtype="int32")
    x = CausalConv2D(filters, 7, own=False)(layers.Embedding(levels, filters)(pixels))
    x = x + layers.Reshape((1, 1, filters))(layers.Embedding(classes, filters)(label))
    for _ in range(blocks):
        y = layers.Conv2D(filters // 2, 1, activation="relu")(layers.ReLU()(x))
        y = layers.ReLU()(CausalConv2D(filters // 2, 3)(y))
        x = x + layers.Conv2D(filters, 1)(y)
    return keras.Model([pixels, label], layers.Dense(levels)(layers.ReLU()(x)))


def picture_classifier(size, classes):
    """Makes a convolutional model from pixels (N, S, S) in [0, 1] to class logits."""
    pixels = keras.Input((size, size))
    x = layers.Reshape((size, size, 1))(pixels)
    for filters in (32, 64):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dropout(0.3)(layers.Dense(128, activation="relu")(layers.Flatten()(x)))
    return keras.Model(pixels, layers.Dense(classes)(x))


def fit(model, train, valid, epochs, batch_size):
    """Trains a model of this file. The validation loss selects the epoch.

    Args:
        model: `keras.Model`.
        train, valid: pairs of inputs and integer targets.
        epochs: int.
        batch_size: int.
    """
    updates = epochs * -(-len(train[1]) // batch_size)
    rate = learning_rate(peak=2e-3, warmup_steps=updates // 10 + 1, anneal=True, updates=updates)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss)
    best = keras.callbacks.EarlyStopping(patience=epochs, restore_best_weights=True)
    options = dict(batch_size=batch_size, epochs=epochs, callbacks=[best], verbose=2)
    model.fit(*train, validation_data=valid, **options)


def pixel_cnn_bits(train, valid, test, levels, count, batch_size):
    """Trains and measures a `pixel_cnn`.

    Args:
        train, valid, test: pairs of pixels, integers (N, S, S) from 0 to L - 1, and classes (N,).
        levels: int, L.
        count: int, number of pictures to train on. Fewer pictures are repeated.
        batch_size: int.

    Returns:
        float, bits per pixel on the test set.
    """
    model = pixel_cnn(test[0].shape[1], levels, int(train[1].max()) + 1)
    print(f"PixelCNN, {model.count_params():,} parameters")
    train = [array[:count] for array in train]
    fit(
        model,
        *(([*part], part[0]) for part in (train, valid)),
        -(-count // len(train[1])),
        batch_size,
    )
    return float(model.evaluate([*test], test[0], verbose=0) / np.log(2))


def trained_classifier(train, valid, levels, epochs):
    """Trains a `picture_classifier`.

    Args:
        train, valid: pairs of pixels, integers (N, S, S) from 0 to L - 1, and classes (N,).
        levels: int, L.
        epochs: int.

    Returns:
        A function from pixels, integers (N, S, S), to class numbers (N,).
    """
    model = picture_classifier(valid[0].shape[1], int(train[1].max()) + 1)
    fit(model, *((part[0] / (levels - 1), part[1]) for part in (train, valid)), epochs, 64)
    return lambda pixels: model.predict(pixels / (levels - 1), verbose=0).argmax(axis=-1)
