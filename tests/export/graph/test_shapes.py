"""Symbolic shapes equal the shapes at run time, through loops, windows and padding."""

import numpy as np
import pytest
from helpers.exports import numbers, parsed, run, same_results

from keras_transformer.export.graph.shape_data import product, quotient, symbol
from keras_transformer.export.graph.shapes import InferredShapes
from keras_transformer.export.graph.simplify import simplify

# A loop: each step appends a column to `grown` and doubles `kept`.
GROWING_LOOP = """
main (float[rows, 2] x) => (float[rows, ?] wide, float[rows, 2] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64 count = {3}, bool yes = {1},
 float[2] w = {0.5, 0.25}>
{
    empty = Slice(x, zero, zero, one)
    column = Slice(x, zero, one, one)
    wide, y, w_after = Loop(count, yes, empty, x, w) <body = body (
        int64 step, bool more, float[?, ?] grown, float[?, 2] kept, float[2] weight
    ) => (bool go_on, float[?, ?] longer, float[?, 2] sum, float[2] weight_after) {
        go_on = Identity(more)
        longer = Concat<axis = 1>(grown, column)
        doubled = Add(kept, kept)
        sizes = Shape(kept)
        reshaped = Reshape(doubled, sizes)
        weight_after = Identity(weight)
        negative = Neg(weight)
        sum = Add(reshaped, negative)
    }>
}
"""


def test_sizes_multiply_and_divide_exactly_or_not_at_all():
    rows, beam = symbol("rows"), symbol("beam")
    assert product([rows, 3, beam]) == product([beam, rows, 3])
    assert quotient(product([rows, 6]), 3) == product([rows, 2])
    assert quotient(product([rows, 6]), rows) == 6
    assert quotient(product([rows, 5]), 3) is None
    assert quotient(6, rows) is None


def test_shapes_are_followed_through_a_loop():
    model = parsed(GROWING_LOOP)
    dims = InferredShapes(model.graph).dims
    (loop,) = [node for node in model.graph if node.op_type == "Loop"]
    grown, kept = loop.attributes["body"].value.inputs[2:4]
    rows = dims[model.graph.inputs[0]][0]
    assert dims[kept] == dims[loop.outputs[1]] == (rows, 2)  # in every step
    assert dims[grown][0] == rows and dims[grown][1] not in (0, 1, rows)


def test_weights_and_their_results_move_out_of_the_loop():
    before, model = parsed(GROWING_LOOP), parsed(GROWING_LOOP)
    simplify(model)
    (loop,) = (node for node in model.graph if node.op_type == "Loop")
    operators = [node.op_type for node in loop.attributes["body"].value]
    assert sorted(operators) == ["Add", "Add", "Concat", "Identity"]  # the last: whether to go on
    assert len(loop.inputs) == 2 + 2
    same_results(before, model, rtol=1e-6, x=numbers(3, 2))


def test_reshapes_become_constant_if_one_size_is_open():
    model = parsed("""
        main (float[rows, columns, 6] x) => (float[?, 2, 3] z)
        <int64[1] first = {0}, int64[1] six = {-1}, int64[3] deep = {-1, 2, 3}>
        {
            sizes = Shape(x)
            rows = Gather(sizes, first)
            target = Concat<axis = 0>(rows, six)
            flat = Reshape(x, target)
            y = Reshape(flat, deep)
            z = Neg(y)
        }
    """)
    simplify(model)
    assert [node.op_type for node in model.graph] == ["Reshape", "Neg"]
    for rows, columns in ((1, 1), (5, 3)):
        x = numbers(rows, columns, 6)
        np.testing.assert_array_equal(run(model, x=x)[0], -x.reshape(-1, 2, 3))


def test_parts_of_a_shape_and_targets_of_unknown_size_keep_the_rank():
    model = parsed("""
        main (float[rows, columns] x, int64[1] count) => (float[?, ?] y, float[?, ?] z)
        <float zero = {0}, int64[1] one = {1}>
        {
            sizes = Shape(x)
            rows, columns = Split(sizes)
            target = Concat<axis = 0>(columns, one)
            y = Expand(zero, target)
            unknown = Concat<axis = 0>(rows, count)
            z = Expand(zero, unknown)
        }
    """)
    dims = InferredShapes(model.graph).dims
    (x, _), (y, z) = model.graph.inputs, model.graph.outputs
    assert dims[y] == (dims[x][1], 1)
    assert len(dims[z]) == 2 and not {1, *dims[x]} & set(dims[z])


@pytest.mark.parametrize(
    "dims, target, expected",
    [
        ("N, M", "B, 1", None),  # either size may be 1 at run time
        ("N, 3", "1, 3", "N"),
        ("5, M", "B, 1", 5),
    ],
)
def test_the_size_of_two_unknown_axes_is_unknown(dims, target, expected):
    model = parsed(
        f"main (float[{dims}] x, float[{target}] z) => (float[?, ?] y) {{ y = Add(x, z) }}"
    )
    inferred = InferredShapes(model.graph).dims
    x, z = (inferred[value] for value in model.graph.inputs)
    size = inferred[model.graph.outputs[0]][0]
    assert size == (x[0] if expected == "N" else expected) or (
        expected is None and size not in (x[0], z[0])
    )


WINDOWS = {
    "Conv<strides = [2]>(x, w)": 9,
    "Conv<pads = [1, 1]>(x, w)": 19,
    "Conv<dilations = [3], pads = [3, 3]>(x, w)": 19,
    'Conv<strides = [2], auto_pad = "SAME_UPPER">(x, w)': 10,
    'Conv<auto_pad = "SAME_LOWER">(x, w)': 19,
    'Conv<strides = [3], auto_pad = "VALID">(x, w)': 6,
    "MaxPool<kernel_shape = [4], strides = [4]>(x)": 4,
    "AveragePool<kernel_shape = [2], pads = [1, 0]>(x)": 19,
    "Pad(x, widths)": 21,
}


def test_windows_and_padding_leave_the_expected_length():
    text = """main (float[B, 4, SIZE] x) => (float[?, ?, ?] y)
        <float[4, 4, 3] w = {WEIGHTS}, int64[6] widths = {0, 0, 2, 0, 0, 0}> { y = NODE }"""
    text = text.replace("WEIGHTS", ",".join(["1.0"] * 48))
    for node, length in WINDOWS.items():
        model = parsed(text.replace("SIZE", "19").replace("NODE", node))
        (result,) = run(model, x=np.ones((2, 4, 19), np.float32))
        dims = InferredShapes(model.graph).dims[model.graph.outputs[0]]
        assert result.shape[1:] == dims[1:] == (4, length), node
        graph = parsed(text.replace("SIZE", "S").replace("NODE", node)).graph
        inferred = InferredShapes(graph).dims
        before, after = inferred[graph.inputs[0]], inferred[graph.outputs[0]]
        assert before[0] == after[0] and after[1] == 4, node
        assert (after[2] == before[2]) == (length == 19), node
