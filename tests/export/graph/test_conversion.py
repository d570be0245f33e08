"""Conversion of other layers: recurrent layers, convolutions, tensors that a layer keeps.

Models near the patterns of graph rewrites are here, too: the rewrites must leave them alone.
"""

import collections

import keras
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
import tensorflow as tf
from helpers.exports import (
    Function,
    built,
    check,
    convert,
    fused,
    numbers,
    operators,
    parsed,
    run,
    same_results,
    settled,
    source,
    tiny,
)
from keras import layers, ops

from keras_transformer.export import ExportError
from keras_transformer.export.graph.loops import sink_weights
from keras_transformer.export.graph.simplify import remove_copies, simplify
from keras_transformer.layers.blocks import EncoderBlock

# Keras 3.16 warns that recurrent layers do not pass a mask on.
MASK_STOPS = "ignore:.*does not support masking:UserWarning"
TABLE, ORDER = tf.constant(np.arange(5), tf.float32), tf.constant([0, 2, 1])


def recurrent(layer):
    """Returns a function that applies a recurrent layer and an encoder block."""
    return lambda x: EncoderBlock(2, 11, name="block")(layer(x))


def residual_network(x):
    """Applies a stem, two residual blocks and a head, as in ResNets and MobileNets."""
    x = layers.MaxPooling2D(2)(layers.ZeroPadding2D(1)(layers.Conv2D(5, 3)(x)))
    for options in ({}, {"scale": False}):
        y = layers.ReLU(6)(layers.BatchNormalization(**options)(x))
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(7, 1, use_bias=False)(y)))
        y = layers.DepthwiseConv2D(3, padding="same")(y)
        y = layers.Activation("silu")(layers.BatchNormalization(center=False)(y))
        gate = layers.GlobalAveragePooling2D(keepdims=True)(y)
        gate = layers.Conv2D(7, 1, activation="hard_sigmoid")(gate)
        y = layers.Conv2D(5, 1)(layers.Multiply()([y, gate]))
        x = layers.Add()([x, y])
    x = layers.Concatenate()([x, layers.Conv2D(5, 3, padding="same", groups=5)(x)])
    return layers.Dense(4)(layers.GlobalAveragePooling2D()(x))


def pooled(padding):
    """Returns a function that pools zero padding.

    ONNX Runtime pads with -inf instead if the MaxPool has the attribute `pads`.
    """
    pool = layers.MaxPooling2D(3, 2, padding=padding)
    return lambda x: pool(layers.ZeroPadding2D(1)(layers.Conv2D(5, 3)(x)))


def grouped(multiplier):
    """Returns a function with convolutions that TensorFlow compiles in separate functions."""
    first = layers.Conv2D(3 * multiplier, 3, padding="same", groups=3)
    return lambda x: layers.Conv2D(4, 3, groups=1)(first(x))


def padded_mask(fill):
    def pad(x):
        mask = ops.pad(x > 0, [[0, 0], [1, 2], [0, 1]], constant_values=fill)
        return ops.cast(mask, "float32")

    return pad


def wrapped_index(x, table):
    index = ops.cast(ops.floor(5 * x[..., 0]), "int32") % 9 - 4
    return ops.take(table, ops.where(index < 0, index + 5, index), axis=0)  # not the table's size


def heads(query, key):
    """Computes attention of two heads, with a batch of queries that may be 1."""

    def split(x):
        return ops.transpose(ops.reshape(x, (-1, ops.shape(x)[1], 2, 3)), (0, 2, 1, 3))

    scores = ops.matmul(split(query), ops.transpose(split(key), (0, 1, 3, 2))) * 0.5
    joined = ops.matmul(ops.softmax(scores), split(key))
    return ops.reshape(ops.transpose(joined, (0, 2, 1, 3)), (-1, ops.shape(query)[1], 6))


def between(function, *shapes):
    """Returns a function that applies a dense layer, a function with weights, and another one."""
    return lambda x: layers.Dense(3)(Function(function, *shapes)(layers.Dense(6)(x)))


def with_largest(x):
    y = layers.Conv2D(3, 3)(x)
    return {"features": y, "most": ops.max(ops.cast(y * 10, "int32"), axis=(1, 2)) + 1}


def overflowing(x):
    large = keras.initializers.Constant(1103515245)
    seed = Function(
        lambda x, seed: seed * 3 + ops.shape(x)[1], (), initializer=large, dtype="int32"
    )
    return Function(lambda both: both[0] * ops.cast(both[1] % 7, "float32"))([x, seed(x)])


PICTURE = (6, 7, 2)
# {name: (function of the input, shape of the input, shapes of arrays, counts of operators)}
LAYERS = {
    "LSTM": (
        recurrent(layers.LSTM(6, return_sequences=True)),
        (None, 5),
        [(3, 7, 5)],
        {"LSTM": 1, "Loop": 0},
    ),
    "GRU": (recurrent(layers.GRU(6, return_sequences=True)), (None, 5), [(2, 1, 5), (2, 7, 5)], {}),
    "bidirectional": (
        recurrent(layers.Bidirectional(layers.LSTM(3, return_sequences=True))),
        (None, 5),
        [(2, 1, 5), (2, 7, 5)],
        {},
    ),
    "RNN of a cell": (
        recurrent(layers.RNN(layers.SimpleRNNCell(6), return_sequences=True)),
        (None, 5),
        [(2, 1, 5), (2, 7, 5)],
        {},
    ),
    "a compiled function beside a recurrent layer": (
        lambda x: layers.LSTM(5, return_sequences=True)(layers.Conv1D(4, 3, groups=2)(x)),
        (7, 6),
        [(2, 7, 6)],
        {"LSTM": 1},
    ),
    "a tensor that a layer keeps": (
        Function(lambda x: tf.transpose(x, ORDER) + TABLE[:, None]),
        (None, 5),
        [(3, 7, 5)],
        {},
    ),
    "an output that is a weight": (
        lambda x: {
            "sums": layers.Dense(2)(x),
            "weight": Function(lambda x, weight: ops.convert_to_tensor(weight), (5,))(x),
        },
        (3,),
        [(3, 3)],
        {},
    ),
    "valid pooling": (pooled("valid"), (17, 13, 3), [(2, 17, 13, 3)], {}),
    "same pooling": (pooled("same"), (17, 13, 3), [(2, 17, 13, 3)], {}),
    "groups": (grouped(1), (7, 5, 6), [(2, 7, 5, 6)], {"Conv": 2}),
    "wide groups": (grouped(2), (7, 5, 6), [(2, 7, 5, 6)], {"Conv": 2}),
    "a mask padded by True": (padded_mask(True), (5, 3), [(2, 5, 3)], {}),
    "a mask padded by False": (padded_mask(False), (5, 3), [(2, 5, 3)], {}),
    "residual network": (residual_network, (13, 11, 3), [(1, 13, 11, 3), (3, 13, 11, 3)], {}),
    **{
        f"transposed convolution {number}": (layer, shape, [(3, *shape)], {})
        for number, (layer, shape) in enumerate(
            [
                (layers.Conv1DTranspose(3, 4, strides=3, output_padding=2), (7, 2)),
                (layers.Conv2DTranspose(3, (4, 5), (3, 2), output_padding=(2, 1)), PICTURE),
                (layers.Conv2DTranspose(3, 3, 3, output_padding=(0, 2)), PICTURE),
                (layers.Conv2DTranspose(3, 3, 2, output_padding=1, padding="same"), PICTURE),
                (layers.Conv2DTranspose(3, 2, 3), PICTURE),  # a kernel smaller than its stride
                (layers.Conv3DTranspose(3, 2, 2, output_padding=(1, 0, 1)), (2, 3, 5, 2)),
            ]
        )
    },
    **{
        f"group norm {groups} {shape}": (
            lambda x, groups=groups: layers.GroupNormalization(groups)(layers.Dense(12)(x)),
            shape,
            [(3, *shape)],
            {},
        )
        for groups in (1, 3, 12)
        for shape in [(12,), (5, 12)]
    },
    "wrapped index": (between(wrapped_index, (9, 6)), (None, 6), [(3, 4, 6)], {}),
    "kernel of three axes": (
        between(lambda x, w, b: ops.relu(ops.matmul(x, w) + b), (1, 6, 5), (5,)),
        (None, 6),
        [(3, 4, 6)],
        {},
    ),
    "bias wider than the product": (
        between(lambda x, w, b: ops.sigmoid(ops.matmul(x, w) + b), (6, 1), (5,)),
        (None, 6),
        [(3, 4, 6)],
        {},
    ),
    "queries of one row": (
        between(lambda x, query: heads(ops.tile(query, (1, 1, 1)), x), (1, 5, 6)),
        (None, 6),
        [(3, 4, 6)],
        {},
    ),
    "float64": (
        lambda x: ops.cast(Function(lambda v: heads(v, v), dtype="float64")(x), "float32"),
        (None, 6),
        [(3, 4, 6)],
        {},
    ),
    "a size divided by a negative number": (
        Function(lambda x: x[:, : -(ops.shape(x)[1] // -2)] * 2.0),
        (None, 6),
        [(2, 4, 6), (2, 5, 6)],
        {},
    ),
    "integers beside convolutions": (with_largest, (5, 5, 2), [(2, 5, 5, 2)], {}),
    "integer weights overflow as in TensorFlow": (overflowing, (None, 6), [(3, 4, 6)], {}),
}


@pytest.mark.full("RNN of a cell", "LSTM", "residual network", "bidirectional")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_keras_computes(name):
    function, shape, sizes, expected = LAYERS[name]
    model = settled(built(function, *shape))
    made = fused(model)
    found = operators(made)
    assert {operator: found[operator] for operator in expected} == expected
    assert [value.name for value in made.graph.inputs] == ["x"]  # no tensor that a layer keeps
    for size in sizes:
        check(model, made, x=numbers(*size))


def embedded(layer):
    """Returns a function that applies a recurrent layer to ids with padding."""
    return lambda x: layer(layers.Embedding(50, 6, mask_zero=True)(x))


@pytest.mark.full("GRU")
@pytest.mark.filterwarnings(MASK_STOPS)
@pytest.mark.parametrize("layer", [layers.LSTM, layers.GRU])
def test_recurrent_layers_skip_padding(layer):
    both = layers.Bidirectional(layer(4, name="chain"))
    model = built(embedded(both), None, dtype="int32")
    made = fused(model)
    check(model, made, x=source(4, 7, vocab_size=50))
    names = {name for name in made.graph.initializers if "chain" in name and "kernel" in name}
    assert names <= {variable.path for variable in model.variables} and len(names) == 4


ROWS = """
main (float[T, B, 2] x, int64 count) => (float[B, 3] y)
<float[2, 3] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, float[3] b = {0.1, 0.2, 0.3},
 float[1, 3] zeros = {0.0, 0.0, 0.0}, bool yes = {1}, int64[3] order = {2, 0, 1}> {
    xs = Tanh(x)
    y = Loop(count, yes, zeros) <body = step (int64 i, bool go, float[B, 3] h) =>
        (bool go_on, float[B, 3] next) {
        go_on = Identity(go)
        PLACE
        row = Gather<axis = AXIS>(xs, place)
        product = MatMul(row, w)
        shifted = Add(b, product)
        next = Add(shifted, h)
    }>
}"""


@pytest.mark.parametrize(
    ("place", "axis", "inside"),
    [
        ("place = Identity(i)", 0, ["Gather", "Add"]),
        ("place = Gather(order, i)", 0, ["Gather", "Gather", "MatMul", "Add", "Add"]),
        ("place = Identity(i)", 1, ["Gather", "MatMul", "Add", "Add"]),
    ],
    ids=["row of the step", "another row", "another axis"],
)
def test_work_on_the_row_of_a_step_moves_out_of_the_loop(place, axis, inside):
    text = ROWS.replace("PLACE", place).replace("AXIS", str(axis))
    before, model = parsed(text), parsed(text)
    simplify(model)
    (loop,) = (node for node in model.graph if node.op_type == "Loop")
    body = [node.op_type for node in loop.attributes["body"].value if node.op_type != "Identity"]
    assert body == inside
    for count in (0, 2, 3):
        same_results(before, model, rtol=1e-6, x=numbers(3, 3, 2), count=np.array(count))


@pytest.mark.filterwarnings(MASK_STOPS)
@pytest.mark.parametrize("layer, selections", [(layers.LSTM, 3), (layers.GRU, 2)])
def test_a_step_of_a_masked_recurrent_layer_is_few_nodes(layer, selections):
    """A step has one product. It skips padding by `Where`, not by products with 0."""
    chain = layer(4, return_sequences=True)
    made = fused(built(embedded(chain), None, dtype="int32"))
    (loop,) = (node for node in made.graph if node.op_type == "Loop")
    found = collections.Counter(node.op_type for node in loop.attributes["body"].value)
    products = found["MatMul"] + found["Gemm"]
    assert (products, found["Where"], found["Not"]) == (1, selections, 0)


def test_weights_sink_into_their_loop_unless_others_read_them():
    text = ROWS.replace("PLACE", "place = Gather(order, i)").replace("AXIS", "0")
    text = text.replace("y = Loop", "z = MatMul(xs, w) y = Loop")
    text = text.replace("float[B, 3] y)", "float[B, 3] y, float[T, B, 3] z)")
    before, model = parsed(text), parsed(text)
    sink_weights(model.graph)
    (body,) = (graph for graph in model.graphs() if graph.name == "step")
    assert set(body.initializers) == {"b", "order", "w/shape"} and "w" in model.graph.initializers
    assert body[0].op_type == "Reshape" and body[0].outputs[0].name == "w/step"
    same_results(before, model, rtol=1e-6, x=numbers(3, 3, 2), count=np.array(3))


def test_a_table_that_a_layer_keeps_is_refused():
    """A lookup table is no tensor."""
    pairs = tf.lookup.KeyValueTensorInitializer([1, 2], [3.0, 4.0], tf.int32, tf.float32)
    table = tf.lookup.StaticHashTable(pairs, 0.0)
    with pytest.raises(ExportError, match="neither weight nor input nor constant"):
        convert(built(Function(lambda x: table.lookup(x)), 3, dtype="int32"))


def test_an_encoder_that_is_used_twice_is_in_the_file_once():
    encoder = tiny("encode", vocab_size=50, num_layers=1)
    pairs = [keras.Input((None,), dtype="int32", name=name) for name in ("first", "second")]
    one, two = (layers.GlobalAveragePooling1D()(encoder(ids)) for ids in pairs)
    model = keras.Model(pairs, layers.Dot(1)([one, two]))
    made = fused(model)
    packed = [name for name in made.graph.initializers if "query_key_value/kernel" in name]
    assert len([name for name in packed if not name.endswith("sizes")]) == 1
    assert operators(made)["Attention"] == 2
    check(model, made, first=source(3, 7, vocab_size=50), second=source(3, 4, vocab_size=50))


TWICE = """
main (float[2, 2] x) => (float[2, 2] y, float[2, 2] z)
<float[2, 2] w = {1.0, 2.0, 3.0, 4.0}, int64 count = {1}, bool yes = {1}> {
    z = MatMul(x, w)
    y = Loop(count, yes, x) <body = phase (int64 i, bool go, float[2, 2] a) =>
        (bool go_on, float[2, 2] b) {
        go_on = Identity(go)
        b = Loop(count, yes, a) <body = step (int64 j, bool on, float[2, 2] c) =>
            (bool stay, float[2, 2] d) {
            stay = Identity(on)
            once = MatMul(c, w)
            d = MatMul(once, w)
        }>
    }>
}"""


def test_a_weight_that_a_step_reads_twice_sinks_into_it_once():
    before, model = parsed(TWICE), parsed(TWICE)
    sink_weights(model.graph)
    steps = [graph for graph in model.graphs() if graph.name == "step"]
    found = [node.op_type for node in steps[0]]
    assert found == ["Reshape", "Identity", "MatMul", "MatMul"]
    same_results(before, model, rtol=1e-6, x=numbers(2, 2))


BRANCHES = """
<ir_version: 9, opset_import: ["": 18]>
main (float[3] x, bool wants) => (float[3] y) {
    n = Neg(x)
    y = If(wants) <
        then_branch = then () => (float[3] a) { a = Identity(n) },
        else_branch = other () => (float[3] b) { b = Neg(n) }
    >
}"""


def test_a_value_of_another_graph_stays_a_copy_in_the_outputs_of_a_branch():
    """A branch may only give what it makes."""
    model = ir.from_proto(onnx.parser.parse_model(BRANCHES))
    remove_copies(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for value, sign in ((True, -1), (False, 1)):
        (found,) = run(model, x=np.ones(3, "float32"), wants=np.array(value))
        np.testing.assert_array_equal(found, sign * np.ones(3))
