"""Einsums become matrix products in the file and keep the trained weights."""

import keras
import numpy as np
import pytest
from helpers.exports import fused, operators, run
from keras import layers, ops


def model_of(equation, output_shape, *shape, bias_axes=None):
    keras.utils.set_random_seed(3)
    x = keras.Input(shape, name="x")
    y = layers.EinsumDense(equation, output_shape, bias_axes=bias_axes, name="dense")(x)
    model = keras.Model(x, y)
    for variable in model.variables:  # biases, too, must differ from 0
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
def test_an_einsum_layer_is_one_product(equation, output_shape, shape, matrix, reshapes, batch):
    model = model_of(equation, output_shape, *shape, bias_axes=equation.split(">")[1][2:])
    made = fused(model)
    found = operators(made)
    assert (found["Einsum"], found["MatMul"], found["Reshape"]) == (0, 1, reshapes)
    assert tuple(made.graph.initializers["dense/kernel"].const_value.shape) == matrix
    x = np.random.default_rng(1).normal(size=(batch, 5, *shape[1:])).astype("float32")
    np.testing.assert_allclose(run(made, x=x)[0], model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "output_shape"),
    [("abc,dc->abd", (None, 6)), ("abc,bd->acd", (4, 6)), ("abc,cd->adb", (6, 5))],
)
def test_other_einsums_keep_their_weight(equation, output_shape):
    model = model_of(equation, output_shape, 5, 4)
    made = fused(model)
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
    made = fused(model)
    assert [name for name in made.graph.initializers if "kernel" in name] == ["dense/kernel"]
    assert operators(made)["MatMul"] == 2
    one, two = np.random.default_rng(1).normal(size=(2, 3, 5, 4)).astype("float32")
    np.testing.assert_allclose(
        run(made, one=one, two=two)[0], model([one, two]), rtol=1e-5, atol=1e-5
    )


class Plus(layers.Layer):
    """Adds a weight."""

    def build(self, shape):
        self.offset = self.add_weight(shape=shape[2:], initializer="uniform")

    def call(self, x):
        return x + self.offset


def test_an_einsum_may_be_an_output_and_be_read():
    keras.utils.set_random_seed(3)
    x = keras.Input((None, 4), name="x")
    y = layers.EinsumDense("abc,cde->abde", (None, 3, 2))(x)
    model = keras.Model(x, {"sum": y, "more": Plus()(y)})
    x = np.random.default_rng(1).normal(size=(2, 5, 4)).astype("float32")
    made, expected = fused(model), model(x)
    for name, found in zip(expected, run(made, x=x), strict=True):
        np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-5)


EQUATIONS = [
    ("bti,bsi->bts", "x x"),
    ("bti,btj->bij", "x x"),
    ("bti,btj->jbi", "x x"),
    ("bti,bti->bt", "x x"),
    ("bti,bti->", "x x"),
    ("bti,bsj->bts", "x x"),
    ("bti,btj->btij", "x x"),
    ("...ti,...tj->...ij", "x x"),
    ("bti->ib", "x"),
    ("bthk,bshk->bhts", "y y"),
    ("bthk,bshk->bts", "y y"),
    ("bthk,bi->bthki", "y z"),
    ("bthk,bk->bth", "y z"),
    ("bthk,bsi->bthi", "y x"),
]


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("batch", [0, 3])
def test_einsums_of_inputs_are_products(sums, batch, length):
    model, made = sums
    random = np.random.default_rng(1)
    arrays = {
        "x": random.normal(size=(batch, length, 3)).astype("float32"),
        "y": random.normal(size=(batch, length, 2, 3)).astype("float32"),
        "z": random.normal(size=(batch, 3)).astype("float32"),
    }
    assert operators(made)["Einsum"] == 0
    expected = model([arrays[tensor.name] for tensor in model.inputs]).values()
    for (equation, _), one, two in zip(EQUATIONS, run(made, **arrays), expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4, err_msg=equation)


@pytest.fixture(scope="module")
def sums():
    shapes = {"x": (None, 3), "y": (None, 2, 3), "z": (3,)}
    inputs = {name: keras.Input(shape, name=name) for name, shape in shapes.items()}
    outputs = {
        f"out{i:02}": ops.einsum(equation, *(inputs[name] for name in names.split()))
        for i, (equation, names) in enumerate(EQUATIONS)
    }
    model = keras.Model(list(inputs.values()), outputs)
    return model, fused(model)
