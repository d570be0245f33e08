"""The size of every part of the first block's input before training, as root mean squares.

A part that is much smaller than the others starts as noise, and little data do not repair it.
"""

import importlib

import keras
import numpy as np
import pytest
from helpers.checks import integers, normal

import keras_transformer as kt

WIDTHS = [32, 128, 512]
LENGTH = 48


def size(x):
    return float(np.sqrt(np.mean(np.square(keras.ops.convert_to_numpy(x)))))


def zeros(width):
    return np.zeros((1, LENGTH, width), "float32")


# Each function returns the vectors that a layer of this width makes of inputs of variance 1, or
# the vectors that it adds.
PARTS = {
    "tokens": lambda width: kt.TokenEmbedding(96, width)(integers(0, 96, 1, LENGTH)),
    "sinusoids": lambda width: kt.SinusoidalPositionEncoding()(zeros(width)),
    "grid": lambda width: kt.GridPositionEncoding(columns=7)(zeros(width)),
    "learned positions": lambda width: kt.LearnedPositionEncoding(LENGTH)(zeros(width)),
    "segments": lambda width: kt.SegmentEmbedding(2)(zeros(width), integers(0, 3, 1, LENGTH)),
    "class token": lambda width: kt.ClassToken()(zeros(width))[:, 0],
    "grey patches": lambda width: kt.PatchEmbedding(width, 2)(normal(5, 8, 8, 1)),
    "colour patches": lambda width: kt.PatchEmbedding(width, 8)(normal(5, 16, 16, 3)),
    "one series": lambda width: kt.MaskedConv1D(width, 5)(normal(5, LENGTH, 1)),
    "several series": lambda width: kt.MaskedConv1D(width, 3, strides=2)(normal(5, LENGTH, 7)),
    "bands of sound": lambda width: kt.MaskedConv1D(width, 3)(normal(5, LENGTH, 80)),
    "neighbours": lambda width: kt.MaskedConv1D(width, 5)(normal(5, LENGTH, width)),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_the_input_starts_at_one_size_for_every_width(name, width):
    keras.utils.set_random_seed(1)
    assert 0.6 < size(PARTS[name](width)) < 1.3


# The script and the arguments of its model; the inputs have variance 1, or are pixels.
EXAMPLES = {
    "images": (10, 1),
    "anomalies": (1,),
    "classify_series": (2, 5, 3, 2, 0.1),
    "speech": (40, 20, 1),
    "control": (4, 2),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_add_positions_of_the_size_of_their_vectors(name):
    keras.utils.set_random_seed(1)
    model = importlib.import_module(name).make_model(*EXAMPLES[name])
    model = getattr(model, "encoder", None) or model
    inputs = model.inputs[0]
    shape = [3, *(40 if axis is None else axis for axis in inputs.shape[1:])]
    x = np.random.default_rng(0).uniform(size=shape) if name == "images" else normal(*shape)
    (positions,) = (layer for layer in model.layers if isinstance(layer, kt.PositionEncoding))
    before, after = keras.Model(inputs, [positions.input, positions.output])(x)
    assert 1 / 3 < size(after - before) / size(before) < 3
    if any(isinstance(layer, kt.ClassToken) for layer in model.layers):
        assert 1 / 3 < size(before[:, 0]) / size(before[:, 1:]) < 3
