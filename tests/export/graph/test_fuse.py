"""Simplification and fusion: fewer nodes, the same numbers."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from support import exports
from support.exports import BEAM, convert, counts, graph, run, source, tiny

from keras_transformer.export.graph.fuse import fuse_blocks
from keras_transformer.export.graph.shapes import Known
from keras_transformer.export.graph.simplify import simplify
from keras_transformer.export.graph.sizes import product, quotient, unknown
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
    simplify(made)
    return made


def nodes(model, depth):
    return sum(counts(ir.to_proto(model).graph, depth).values())


def test_simplifying_changes_no_bit_of_the_tokens(converted):
    before = run(graph(converted), source_ids=source())
    after = run(simplified(converted), source_ids=source())
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_allclose(after[1], before[1], rtol=1e-5)


@pytest.mark.parametrize("skip_norms", [False, True])
def test_fusing_gives_the_same_tokens_and_scores(converted, skip_norms):
    ids = source()
    ids[1] = 0  # a sentence of padding: attention to nothing gives zeros, not means
    before = run(graph(converted), source_ids=ids)
    after = run(fused(converted, skip_norms=skip_norms), source_ids=ids)
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_allclose(after[1], before[1], rtol=1e-5)


def test_fusing_gives_the_same_logits_with_padding_on_both_sides(forward):
    feed = {"source_ids": source(5, 7), "target_ids": source(5, 5, seed=1)}
    feed["source_ids"][2] = 0
    (before,), (after,) = run(graph(forward), **feed), run(fused(forward), **feed)
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("skip_norms", [False, True])
def test_every_norm_and_attention_is_one_operator(converted, skip_norms):
    found = counts(ir.to_proto(fused(converted, skip_norms=skip_norms)).graph)
    # Two blocks of two norms, and two of three; two attentions more than encoder blocks.
    norm = "SkipLayerNormalization" if skip_norms else "LayerNormalization"
    assert found[norm] == 2 * 2 + 2 * 3
    assert found["Sum"] == (0 if skip_norms else found[norm])  # residuals
    assert found["MultiHeadAttention"] == 2 + 2 * 2
    norms = {"LayerNormalization", "SkipLayerNormalization"} - {norm}
    assert not found.keys() & {"ReduceMean", "Reciprocal", "Softmax", *norms}
    assert found["FusedMatMul"] == 1  # logits, by the embedding as it is


@pytest.mark.parametrize("skip_norms, most", [(False, 18), (True, 14)])
def test_a_decoder_block_is_few_nodes(skip_norms, most):
    one, two = (
        fused(convert(tiny(num_layers=n), GreedySearch()), skip_norms=skip_norms) for n in (1, 2)
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


def test_sizes_multiply_and_divide_exactly_or_not_at_all():
    rows, beam = unknown("rows"), unknown("beam")
    assert product([rows, 3, beam]) == product([beam, rows, 3])
    assert quotient(product([rows, 6]), 3) == product([rows, 2])
    assert quotient(product([rows, 6]), rows) == 6
    assert quotient(product([rows, 5]), 3) is None
    assert quotient(6, rows) is None


def growing_loop():
    """A loop whose state `grown` gets one column a step, and whose state `kept` is doubled."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["more"], ["go_on"]),
            helper.make_node("Concat", ["grown", "column"], ["longer"], axis=1),
            helper.make_node("Add", ["kept", "kept"], ["doubled"]),
            helper.make_node("Shape", ["kept"], ["sizes"]),
            helper.make_node("Reshape", ["doubled", "sizes"], ["reshaped"]),
            helper.make_node("Identity", ["weight"], ["weight_after"]),
            helper.make_node("Neg", ["weight"], ["negative"]),
            helper.make_node("Add", ["reshaped", "negative"], ["sum"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("grown", TensorProto.FLOAT, [None, None]),
            helper.make_tensor_value_info("kept", TensorProto.FLOAT, [None, 2]),
            helper.make_tensor_value_info("weight", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("longer", TensorProto.FLOAT, [None, None]),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, [None, 2]),
            helper.make_tensor_value_info("weight_after", TensorProto.FLOAT, [2]),
        ],
    )
    main = helper.make_graph(
        [
            helper.make_node("Slice", ["x", "zero", "zero", "one"], ["empty"]),
            helper.make_node("Slice", ["x", "zero", "one", "one"], ["column"]),
            helper.make_node(
                "Loop", ["count", "yes", "empty", "x", "w"], ["wide", "y", "w_after"], body=body
            ),
        ],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2])],
        [
            helper.make_tensor_value_info("wide", TensorProto.FLOAT, ["rows", None]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 2]),
        ],
        [
            helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
            helper.make_tensor("one", TensorProto.INT64, [1], [1]),
            helper.make_tensor("count", TensorProto.INT64, [], [3]),
            helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
            helper.make_tensor("w", TensorProto.FLOAT, [2], [0.5, 0.25]),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    return ir.from_proto(helper.make_model(main, opset_imports=opsets, ir_version=8))


def test_shapes_are_followed_through_a_loop():
    model = growing_loop()
    known = Known(model.graph)
    x, (loop,) = model.graph.inputs[0], [n for n in model.graph if n.op_type == "Loop"]
    inside = loop.attributes["body"].value
    rows = known.dims[x][0]
    assert known.dims[inside.inputs[3]] == (rows, 2)  # kept, whatever the step
    assert known.dims[inside.inputs[2]][0] == rows
    assert known.dims[inside.inputs[2]][1] not in (0, 1, rows)  # grows
    assert known.dims[loop.outputs[1]] == (rows, 2)


def test_loop_gives_back_its_weights_and_what_depends_on_them_alone():
    before, model = growing_loop(), growing_loop()
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
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "first"], ["rows"]),
        helper.make_node("Concat", ["rows", "six"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("Reshape", ["flat", "deep"], ["y"]),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    constants = {"first": [0], "six": [-1], "deep": [-1, 2, 3]}
    main = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "columns", 6])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, 2, 3])],
        [helper.make_tensor(k, TensorProto.INT64, [len(v)], v) for k, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    proto = helper.make_model(main, opset_imports=opsets, ir_version=8)
    model = ir.from_proto(proto)
    simplify(model)
    assert [node.op_type for node in model.graph] == ["Reshape", "Neg"]
    x = np.arange(rows * columns * 6, dtype=np.float32).reshape(rows, columns, 6)
    np.testing.assert_array_equal(run(model, x=x)[0], -x.reshape(-1, 2, 3))
