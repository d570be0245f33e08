"""Conversion of other layers: recurrent layers, tensors that a layer keeps, layers used twice."""

import collections

import keras
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
import tensorflow as tf
from helpers.exports import (
    check,
    convert,
    fused,
    numbers,
    operators,
    run,
    source,
    tiny,
)
from keras import layers, ops
from onnx import helper

from keras_transformer.export import ExportError
from keras_transformer.export.graph.loops import sink_weights
from keras_transformer.export.graph.simplify import remove_copies, simplify
from keras_transformer.layers.blocks import EncoderBlock

# Keras 3.16 warns that recurrent layers do not pass a mask on.
MASK_STOPS = "ignore:.*does not support masking:UserWarning"


def recurrent(layer):
    """Returns a model of a recurrent layer and an encoder block."""
    keras.utils.set_random_seed(3)
    x = inputs = keras.Input((None, 5), name="x")
    x = layer(x)
    return keras.Model(inputs, EncoderBlock(2, 11, name="block")(x))


def test_an_lstm_is_one_operator():
    model = recurrent(layers.LSTM(6, return_sequences=True))
    made = fused(model)
    found = operators(made)
    assert found["LSTM"] == 1 and found["Loop"] == 0
    check(model, made, x=numbers(3, 7, 5))


@pytest.mark.parametrize(
    "layer",
    [
        layers.GRU(6, return_sequences=True),
        layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
        layers.RNN(layers.SimpleRNNCell(6), return_sequences=True),
    ],
    ids=lambda layer: layer.name,
)
def test_recurrent_layers_are_converted(layer):
    model = recurrent(layer)
    made = fused(model)
    for length in (1, 7):
        x = numbers(2, length, 5)
        check(model, made, x=x)


@pytest.mark.filterwarnings(MASK_STOPS)
@pytest.mark.parametrize("layer", [layers.LSTM, layers.GRU])
def test_recurrent_layers_skip_padding(layer):
    keras.utils.set_random_seed(3)
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.Embedding(50, 6, mask_zero=True)(ids)
    model = keras.Model(ids, layers.Bidirectional(layer(4, name="chain"))(x))
    made = fused(model)
    check(model, made, ids=source(4, 7, vocab_size=50))
    names = {name for name in made.graph.initializers if "chain" in name and "kernel" in name}
    assert names <= {variable.path for variable in model.variables} and len(names) == 4


ROWS = """
<ir_version: 8, opset_import: ["": 17]>
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
    model = ir.from_proto(onnx.parser.parse_model(text))
    x = numbers(3, 3, 2)
    steps = [{"x": x, "count": np.array(count)} for count in (0, 2, 3)]
    before = [run(model, **inputs)[0] for inputs in steps]
    simplify(model)
    (loop,) = (node for node in model.graph if node.op_type == "Loop")
    body = [node.op_type for node in loop.attributes["body"].value if node.op_type != "Identity"]
    assert body == inside
    for inputs, expected in zip(steps, before, strict=True):
        np.testing.assert_allclose(run(model, **inputs)[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings(MASK_STOPS)
@pytest.mark.parametrize("layer", [layers.LSTM, layers.GRU])
def test_a_step_of_a_masked_recurrent_layer_is_few_nodes(layer):
    """A step has one product. It skips padding by `Where`, not by products with 0."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.Embedding(50, 6, mask_zero=True)(ids)
    made = fused(keras.Model(ids, layer(4, return_sequences=True)(x)))
    (loop,) = (node for node in made.graph if node.op_type == "Loop")
    found = collections.Counter(node.op_type for node in loop.attributes["body"].value)
    assert (found["MatMul"] + found["Gemm"], found["Where"], found["Not"]) == (
        1,
        3 if layer is layers.LSTM else 2,
        0,
    )


def test_weights_sink_into_their_loop_unless_others_read_them():
    text = ROWS.replace("PLACE", "place = Gather(order, i)").replace("AXIS", "0")
    model = ir.from_proto(
        onnx.parser.parse_model(
            text.replace("y = Loop", "z = MatMul(xs, w) y = Loop").replace(
                "float[B, 3] y)", "float[B, 3] y, float[T, B, 3] z)"
            )
        )
    )
    inputs = {"x": np.ones((3, 3, 2), np.float32), "count": np.array(3)}
    before = run(model, **inputs)
    sink_weights(model.graph)
    (body,) = (graph for graph in model.graphs() if graph.name == "step")
    assert set(body.initializers) == {"b", "order", "w/shape"} and "w" in model.graph.initializers
    assert body[0].op_type == "Reshape" and body[0].outputs[0].name == "w/step"
    for one, two in zip(before, run(model, **inputs), strict=True):
        np.testing.assert_array_equal(one, two)


class Kept(layers.Layer):
    """Adds an eager tensor that `build` made."""

    def build(self, shape):
        self.table = tf.constant(np.arange(shape[-1]), tf.float32)
        self.order = tf.constant([0, 2, 1])

    def call(self, x):
        return tf.transpose(x, self.order) + self.table[:, None]


def test_a_tensor_that_a_layer_keeps_is_a_constant():
    x = keras.Input((None, 5), name="x")
    model = keras.Model(x, Kept()(x))
    made = fused(model)
    assert [value.name for value in made.graph.inputs] == ["x"]
    check(model, made, x=numbers(3, 7, 5))


class Own(layers.Layer):
    """Returns its weight."""

    def build(self, shape):
        self.weight = self.add_weight(shape=(5,), initializer="normal", name="weight")

    def call(self, x):
        return ops.convert_to_tensor(self.weight)


def test_an_output_may_be_a_weight():
    x = keras.Input((3,), name="x")
    model = keras.Model(x, {"sums": layers.Dense(2)(x), "weight": Own()(x)})
    check(model, fused(model), x=numbers(3, 3))


class Looked(layers.Layer):
    """Reads a lookup table, which is no tensor."""

    def build(self, shape):
        pairs = tf.lookup.KeyValueTensorInitializer([1, 2], [3.0, 4.0], tf.int32, tf.float32)
        self.table = tf.lookup.StaticHashTable(pairs, 0.0)

    def call(self, x):
        return self.table.lookup(x)


def test_a_table_that_a_layer_keeps_is_refused():
    x = keras.Input((3,), dtype="int32", name="x")
    with pytest.raises(ExportError, match="neither weight nor input nor constant"):
        convert(keras.Model(x, Looked()(x)))


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


def test_a_weight_that_a_step_reads_twice_sinks_into_it_once():
    model = ir.from_proto(
        onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
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
        }""")
    )
    x = np.array([[1.0, 0.5], [-1.0, 2.0]], np.float32)
    before = run(model, x=x)
    sink_weights(model.graph)
    steps = [graph for graph in model.graphs() if graph.name == "step"]
    found = [node.op_type for node in steps[0]]
    assert found == ["Reshape", "Identity", "MatMul", "MatMul"]
    for one, two in zip(before, run(model, x=x), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_max_pooling_reads_zero_padding(padding):
    """ONNX Runtime pads with -inf instead if the MaxPool has the attribute `pads`."""
    keras.utils.set_random_seed(3)
    x = keras.Input((17, 13, 3), name="x")
    padded = layers.ZeroPadding2D(1)(layers.Conv2D(5, 3)(x))
    model = keras.Model(x, layers.MaxPooling2D(3, 2, padding=padding)(padded))
    inputs = numbers(2, 17, 13, 3)
    check(model, fused(model), x=inputs)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_grouped_convolutions_are_one_operator(multiplier):
    """Keras lets TensorFlow compile each of them in a separate function."""
    keras.utils.set_random_seed(3)
    x = keras.Input((7, 5, 6), name="x")
    y = layers.Conv2D(3 * multiplier, 3, padding="same", groups=3)(x)
    model = keras.Model(x, layers.Conv2D(4, 3, groups=1)(y))
    made = fused(model)
    found = [node.attributes["group"].value for node in made.graph if node.op_type == "Conv"]
    assert found == [3, 1]
    check(model, made, x=numbers(2, 7, 5, 6))


def test_a_compiled_function_beside_a_recurrent_layer_is_converted():
    keras.utils.set_random_seed(3)
    x = keras.Input((7, 6), name="x")
    y = layers.LSTM(5, return_sequences=True)(layers.Conv1D(4, 3, groups=2)(x))
    model = keras.Model(x, y)
    made = fused(model)
    assert operators(made)["LSTM"] == 1
    check(model, made, x=numbers(2, 7, 6))


@pytest.mark.parametrize("fill", [True, False])
def test_a_mask_is_padded(fill):
    x = keras.Input((5, 3), name="x")
    mask = keras.ops.pad(x > 0, [[0, 0], [1, 2], [0, 1]], constant_values=fill)
    model = keras.Model(x, keras.ops.cast(mask, "float32"))
    check(model, fused(model), x=numbers(2, 5, 3))


def test_a_value_of_another_graph_stays_a_copy_in_the_outputs_of_a_branch():
    """A branch may only give what it makes."""
    floats = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xyab"]
    x, y, *inside = floats
    then = helper.make_graph([helper.make_node("Identity", ["n"], ["a"])], "then", [], inside[:1])
    other = helper.make_graph([helper.make_node("Neg", ["n"], ["b"])], "other", [], inside[1:])
    wants = helper.make_tensor_value_info("wants", onnx.TensorProto.BOOL, [])
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("If", ["wants"], ["y"], then_branch=then, else_branch=other),
    ]
    graph = helper.make_graph(nodes, "main", [x, wants], [y])
    opset = [helper.make_opsetid("", 18)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opset, ir_version=9))
    remove_copies(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    for value, sign in ((True, -1), (False, 1)):
        (found,) = session.run(None, {"x": np.ones(3, "float32"), "wants": np.array(value)})
        np.testing.assert_array_equal(found, sign * np.ones(3))
