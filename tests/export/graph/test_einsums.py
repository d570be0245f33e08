"""EinsumDense is a product of matrices in the file, and its weight is what Keras trained."""

import keras
import numpy as np
import onnx_ir as ir
import pytest
from keras import layers
from support.exports import convert, counts, run

from keras_transformer.export.graph.fuse import fuse_blocks
from keras_transformer.export.graph.simplify import simplify


def written(model):
    made = convert(model)
    fuse_blocks(made)
    simplify(made)
    return made


def model_of(equation, output_shape, *shape, bias_axes=None):
    keras.utils.set_random_seed(3)
    x = keras.Input(shape, name="x")
    y = layers.EinsumDense(equation, output_shape, bias_axes=bias_axes, name="dense")(x)
    model = keras.Model(x, y)
    for variable in model.variables:  # biases, too, are other than 0
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    return model


@pytest.mark.parametrize(
    ("equation", "output_shape", "shape", "matrix", "reshapes"),
    [
        ("abc,cd->abd", (None, 6), (None, 4), (4, 6), 0),
        ("abc,cde->abde", (None, 3, 2), (None, 4), (4, 6), 1),
        ("abcd,cde->abe", (None, 6), (None, 2, 4), (8, 6), 1),
        ("abcd,cdef->abef", (None, 3, 2), (None, 2, 4), (8, 6), 2),
    ],
)
@pytest.mark.parametrize("batch", [0, 3])
def test_it_is_a_product(equation, output_shape, shape, matrix, reshapes, batch):
    model = model_of(equation, output_shape, *shape, bias_axes=equation.split(">")[1][2:])
    made = written(model)
    found = counts(ir.to_proto(made).graph)
    assert (found["Einsum"], found["MatMul"], found["Reshape"]) == (0, 1, reshapes)
    assert tuple(made.graph.initializers["dense/kernel"].const_value.shape) == matrix
    x = np.random.default_rng(1).normal(size=(batch, 5, *shape[1:])).astype("float32")
    np.testing.assert_allclose(run(made, x=x)[0], model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "output_shape"),
    [("abc,dc->abd", (None, 6)), ("abc,bd->acd", (4, 6)), ("abc,cd->adb", (6, 5))],
)
def test_other_sums_stay(equation, output_shape):
    model = model_of(equation, output_shape, 5, 4)
    made = written(model)
    x = np.random.default_rng(1).normal(size=(2, 5, 4)).astype("float32")
    np.testing.assert_allclose(run(made, x=x)[0], model(x), rtol=1e-5, atol=1e-5)
    assert tuple(made.graph.initializers["dense/kernel"].const_value.shape) == (
        model.get_layer("dense").kernel.shape
    )


def test_a_layer_that_is_used_twice_keeps_one_weight():
    keras.utils.set_random_seed(3)
    pair = [keras.Input((None, 4), name=name) for name in ("one", "two")]
    dense = layers.EinsumDense("abc,cde->abde", (None, 3, 2), name="dense")
    model = keras.Model(pair, layers.Add()([dense(x) for x in pair]))
    made = written(model)
    assert [name for name in made.graph.initializers if "kernel" in name] == ["dense/kernel"]
    assert counts(ir.to_proto(made).graph)["MatMul"] == 2
    one, two = np.random.default_rng(1).normal(size=(2, 3, 5, 4)).astype("float32")
    np.testing.assert_allclose(
        run(made, one=one, two=two)[0], model([one, two]), rtol=1e-5, atol=1e-5
    )
