"""Fusion of users' models: inputs other than ids, and layers that are written by hand."""

import keras
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.exports import (
    check,
    convert,
    counts,
    fused,
    numbers,
    operators,
    parsed,
    run,
    session,
    source,
    tiny,
)
from keras import layers, ops

from keras_transformer.export import export_onnx
from keras_transformer.export.graph import fuse_attention
from keras_transformer.export.graph.loops import sink_weights
from keras_transformer.export.graph.quantize import reduce_precision
from keras_transformer.layers.blocks import EncoderBlock
from keras_transformer.layers.positions import LearnedPositionEncoding

BLOCKS = 2
X = numbers(3, 5, 4)


class ClassToken(layers.Layer):
    """Prepends a learned vector."""

    def build(self, shape):
        self.token = self.add_weight(shape=(1, 1, shape[-1]), name="token")

    def call(self, x):
        tokens = ops.broadcast_to(self.token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([tokens, x], axis=1)


def blocks(x):
    """Applies a stack of encoder blocks and a head."""
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


# `most` limits the nodes of the file: two blocks and the layers around them.
@pytest.mark.parametrize("build, most", [(series, 37), (pictures, 42), (vectors, 26), (ids, 62)])
def test_every_norm_and_attention_is_one_operator(build, most):
    keras.utils.set_random_seed(5)
    model = build()
    exported = fused(model)
    found = operators(exported)
    assert found["LayerNormalization"] == 2 * BLOCKS
    assert found["Attention"] == BLOCKS
    assert found["Gemm"] == 2 * BLOCKS  # feed-forward networks
    assert not found.keys() & {"Softmax", "MultiHeadAttention", "Split", "Reciprocal"}
    assert sum(found.values()) <= most
    x = numbers(3, *(9 if size is None else size for size in model.input_shape[1:]))
    if build is ids:
        x = source(3, 7, vocab_size=50)
        x[1] = 0  # a row of padding
    for batch in (0, 1, 3):
        (found,) = run(exported, x=x[:batch])
        np.testing.assert_allclose(found, model(x)[:batch], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("free", [False, True])
def test_long_sequences_are_projected_before_the_attention(free):
    keras.utils.set_random_seed(5)
    x = keras.Input((None if free else fuse_attention.LONG, 12), name="x")
    places = LearnedPositionEncoding(fuse_attention.MOST_POSITIONS) if free else layers.Identity()
    model = keras.Model(x, blocks(places(x)))
    exported = fused(model)
    found = operators(exported)
    assert found["MultiHeadAttention"] == BLOCKS and not found["Attention"]
    check(model, exported, x=numbers(1, fuse_attention.LONG, 12))


def test_rotary_models_take_an_empty_batch():
    model = tiny("encode", vocab_size=50, num_layers=1, positions="rotary")
    exported = fused(model)
    for batch in (0, 3):
        check(model, exported, source_ids=source(3, 7, vocab_size=50)[:batch])


def test_keras_attention_and_its_norm_are_one_operator_each():
    keras.utils.set_random_seed(3)
    x = keras.Input((None, 12), name="x")
    attention = layers.MultiHeadAttention(2, 5)
    model = keras.Model(x, layers.LayerNormalization()(layers.Add()([x, attention(x, x)])))
    for variable in attention.variables:  # biases, too
        variable.assign(0.5 * numbers(*variable.shape))
    exported = fused(model)
    found = operators(exported)
    assert found["LayerNormalization"] == found["Attention"] == 1
    assert sum(found.values()) == 5  # and a product with a bias, the residual
    for shape in ((3, 7, 12), (1, 1, 12), (0, 4, 12)):
        check(model, exported, x=numbers(*shape))


class WrittenNorm(layers.Layer):
    """Layer normalization in one of the two orders that versions of Keras use."""

    def __init__(self, folded):
        super().__init__()
        self.folded = folded

    def build(self, shape):
        self.gamma, self.beta = (
            self.add_weight(shape=(shape[-1],), initializer="normal", name=name)
            for name in ("gamma", "beta")
        )

    def call(self, x):
        mean, variance = ops.moments(x, axes=-1, keepdims=True)
        scale = ops.rsqrt(variance + 1e-3) * self.gamma
        if self.folded:
            return x * scale + (-mean * scale + self.beta)
        return (x - mean) * scale + self.beta


@pytest.mark.parametrize("folded", [False, True])
def test_layer_norms_of_either_order_are_one_operator(folded):
    keras.utils.set_random_seed(3)
    x = keras.Input((None, 12), name="x")
    model = keras.Model(x, WrittenNorm(folded)(x))
    exported = fused(model)
    assert operators(exported) == {"LayerNormalization": 1}
    check(model, exported, x=numbers(3, 5, 12))


def two_axes():
    return layers.MultiHeadAttention(2, 5, attention_axes=(1, 2))


@pytest.mark.parametrize(
    "layer, kind",
    [
        (lambda: layers.LayerNormalization(axis=1), "LayerNormalization"),
        (lambda: layers.LayerNormalization(axis=(1, 2)), "LayerNormalization"),
        (lambda: layers.LayerNormalization(scale=False), "LayerNormalization"),
        (two_axes, "MultiHeadAttention"),
    ],
)
def test_an_export_warns_of_norms_and_attention_without_fusion(tmp_path, layer, kind):
    x = keras.Input((7, 5, 4), name="x")
    layer = layer()
    model = keras.Model(x, layer(x, x) if kind == "MultiHeadAttention" else layer(x))
    with pytest.warns(UserWarning, match=f"1 layers of the kind {kind}.*0 of them.*slower"):
        export_onnx(model, tmp_path / "out", verbose=False)
    export_onnx(model, tmp_path / "plain", fuse=False, verbose=False)  # no fusion, no warning


class PowerNorm(layers.Layer):
    """RMS normalization as KerasHub's models write it."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), name="scale")

    def call(self, x):
        mean = ops.mean(ops.power(x, 2), axis=-1, keepdims=True)
        return x * ops.rsqrt(mean + 1e-6) * self.scale


@pytest.mark.parametrize("norm", [layers.RMSNormalization, PowerNorm])
def test_rms_norms_divide_once(norm):
    """ONNX Runtime computes each norm in this form with one operator."""
    model = model_of(norm(), (None, 8))
    model.layers[-1].scale.assign(np.linspace(0.5, 2, 8))
    exported = fused(model)
    found = operators(exported)
    assert (found["Reciprocal"], found["Div"], found["Mul"], found["Pow"]) == (0, 1, 1, 1)
    check(model, exported, x=numbers(3, 5, 8))


LINE = """
main (float[N, 3] x) => (float[N, 3] y)
<float offset = {{{}}}, float low = {{{}}}, float high = {{{}}}, float slope = {{{}}}> {{
    moved = Add(x, offset)
    cut = Clip(moved, low, high)
    y = Mul(cut, slope)
}}
"""


@pytest.mark.parametrize(
    "offset, low, high, slope, is_fused",
    [
        (3.0, 0.0, 6.0, 1 / 6, True),
        (0.5, 0.0, 4.0, 0.25, True),
        (3.0, -1.0, 6.0, 1 / 6, False),
        (3.0, 0.0, 6.0, 0.2, False),
    ],
)
def test_a_line_from_0_to_1_is_a_hard_sigmoid(offset, low, high, slope, is_fused):
    before = parsed(LINE.format(offset, low, high, slope))
    after = fused(before)
    assert operators(after)["HardSigmoid"] == is_fused
    x = np.linspace(-7, 7, 33, dtype="float32").reshape(11, 3)
    np.testing.assert_allclose(run(after, x=x)[0], run(before, x=x)[0], atol=1e-6)


CURVE = """
main (float[N, 3] x) => (float[N, 3] y)
<float half = {{{}}}, float one = {{{}}}, float scale = {{{}}}> {{
    halved = Mul(half, x)
    opposite = Neg(x)
    scaled = Mul(opposite, scale)
    error = Erf(scaled)
    rest = Sub(one, error)
    y = Mul(halved, rest)
}}
"""


@pytest.mark.parametrize(
    "half, one, scale, is_fused",
    [
        (0.5, 1.0, 0.5**0.5, True),
        (0.4, 1.0, 0.5**0.5, False),
        (0.5, 2.0, 0.5**0.5, False),
        (0.5, 1.0, 0.8, False),
    ],
)
def test_the_exact_gelu_is_one_operator(half, one, scale, is_fused):
    before = parsed(CURVE.format(half, one, scale))
    after = fused(before)
    assert operators(after)["Gelu"] == is_fused
    x = np.linspace(-7, 7, 33, dtype="float32").reshape(11, 3)
    np.testing.assert_allclose(run(after, x=x)[0], run(before, x=x)[0], atol=1e-6)


class HandWritten(layers.Layer):
    """Self-attention of two heads. Subclasses compute queries, keys and values."""

    scale = 0.7

    def parts(self, x):
        raise NotImplementedError

    def call(self, x):
        query, key, value = (
            ops.transpose(ops.reshape(part, (-1, ops.shape(x)[1], 2, 3)), (0, 2, 1, 3))
            for part in self.parts(x)
        )
        scores = ops.matmul(query * self.scale, ops.transpose(key, (0, 1, 3, 2)))
        y = ops.transpose(ops.matmul(ops.softmax(scores), value), (0, 2, 1, 3))
        return ops.reshape(y, (-1, ops.shape(x)[1], 6))

    def compute_output_shape(self, shape):
        return (*shape[:-1], 6)


@keras.saving.register_keras_serializable("tests")
class Split(HandWritten):
    """Queries, keys and values are thirds of one product.

    Args:
        gated: whether each key's value is multiplied by a separate number.
    """

    def __init__(self, gated=False, **arguments):
        super().__init__(**arguments)
        self.gated = gated

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 18), name="w")

    def parts(self, x):
        query, key, value = ops.split(ops.matmul(x, self.w), 3, axis=-1)
        return query, key, value * x[:, :, :1] if self.gated else value

    def get_config(self):
        return {**super().get_config(), "gated": self.gated}


class Projections(HandWritten):
    """Self-attention with common names of projections: q_proj, k_proj, v_proj."""

    def build(self, shape):
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, layers.Dense(6, name=name))
            getattr(self, name).build(shape)

    def parts(self, x):
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)


class Scores(layers.Layer):
    """Keras' attention, with explicit einsums."""

    def call(self, x):
        x = ops.reshape(x, (-1, ops.shape(x)[1], 2, 2))
        scores = ops.einsum("btnh,bsnh->bnts", x, x) * 0.5
        return ops.einsum("bnts,bsnh->btnh", ops.softmax(scores), x)

    def compute_output_shape(self, shape):
        return (*shape[:-1], 2, 2)


def model_of(layer, shape=(None, 4), dtype="float32"):
    keras.utils.set_random_seed(3)
    x = keras.Input(shape, dtype=dtype, name="x")
    return keras.Model(x, layer(x))


@pytest.mark.parametrize("gated", [False, True])
def test_attention_after_an_equal_split_is_exported(tmp_path, gated):
    model = model_of(Split(gated))
    export_onnx(model, tmp_path / "out", verbose=False)
    (found,) = session(tmp_path / "out").run(None, {"x": X})
    np.testing.assert_allclose(found, model(X), rtol=1e-4, atol=1e-5)
    written = onnx.load(tmp_path / "out" / "model.onnx").graph
    # A factor per key acts differently on values and on outputs.
    assert counts(written)["MultiHeadAttention" if gated else "Attention"] == 1


def test_attention_of_scale_0_is_not_fused():
    """All keys count equally. ONNX Runtime's operator takes 0 as its default scale."""
    layer = Split()
    layer.scale = 0.0
    converted = convert(model_of(layer))
    exported = fused(converted)
    for one, two in zip(run(exported, x=X), run(converted, x=X), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    found = operators(exported)
    assert found["Softmax"] == 1 and not found["MultiHeadAttention"] + found["Attention"]


@pytest.mark.parametrize("layer", [Split, Projections, Scores])
def test_attention_is_fused_only_if_the_softmax_goes_along_the_keys(layer):
    converted = convert(model_of(layer()))
    (softmax,) = (node for node in converted.graph if node.op_type == "Softmax")
    for axis in (-1, 3, 2, 1):
        softmax.attributes["axis"] = ir.AttrInt64("axis", axis)
        exported = fused(converted)
        for one, two in zip(run(exported, x=X), run(converted, x=X), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
        found = operators(exported)
        assert found["MultiHeadAttention"] + found["Attention"] == (axis in (-1, 3))


@pytest.mark.parametrize("precision", ["int8", "weight_int4", "float16"])
def test_projections_of_any_name_are_kept_by_their_own_paths(precision):
    model = model_of(Projections(name="mine"))
    path = "mine/k_proj/kernel"
    assert path in [variable.path for variable in model.variables]
    for keep in ([], [path]):
        exported = fused(model, precision)
        reduce_precision(exported, precision, keep_float=keep)
        sizes = [
            value.const_value.size
            for value in exported.graph.initializers.values()
            if value.const_value.dtype == ir.DataType.FLOAT and "kernel" in value.name
        ]
        assert (4 * 18 in sizes) == bool(keep)


def test_layers_and_models_may_have_any_name(tmp_path):
    x = keras.Input((4,), name="x")
    y = layers.Dense(2, name="größe: 1")(layers.Dense(3, name="_my layer")(x))
    model = keras.Model(x, {"y": y}, name="a model")
    export_onnx(model, tmp_path / "out", verbose=False)
    (found,) = session(tmp_path / "out").run(None, {"x": X[0]})
    np.testing.assert_allclose(found, model(X[0])["y"], rtol=1e-4, atol=1e-5)


def test_an_export_skips_a_fusion_that_fails(tmp_path, monkeypatch):
    def fails(graph, *arguments, **options):
        graph.remove(graph[-1])  # half-done work must be undone
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(fuse_attention, "pack_projections", fails)
    model = model_of(Split())
    with pytest.warns(UserWarning, match="Fusing blocks failed.*slower"):
        export_onnx(model, tmp_path / "out", verbose=False)
    (found,) = session(tmp_path / "out").run(None, {"x": X})
    np.testing.assert_allclose(found, model(X), rtol=1e-4, atol=1e-5)
    assert counts(onnx.load(tmp_path / "out" / "model.onnx").graph)["Softmax"] == 1


class Transposed(layers.Layer):
    """Computes tanh(x W) W^T, as a tied autoencoder does."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 7), initializer="orthogonal", name="kernel")

    def call(self, x):
        return ops.matmul(ops.tanh(ops.matmul(x, self.kernel)), ops.transpose(self.kernel))


class Thresholds(layers.Layer):
    """Adds more thresholds than its input has columns, as an ordinal regression does."""

    def build(self, shape):
        self.bias = self.add_weight(shape=(5,), initializer="normal", name="bias")

    def call(self, x):
        return x + self.bias


class Branch(layers.Layer):
    """Multiplies in one of two branches; sums of pairs of its products exceed 16 bits."""

    def build(self, shape):
        large = keras.initializers.RandomUniform(0.9, 1.0)
        self.kernel = self.add_weight(shape=(shape[-1], 32), initializer=large, name="kernel")

    def call(self, x):
        return ops.cond(
            ops.sum(x) > 0,
            lambda: ops.matmul(x, self.kernel),
            lambda: ops.matmul(2 * x, self.kernel),
        )


@pytest.mark.parametrize("precision", ["int8", "int16x8", "weight_int8", "weight_int4"])
@pytest.mark.parametrize("layer", [Transposed, Thresholds, Branch])
def test_uncommon_products_are_reduced(layer, precision):
    x = keras.Input((16,), name="x")
    inner = layers.Dense(1, use_bias=False)(x) if layer is Thresholds else x
    model = keras.Model(x, layer()(inner))
    made = fused(model, precision)
    assert reduce_precision(made, precision) == 1
    sink_weights(made.graph)
    rows = 1 + 0.1 * numbers(3, 16)
    (found,), expected = run(made, x=rows), np.asarray(model(rows))
    loss = 0.3 if precision == "weight_int4" else 0.05
    assert np.abs(found - expected).max() < loss * np.abs(expected).max()


@pytest.mark.parametrize("groups", [1, 3, 12])
@pytest.mark.parametrize("shape", [(12,), (5, 12)])
def test_group_norms_are_exported(groups, shape):
    x = keras.Input(shape, name="x")
    norm = layers.GroupNormalization(
        groups=groups, beta_initializer="normal", gamma_initializer="normal"
    )
    model = keras.Model(x, norm(layers.Dense(12)(x)))
    check(model, fused(model), x=numbers(3, *shape))


@pytest.mark.parametrize("recurrent", [layers.GRU, layers.SimpleRNN, layers.LSTM])
def test_recurrent_layers_are_exported_in_float16(recurrent):
    x = keras.Input((None, 12), name="x")
    model = keras.Model(x, layers.Dense(4)(recurrent(6, return_sequences=True)(x)))
    made = fused(model, "float16")
    reduce_precision(made, "float16")
    (found,) = run(made, x=numbers(3, 5, 12))
    np.testing.assert_allclose(found, model(numbers(3, 5, 12)), atol=0.01)


def test_doubles_stay_doubles_in_float16():
    x = keras.Input((12,), name="x")
    model = keras.Model(x, layers.Dense(4)(layers.Dense(6, dtype="float64")(x)))
    made = fused(model, "float16")
    reduce_precision(made, "float16")
    (found,) = run(made, x=numbers(3, 12))
    np.testing.assert_allclose(found, model(numbers(3, 12)), atol=0.01)
