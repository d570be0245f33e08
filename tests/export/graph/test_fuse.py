"""Simplification and fusion: fewer nodes, the same numbers."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from support import exports
from support.exports import BEAM, convert, counts, graph, run, source, tiny

from keras_transformer.export.graph.fuse import fuse_blocks
from keras_transformer.export.graph.fuse_rule import Rule
from keras_transformer.export.graph.shapes import InferredShapes
from keras_transformer.export.graph.simplify import simplify
from keras_transformer.export.graph.sizes import product, quotient, symbol
from keras_transformer.export.onnx_model import export_onnx
from keras_transformer.search import GreedySearch

# How deep in loops: a search's phases, and the steps of a phase.
PHASES, STEPS = 1, 2


@pytest.fixture
def converted():
    return exports.shared_graph(BEAM)


@pytest.fixture
def forward():
    return exports.shared_graph()


def simplified(converted):
    plain = graph(converted)
    simplify(plain)
    return plain


def fused(converted, **options):
    made = graph(converted)
    fuse_blocks(made, **options)
    return made


def nodes(model, depth):
    return sum(counts(ir.to_proto(model).graph, depth).values())


def test_simplifying_changes_no_bit_of_the_tokens(converted):
    before = run(graph(converted), source_ids=source())
    after = run(simplified(converted), source_ids=source())
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_allclose(after[1], before[1], rtol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_fusing_gives_the_same_tokens_and_scores(converted, precision):
    ids = source()
    ids[1] = 0  # a sentence of padding: attention to nothing gives zeros, not means
    before = run(graph(converted), source_ids=ids)
    after = run(fused(converted, precision=precision), source_ids=ids)
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_allclose(after[1], before[1], rtol=1e-5)


def test_fusing_gives_the_same_logits_with_padding_on_both_sides(forward):
    feed = {"source_ids": source(5, 7), "target_ids": source(5, 5, seed=1)}
    feed["source_ids"][2] = 0
    (before,), (after,) = run(graph(forward), **feed), run(fused(forward), **feed)
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_every_norm_and_attention_is_one_operator(converted, precision):
    found = counts(ir.to_proto(fused(converted, precision=precision)).graph)
    # Two blocks of two norms, and two of three; two attentions more than encoder blocks.
    norm = "SkipLayerNormalization" if precision == "float16" else "LayerNormalization"
    assert found[norm] == 2 * 2 + 2 * 3
    assert found["Sum"] == (0 if precision == "float16" else found[norm])  # residuals
    assert found["Attention"] + found["MultiHeadAttention"] == 2 + 2 * 2
    norms = {"LayerNormalization", "SkipLayerNormalization"} - {norm}
    assert not found.keys() & {"ReduceMean", "Reciprocal", "Softmax", *norms}
    assert found["FusedMatMul"] == 1  # logits, by the embedding as it is


@pytest.mark.parametrize("precision, most", [("float32", 18), ("float16", 14)])
def test_a_decoder_block_is_few_nodes(precision, most):
    one, two = (
        fused(convert(tiny(num_layers=n), GreedySearch()), precision=precision) for n in (1, 2)
    )
    assert nodes(two, STEPS) - nodes(one, STEPS) <= most
    # An encoder block; and what is computed once a phase for a decoder block's attention.
    assert nodes(two, 0) - nodes(one, 0) <= 20
    assert nodes(two, PHASES) - nodes(one, PHASES) <= 5


def test_a_written_file_is_fused_and_its_steps_hold_what_changes_only(tmp_path):
    written = {}
    for layers in (1, 2):
        export_onnx(tiny(num_layers=layers), tmp_path / str(layers), search=BEAM, verbose=False)
        written[layers] = onnx.load(tmp_path / str(layers) / "model.onnx").graph
    steps = [counts(written[layers], STEPS) for layers in (1, 2)]
    block = steps[1] - steps[0]
    assert block["MultiHeadAttention"] == 2
    assert not block.keys() & {"Softmax", "Transpose", "Gather"}  # beams move no keys and values
    assert block.total() <= 18
    # All of a step but its one block.
    assert (steps[0] - block).total() <= 70


def rules(kind=Rule):
    return [kind, *(rule for subclass in kind.__subclasses__() for rule in rules(subclass))]


@pytest.mark.parametrize("rule", [rule for rule in rules() if "pattern" in vars(rule)])
def test_every_rule_shows_the_graph_before_and_after(rule):
    before, _, after = rule.__doc__.partition("    after    ")
    assert "    before   " in before and after.strip()


def test_sizes_multiply_and_divide_exactly_or_not_at_all():
    rows, beam = symbol("rows"), symbol("beam")
    assert product([rows, 3, beam]) == product([beam, rows, 3])
    assert quotient(product([rows, 6]), 3) == product([rows, 2])
    assert quotient(product([rows, 6]), rows) == 6
    assert quotient(product([rows, 5]), 3) is None
    assert quotient(6, rows) is None


def parsed(text):
    """The `onnx_ir.Model` of a graph in ONNX's textual form."""
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>{text}'))


# A loop whose state `grown` gets one column a step, and whose state `kept` is doubled.
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


def test_shapes_are_followed_through_a_loop():
    model = parsed(GROWING_LOOP)
    shapes = InferredShapes(model.graph)
    x, (loop,) = model.graph.inputs[0], [n for n in model.graph if n.op_type == "Loop"]
    inside = loop.attributes["body"].value
    rows = shapes.dims[x][0]
    assert shapes.dims[inside.inputs[3]] == (rows, 2)  # kept, whatever the step
    assert shapes.dims[inside.inputs[2]][0] == rows
    assert shapes.dims[inside.inputs[2]][1] not in (0, 1, rows)  # grows
    assert shapes.dims[loop.outputs[1]] == (rows, 2)


def test_loop_gives_back_its_weights_and_what_depends_on_them_alone():
    before, model = parsed(GROWING_LOOP), parsed(GROWING_LOOP)
    simplify(model)
    (loop,) = (node for node in model.graph if node.op_type == "Loop")
    operators = [node.op_type for node in loop.attributes["body"].value]
    assert sorted(operators) == ["Add", "Add", "Concat", "Identity"]  # the last: whether to go on
    assert len(loop.inputs) == 2 + 2
    x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
    for one, two in zip(run(before, x=x), run(model, x=x), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("rows, columns", [(1, 1), (5, 3)])
def test_reshapes_become_constant_where_one_size_is_open(rows, columns):
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
    x = np.arange(rows * columns * 6, dtype=np.float32).reshape(rows, columns, 6)
    np.testing.assert_array_equal(run(model, x=x)[0], -x.reshape(-1, 2, 3))
