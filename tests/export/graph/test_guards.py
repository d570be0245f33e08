"""Models near the patterns of graph rewrites, which the rewrites must leave alone.

Shapes: B = 3, T = 4, D = 6.
"""

import keras
import numpy as np
import pytest
from helpers import exports
from keras import layers, ops

from keras_transformer.export import export_onnx

X = np.random.default_rng(31).normal(size=(3, 4, 6)).astype("float32")


class Weighted(layers.Layer):
    """Calls a function of its inputs and of weights (or tables) of the given shapes."""

    def __init__(self, function, *shapes, **options):
        super().__init__(**options)
        self.function = function
        self.arrays = [self.add_weight(shape, "glorot_uniform") for shape in shapes]

    def call(self, inputs):
        return self.function(inputs, *self.arrays)


def wrapped_index(inputs, table):
    index = ops.cast(ops.floor(5 * inputs[..., 0]), "int32") % 9 - 4
    return ops.take(table, ops.where(index < 0, index + 5, index), axis=0)  # not the table's size


def three_axes(inputs, kernel, bias):
    return ops.relu(ops.matmul(inputs, kernel) + bias)


def ordinal(inputs, kernel, bias):
    return ops.sigmoid(ops.matmul(inputs, kernel) + bias)


def attend(query, key):
    scores = ops.matmul(query, ops.swapaxes(key, 1, 2))
    return ops.matmul(ops.softmax(scores), key)


def split(x):
    return ops.transpose(ops.reshape(x, (-1, ops.shape(x)[1], 2, 3)), (0, 2, 1, 3))


def heads(query, key):
    scores = ops.matmul(split(query), ops.transpose(split(key), (0, 1, 3, 2))) * 0.5
    joined = ops.matmul(ops.softmax(scores), split(key))
    return ops.reshape(ops.transpose(joined, (0, 2, 1, 3)), (-1, ops.shape(query)[1], 6))


def latent(inputs, query):
    return heads(ops.tile(query, (1, 1, 1)), inputs)


def branches(inputs):
    return ops.cond(ops.sum(inputs) > 0, lambda: inputs * 2.0, lambda: inputs - 1.0)


MODELS = {
    "wrapped index": lambda x: Weighted(wrapped_index, (9, 6))(x),
    "kernel of three axes": lambda x: Weighted(three_axes, (1, 6, 5), (5,))(x),
    "bias wider than the product": lambda x: Weighted(ordinal, (6, 1), (5,))(x),
    "queries of one row": lambda x: Weighted(latent, (1, 5, 6))(x),
    "float64": lambda x: Weighted(lambda v: heads(v, v), dtype="float64")(x),
    "weight with the name of an output": lambda x: Weighted(
        lambda v, scale: v * scale, (6,), name="variable"
    )(x),
}


@pytest.mark.parametrize(
    "name", [n if n == "wrapped index" else pytest.param(n, marks=pytest.mark.full) for n in MODELS]
)
def test_the_file_computes_what_keras_computes(name, tmp_path):
    keras.utils.set_random_seed(37)
    inputs = keras.Input((None, 6), name="x")
    y = layers.Dense(6)(inputs) if name != "float64" else inputs
    y = MODELS[name](y)
    if "weight" not in name:
        y = layers.Dense(3)(ops.cast(y, "float32"))
    model = keras.Model(inputs, y)
    export_onnx(model, tmp_path / "onnx", verbose=False)
    (found,) = exports.session(tmp_path / "onnx").run(None, {"x": X})
    np.testing.assert_allclose(found, ops.convert_to_numpy(model(X)), rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_half_precision_has_branches(tmp_path):
    inputs = keras.Input((None, 6), name="x")
    y = layers.Dense(3)(Weighted(branches)(layers.Dense(6)(inputs)))
    export_onnx(keras.Model(inputs, y), tmp_path / "onnx", precision="float16", verbose=False)
    (found,) = exports.session(tmp_path / "onnx").run(None, {"x": X})
    assert found.shape == (3, 4, 3)


@pytest.mark.parametrize("length", [4, 5])
def test_a_size_divided_by_a_negative_number_is_rounded_down(length, tmp_path):
    inputs = keras.Input((None, 6), name="x")
    y = Weighted(lambda x: x[:, : -(ops.shape(x)[1] // -2)] * 2.0)(inputs)
    model = keras.Model(inputs, y)
    export_onnx(model, tmp_path / "onnx", samples=[{"x": X}], verbose=False)
    x = np.ones((2, length, 6), "float32")
    (found,) = exports.session(tmp_path / "onnx").run(None, {"x": x})
    assert found.shape[1] == -(-length // 2)


@pytest.mark.full
def test_integers_beside_convolutions_stay_integers(tmp_path):
    image = keras.Input((5, 5, 2), name="image")
    y = layers.Conv2D(3, 3)(image)
    most = ops.max(ops.cast(y * 10, "int32"), axis=(1, 2)) + 1
    model = keras.Model(image, {"features": y, "most": most})
    export_onnx(model, tmp_path / "onnx", verbose=False)
    x = np.random.default_rng(1).normal(size=(2, 5, 5, 2)).astype("float32")
    (found,) = exports.session(tmp_path / "onnx").run(["most"], {"image": x})
    np.testing.assert_array_equal(found, model(x)["most"])


@pytest.mark.full
def test_integer_weights_may_overflow_as_in_tensorflow(tmp_path):
    class Hash(layers.Layer):
        def build(self, shape):
            self.seed = self.add_weight((), lambda *args, **kw: 1103515245, dtype="int32")

        def call(self, x):
            bucket = (self.seed * 3 + ops.shape(x)[1]) % 7
            return x * ops.cast(bucket, "float32")

    inputs = keras.Input((None, 6), name="x")
    model = keras.Model(inputs, Hash()(inputs))
    export_onnx(model, tmp_path / "onnx", verbose=False)
    (found,) = exports.session(tmp_path / "onnx").run(None, {"x": X})
    np.testing.assert_allclose(found, model(X), rtol=1e-5)
