"""Einsums become matrix products in the file and keep the trained weights."""

import keras
import pytest
from helpers.exports import Function, built, check, fused, numbers, operators, settled
from keras import layers, ops

BOTH = "abc,cde->abde"


@pytest.mark.parametrize(
    ("equation", "output_shape", "shape", "matrix", "found"),
    [
        ("abc,cd->abd", (None, 6), (None, 4), (4, 6), (0, 1, 0)),
        (BOTH, (None, 3, 2), (None, 4), (4, 6), (0, 1, 1)),
        ("abcd,cde->abe", (None, 6), (None, 2, 4), (8, 6), (0, 1, 1)),
        ("abcd,cdef->abef", (None, 3, 2), (None, 2, 4), (8, 6), (0, 1, 2)),
        # others keep their weight
        ("abc,dc->abd", (None, 6), (5, 4), (6, 4), None),
        ("abc,bd->acd", (4, 6), (5, 4), (5, 6), None),
        ("abc,cd->adb", (6, 5), (5, 4), (4, 6), None),
    ],
)
def test_an_einsum_layer_is_one_product(equation, output_shape, shape, matrix, found):
    bias_axes = equation.split(">")[1][2:] if found else None
    layer = layers.EinsumDense(equation, output_shape, bias_axes=bias_axes, name="dense")
    model = settled(built(layer, *shape))
    made = fused(model)
    counted = operators(made)
    assert found in (None, (counted["Einsum"], counted["MatMul"], counted["Reshape"]))
    assert tuple(made.graph.initializers["dense/kernel"].const_value.shape) == matrix
    for batch in (0, 3) if found else (3,):  # others get their guard for no rows later
        check(model, made, x=numbers(batch, 5, *shape[1:]))


def test_a_layer_that_is_used_twice_keeps_one_weight():
    pair = [keras.Input((None, 4), name=name) for name in ("one", "two")]
    dense = layers.EinsumDense(BOTH, (None, 3, 2), name="dense")
    model = keras.Model(pair, layers.Add()([dense(x) for x in pair]))
    made = fused(model)
    assert [name for name in made.graph.initializers if "kernel" in name] == ["dense/kernel"]
    assert operators(made)["MatMul"] == 2
    check(model, made, one=numbers(3, 5, 4), two=1 - numbers(3, 5, 4))


def test_an_einsum_may_be_an_output_and_be_read():
    def both(x):
        y = layers.EinsumDense(BOTH, (None, 3, 2))(x)
        return {"sum": y, "more": Function(lambda y, offset: y + offset, (3, 2))(y)}

    model = built(both, None, 4)
    made = fused(model)
    assert operators(made)["Einsum"] == 0
    check(model, made, x=numbers(2, 5, 4))


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


def test_einsums_of_inputs_are_products():
    shapes = {"x": (None, 3), "y": (None, 2, 3), "z": (3,)}
    inputs = {name: keras.Input(shape, name=name) for name, shape in shapes.items()}
    outputs = {
        f"out{i:02}": ops.einsum(equation, *(inputs[name] for name in names.split()))
        for i, (equation, names) in enumerate(EQUATIONS)
    }
    model = keras.Model(list(inputs.values()), outputs)
    made = fused(model)
    assert operators(made)["Einsum"] == 0
    for batch, length in ((0, 1), (0, 5), (3, 1), (3, 5)):
        x, y, z = numbers(batch, length, 3), numbers(batch, length, 2, 3), numbers(batch, 3)
        check(model, made, x=x, y=y, z=z)
