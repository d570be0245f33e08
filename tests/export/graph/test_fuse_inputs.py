"""Fusion behind other inputs than ids: series, pictures, vectors; few nodes, the same numbers."""

import keras
import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from keras import layers, ops
from support.exports import convert, counts, run, source, tiny

from keras_transformer.export.graph.fuse import fuse_blocks
from keras_transformer.export.graph.shapes import InferredShapes
from keras_transformer.layers.blocks import EncoderBlock

BLOCKS = 2


class ClassToken(layers.Layer):
    """Puts one learned vector before the others."""

    def build(self, shape):
        self.token = self.add_weight(shape=(1, 1, shape[-1]), name="token")

    def call(self, x):
        tokens = ops.broadcast_to(self.token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([tokens, x], axis=1)


def blocks(x):
    """A stack of encoder blocks and a head."""
    for i in range(BLOCKS):
        x = EncoderBlock(2, 17, name=f"block_{i}")(x)
    return layers.Dense(3)(x)


def series():
    x = keras.Input((None, 5), name="x")
    return keras.Model(x, blocks(layers.Conv1D(12, 3, 2, "same", activation="relu")(x)))


def pictures():
    x = keras.Input((12, 8, 3), name="x")
    patches = layers.Reshape((-1, 12))(layers.Conv2D(12, 4, 4)(x))
    return keras.Model(x, blocks(ClassToken()(patches)))


def vectors():
    x = keras.Input((None, 12), name="x")
    return keras.Model(x, blocks(x))


def ids():
    x = keras.Input((None,), dtype="int32", name="x")
    encoder = tiny("encode", vocab_size=50, num_layers=BLOCKS)
    return keras.Model(x, layers.Dense(3)(encoder(x)))


MODELS = {"series": series, "pictures": pictures, "vectors": vectors, "ids": ids}
# Nodes of a written file: those of two blocks, and what stands before and behind them.
MOST = {"series": 37, "pictures": 42, "vectors": 26, "ids": 62}


@pytest.fixture(scope="module", params=MODELS)
def made(request):
    """A model's kind, the Keras model, and what an export makes of it in float32."""
    keras.utils.set_random_seed(5)
    model = MODELS[request.param]()
    graph = convert(model)
    fuse_blocks(graph)
    return request.param, model, graph


def test_every_norm_and_attention_is_one_operator(made):
    kind, _, graph = made
    found = counts(ir.to_proto(graph).graph)
    assert found["LayerNormalization"] == 2 * BLOCKS
    assert found["Attention"] == BLOCKS
    assert found["Gemm"] == 2 * BLOCKS  # feed-forward networks
    assert not found.keys() & {"Softmax", "MultiHeadAttention", "Split", "Reciprocal"}
    assert sum(found.values()) <= MOST[kind]


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_numbers_stay_the_same_for_every_batch(made, batch):
    kind, model, graph = made
    if kind == "ids":
        x = source(3, 7, vocab_size=50)
        x[1] = 0  # a row of padding
    else:
        shape = [9 if size is None else size for size in model.input_shape[1:]]
        x = np.random.default_rng(0).normal(size=(3, *shape)).astype("float32")
    (found,) = run(graph, x=x[:batch])
    np.testing.assert_allclose(found, model(x)[:batch], rtol=1e-4, atol=1e-5)


def test_rotary_models_take_an_empty_batch():
    model = tiny("encode", vocab_size=50, num_layers=1, positions="rotary")
    graph = convert(model)
    fuse_blocks(graph)
    for batch in (0, 3):
        rows = source(3, 7, vocab_size=50)[:batch]
        (found,) = run(graph, source_ids=rows)
        np.testing.assert_allclose(found, model(rows), rtol=1e-4, atol=1e-5)


def test_the_attention_of_keras_is_one_operator_and_the_norm_behind_it():
    keras.utils.set_random_seed(3)
    x = keras.Input((None, 12), name="x")
    attention = layers.MultiHeadAttention(2, 5)
    model = keras.Model(x, layers.LayerNormalization()(layers.Add()([x, attention(x, x)])))
    for variable in attention.variables:  # biases, too
        variable.assign(np.random.default_rng(0).normal(size=variable.shape, scale=0.5))
    graph = convert(model)
    fuse_blocks(graph)
    found = counts(ir.to_proto(graph).graph)
    assert found["LayerNormalization"] == found["Attention"] == 1
    assert sum(found.values()) == 5  # and a product with a bias, the residual
    for batch, length in ((3, 7), (1, 1), (0, 4)):
        rows = np.random.default_rng(0).normal(size=(batch, length, 12)).astype("float32")
        (result,) = run(graph, x=rows)
        np.testing.assert_allclose(result, model(rows), rtol=1e-4, atol=1e-5)


WINDOWS = {
    "Conv<strides = [2]>(x, w)": 9,
    "Conv<pads = [1, 1]>(x, w)": 19,
    "Conv<dilations = [3], pads = [3, 3]>(x, w)": 19,
    'Conv<strides = [2], auto_pad = "SAME_UPPER">(x, w)': 10,
    'Conv<auto_pad = "SAME_LOWER">(x, w)': 19,
    'Conv<strides = [3], auto_pad = "VALID">(x, w)': 6,
    "MaxPool<kernel_shape = [4], strides = [4]>(x)": 4,
    "AveragePool<kernel_shape = [2], pads = [1, 0]>(x)": 19,
    "GlobalAveragePool(x)": 1,
    "GlobalMaxPool(x)": 1,
}


@pytest.mark.parametrize("node, length", WINDOWS.items())
def test_windows_leave_the_length_that_is_expected(node, length):
    text = '<ir_version: 8, opset_import: ["": 17]> main (float[B, 4, {}] x) => (float[?, ?, ?] y) '
    text += "<float[4, 4, 3] w = {{{}}}> {{ y = {} }}"
    weights = ",".join(["1.0"] * 48)
    model = ir.from_proto(onnx.parser.parse_model(text.format(19, weights, node)))
    (found,) = run(model, x=np.ones((2, 4, 19), np.float32))
    dims = InferredShapes(model.graph).dims[model.graph.outputs[0]]
    assert found.shape[1:] == dims[1:] == (4, length)
    free = ir.from_proto(onnx.parser.parse_model(text.format("S", weights, node)))
    shapes = InferredShapes(free.graph)
    before, after = (shapes.dims[value[0]] for value in (free.graph.inputs, free.graph.outputs))
    assert before[0] == after[0] and after[1] == 4
    assert (after[2] == before[2]) == (length == 19) and (after[2] == 1) == (length == 1)


class PowerNorm(layers.Layer):
    """A norm by the root mean square as KerasHub's models write it."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), name="scale")

    def call(self, x):
        mean = keras.ops.mean(keras.ops.power(x, 2), axis=-1, keepdims=True)
        return x * keras.ops.rsqrt(mean + 1e-6) * self.scale


@pytest.mark.parametrize("norm", [layers.RMSNormalization, PowerNorm])
def test_norms_by_the_root_mean_square_divide_once(norm):
    """So written, ONNX Runtime computes each by one operator."""
    keras.utils.set_random_seed(3)
    x = keras.Input((None, 8), name="x")
    model = keras.Model(x, norm(name="norm")(x))
    model.layers[-1].scale.assign(np.linspace(0.5, 2, 8))
    made = convert(model)
    fuse_blocks(made)
    found = counts(ir.to_proto(made).graph)
    assert (found["Reciprocal"], found["Div"], found["Mul"], found["Pow"]) == (0, 1, 1, 1)
    x = np.random.default_rng(1).normal(size=(3, 5, 8)).astype("float32")
    np.testing.assert_allclose(run(made, x=x)[0], model(x), rtol=1e-5, atol=1e-5)
