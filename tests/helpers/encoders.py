"""Models with a custom encoder: of frames, and of pictures with a number."""

import keras
import numpy as np

import keras_transformer as kt

VOCAB, FEATURES = 23, 5
SIZES = {"d_model": 12, "num_heads": 2, "d_ff": 17}


def frames_encoder():
    """Maps (B, S, 5) to (B, S, 12) with a Keras mask; zero frames are padding."""
    frames = keras.Input((None, FEATURES), name="frames")
    x = keras.layers.Dense(12)(keras.layers.Masking()(frames))
    return keras.Model(frames, kt.EncoderBlock(2, 17)(x))


def patches_encoder():
    """Maps a dict of pictures (B, 8, 8, 3) and numbers to (B, 4, 12), without a mask."""
    image, place = keras.Input((8, 8, 3), name="image"), keras.Input((1,), name="place")
    x = keras.layers.Conv2D(12, 4, strides=4)(image)
    x = keras.layers.Reshape((4, 12))(x) + keras.layers.Dense(12)(place)[:, None]
    return keras.Model({"image": image, "place": place}, kt.EncoderBlock(2, 17)(x))


def writer(encoder, num_layers=2, **arguments):
    """Returns a `Transformer` with the encoder and random weights."""
    keras.utils.set_random_seed(7)
    model = kt.Transformer(VOCAB, num_layers, **SIZES, encoder=encoder(), **arguments)
    random = np.random.default_rng(3)
    for variable in model.trainable_variables:
        noise = random.normal(0, 0.2, variable.shape)
        variable.assign(keras.ops.convert_to_numpy(variable) + noise)
    return model


def frames(rows=3, length=7):
    """Returns frames of several lengths, padded with zeros on the right."""
    found = np.random.default_rng(1).normal(size=(rows, length, FEATURES)).astype("float32")
    for row in range(rows):
        found[row, max(1, length - 2 * row) :] = 0
    return found


def pictures(rows=3):
    """Returns inputs of `patches_encoder`."""
    random = np.random.default_rng(1)
    return {
        "image": random.normal(size=(rows, 8, 8, 3)).astype("float32"),
        "place": random.normal(size=(rows, 1)).astype("float32"),
    }
