"""Fusion of users' models: inputs other than ids, and layers that are written by hand."""

import keras
import numpy as np
import onnx_ir as ir
import pytest
from helpers.exports import (
    Function,
    built,
    check,
    check_export,
    convert,
    counts,
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

from keras_transformer.export import export_onnx
from keras_transformer.export.graph import fuse_attention
from keras_transformer.export.graph.loops import sink_weights
from keras_transformer.export.graph.quantize import reduce_precision
from keras_transformer.layers.blocks import EncoderBlock
from keras_transformer.layers.positions import LearnedPositionEncoding

BLOCKS = 2
X = numbers(3, 5, 4)


def class_token(x, token):
    """Prepends a learned vector."""
    tokens = ops.broadcast_to(token, (ops.shape(x)[0], 1, x.shape[-1]))
    return ops.concatenate([tokens, x], axis=1)


def blocks(x):
    """Applies a stack of encoder blocks and a head."""
    for i in range(BLOCKS):
        x = EncoderBlock(2, 17, name=f"block_{i}")(x)
    return layers.Dense(3)(x)


def pictures(x):
    patches = layers.Reshape((-1, 12))(layers.Conv2D(12, 4, 4)(x))
    return blocks(Function(class_token, (1, 1, 12))(patches))


def ids(x):
    return layers.Dense(3)(tiny("encode", vocab_size=50, num_layers=BLOCKS)(x))


PADDED = source(3, 7, vocab_size=50)
PADDED[1] = 0  # a row of padding
# {name: (function, input, its shape, most nodes of the file: two blocks and the layers around)}
STACKS = {
    "series": (
        lambda x: blocks(layers.Conv1D(12, 3, 2, "same", activation="relu")(x)),
        numbers(3, 9, 5),
        (None, 5),
        37,
    ),
    "pictures": (pictures, numbers(3, 12, 8, 3), (12, 8, 3), 42),
    "vectors": (blocks, numbers(3, 9, 12), (None, 12), 26),
    "ids": (ids, PADDED, (None,), 62),
}


@pytest.mark.full("pictures", "series", "ids")
@pytest.mark.parametrize("name", STACKS)
def test_every_norm_and_attention_is_one_operator(name):
    function, x, shape, most = STACKS[name]
    model = built(function, *shape, dtype=x.dtype.name)
    exported = fused(model)
    found = operators(exported)
    assert found["LayerNormalization"] == 2 * BLOCKS
    assert found["Attention"] == BLOCKS
    assert found["Gemm"] == 2 * BLOCKS  # feed-forward networks
    assert not found.keys() & {"Softmax", "MultiHeadAttention", "Split", "Reciprocal"}
    assert sum(found.values()) <= most
    expected = model(x)  # Keras does not compute all empty batches
    for batch in (0, 1, 3):
        (rows,) = run(exported, x=x[:batch])
        np.testing.assert_allclose(rows, expected[:batch], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("free", [False, True])
def test_long_sequences_are_projected_before_the_attention(free):
    places = LearnedPositionEncoding(fuse_attention.MOST_POSITIONS) if free else layers.Identity()
    length = None if free else fuse_attention.LONG
    model = built(lambda x: blocks(places(x)), length, 12)
    exported = fused(model)
    found = operators(exported)
    assert found["MultiHeadAttention"] == BLOCKS and not found["Attention"]
    check(model, exported, x=numbers(1, fuse_attention.LONG, 12))


def test_rotary_models_take_an_empty_batch():
    model = tiny("encode", vocab_size=50, num_layers=1, positions="rotary")
    exported = fused(model)
    for batch in (0, 3):
        check(model, exported, source_ids=source(3, 7, vocab_size=50)[:batch])


def keras_attention(x):
    y = layers.MultiHeadAttention(2, 5)(x, x)
    return layers.LayerNormalization()(layers.Add()([x, y]))


def written_norm(folded):
    """Returns layer normalization in one of the two orders that versions of Keras use."""

    def norm(x, gamma, beta):
        mean, variance = ops.moments(x, axes=-1, keepdims=True)
        scale = ops.rsqrt(variance + 1e-3) * gamma
        return x * scale + (-mean * scale + beta) if folded else (x - mean) * scale + beta

    return Function(norm, (12,), (12,))


def power_norm(x, scale):
    """RMS normalization as KerasHub's models write it."""
    mean = ops.mean(ops.power(x, 2), axis=-1, keepdims=True)
    return x * ops.rsqrt(mean + 1e-6) * scale


# ONNX Runtime computes each norm in this form with one operator.
RMS_NORM = {"Reciprocal": 0, "Div": 1, "Mul": 1, "Pow": 1}


@pytest.mark.parametrize(
    "function, nodes, expected",
    [
        # and a product with a bias, the residual
        (keras_attention, 5, {"LayerNormalization": 1, "Attention": 1}),
        (written_norm(False), 1, {"LayerNormalization": 1}),
        (written_norm(True), 1, {"LayerNormalization": 1}),
        (layers.RMSNormalization(), 8, RMS_NORM),
        (Function(power_norm, (12,)), 8, RMS_NORM),
    ],
    ids=["attention", "norm", "folded norm", "RMS norm", "RMS norm of KerasHub"],
)
def test_layers_of_other_libraries_are_fused(function, nodes, expected):
    model = settled(built(function, None, 12))
    exported = fused(model)
    found = operators(exported)
    assert {operator: found[operator] for operator in expected} == expected
    assert found.total() <= nodes
    for shape in ((3, 7, 12), (1, 1, 12), (0, 4, 12)):
        check(model, exported, x=numbers(*shape))


@pytest.mark.full(
    "<lambda>-LayerNormalization1", "<lambda>-LayerNormalization2", "<lambda>-MultiHeadAttention"
)
@pytest.mark.parametrize(
    "layer, kind",
    [
        (lambda: layers.LayerNormalization(axis=1), "LayerNormalization"),
        (lambda: layers.LayerNormalization(axis=(1, 2)), "LayerNormalization"),
        (lambda: layers.LayerNormalization(scale=False), "LayerNormalization"),
        (lambda: layers.MultiHeadAttention(2, 5, attention_axes=(1, 2)), "MultiHeadAttention"),
    ],
)
def test_an_export_warns_of_norms_and_attention_without_fusion(tmp_path, layer, kind):
    layer = layer()
    inputs = 2 if kind == "MultiHeadAttention" else 1
    model = built(lambda x: layer(*[x] * inputs), 7, 5, 4)
    with pytest.warns(UserWarning, match=f"1 layers of the kind {kind}.*0 of them.*slower"):
        export_onnx(model, tmp_path / "out", verbose=False)
    export_onnx(model, tmp_path / "plain", fuse=False, verbose=False)  # no fusion, no warning


LINE = """
main (float[N, 3] x) => (float[N, 3] y)
<float offset = {{{}}}, float low = {{{}}}, float high = {{{}}}, float slope = {{{}}}> {{
    moved = Add(x, offset)
    cut = Clip(moved, low, high)
    y = Mul(cut, slope)
}}
"""


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
    "text, operator, constants, is_fused",
    [
        (LINE, "HardSigmoid", (3.0, 0.0, 6.0, 1 / 6), True),
        (LINE, "HardSigmoid", (0.5, 0.0, 4.0, 0.25), True),
        (LINE, "HardSigmoid", (3.0, -1.0, 6.0, 1 / 6), False),
        (LINE, "HardSigmoid", (3.0, 0.0, 6.0, 0.2), False),
        (CURVE, "Gelu", (0.5, 1.0, 0.5**0.5), True),
        (CURVE, "Gelu", (0.4, 1.0, 0.5**0.5), False),
        (CURVE, "Gelu", (0.5, 2.0, 0.5**0.5), False),
        (CURVE, "Gelu", (0.5, 1.0, 0.8), False),
    ],
)
def test_an_activation_of_the_right_constants_is_one_operator(text, operator, constants, is_fused):
    before = parsed(text.format(*constants))
    after = fused(before)
    assert operators(after)[operator] == is_fused
    x = np.linspace(-7, 7, 33, dtype="float32").reshape(11, 3)
    same_results(before, after, rtol=1e-6, x=x)


def attention(query, key, value, scale=0.7):
    """Computes self-attention of two heads."""
    query, key, value = (
        ops.transpose(ops.reshape(part, (-1, ops.shape(part)[1], 2, 3)), (0, 2, 1, 3))
        for part in (query, key, value)
    )
    scores = ops.matmul(query * scale, ops.transpose(key, (0, 1, 3, 2)))
    y = ops.transpose(ops.matmul(ops.softmax(scores), value), (0, 2, 1, 3))
    return ops.reshape(y, (-1, ops.shape(y)[1], 6))


def split(gated=False, **options):
    """Returns a layer whose queries, keys and values are thirds of one product.

    Args:
        gated: whether each key's value is multiplied by a separate number.
        **options: of `attention`.
    """

    def attend(x, kernel):
        query, key, value = ops.split(ops.matmul(x, kernel), 3, axis=-1)
        return attention(query, key, value * x[:, :, :1] if gated else value, **options)

    return Function(attend, (4, 18))


def projections(x):
    """Applies self-attention with common names of projections."""
    parts = [layers.Dense(6, name=f"mine_{name}_proj")(x) for name in ("q", "k", "v")]
    return Function(lambda parts: attention(*parts))(parts)


def scores(x):
    """Computes Keras' attention, with explicit einsums."""
    x = ops.reshape(x, (-1, ops.shape(x)[1], 2, 2))
    scores = ops.einsum("btnh,bsnh->bnts", x, x) * 0.5
    return ops.einsum("bnts,bsnh->btnh", ops.softmax(scores), x)


@pytest.mark.parametrize("gated", [False, True])
def test_attention_after_an_equal_split_is_exported(tmp_path, gated):
    model = built(split(gated), None, 4)
    written = check_export(model, tmp_path / "out", inputs={"x": X})
    # A factor per key acts differently on values and on outputs.
    assert counts(written)["MultiHeadAttention" if gated else "Attention"] == 1


@pytest.mark.parametrize(
    "function, axes",
    [
        (split(), (-1, 3)),
        (projections, (-1, 3)),
        (Function(scores), (-1, 3)),
        (split(scale=0.0), ()),  # ONNX Runtime's operator takes 0 as its default scale
    ],
    ids=["split", "projections", "scores", "scale of 0"],
)
def test_attention_is_fused_only_if_the_softmax_goes_along_the_keys(function, axes):
    converted = convert(built(function, None, 4))
    (softmax,) = (node for node in converted.graph if node.op_type == "Softmax")
    for axis in (-1, 3, 2, 1):
        softmax.attributes["axis"] = ir.AttrInt64("axis", axis)
        exported = fused(converted)
        same_results(converted, exported, x=X)
        found = operators(exported)
        assert found["MultiHeadAttention"] + found["Attention"] == (axis in axes)


@pytest.mark.parametrize("precision", ["int8", "weight_int4", "float16"])
def test_projections_of_any_name_are_kept_by_their_own_paths(precision):
    model = built(projections, None, 4)
    path = "mine_k_proj/kernel"
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
    scaled = Function(lambda y, scale: y * scale, (2,), name="variable")(y)  # as an output
    model = keras.Model(x, {"y": y, "variable": scaled}, name="a model")
    written = check_export(model, tmp_path / "out", inputs={"x": X[0]})
    assert {value.name for value in written.output} == {"y", "variable"}


def test_an_export_skips_a_fusion_that_fails(tmp_path, monkeypatch):
    def fails(graph, *arguments, **options):
        graph.remove(graph[-1])  # half-done work must be undone
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(fuse_attention, "pack_projections", fails)
    with pytest.warns(UserWarning, match="Fusing blocks failed.*slower"):
        written = check_export(built(split(), None, 4), tmp_path / "out", inputs={"x": X})
    assert counts(written)["Softmax"] == 1


def transposed(x, kernel):
    """Computes tanh(x W) W^T, as a tied autoencoder does."""
    return ops.matmul(ops.tanh(ops.matmul(x, kernel)), ops.transpose(kernel))


def thresholds(x):
    """Adds more thresholds than its input has columns, as an ordinal regression does."""
    y = layers.Dense(1, use_bias=False)(x)
    return Function(lambda y, bias: y + bias, (5,), initializer="normal")(y)


def branch(x, kernel):
    """Multiplies in one of two branches."""
    return ops.cond(
        ops.sum(x) > 0, lambda: ops.matmul(x, kernel), lambda: ops.matmul(2 * x, kernel)
    )


# Sums of pairs of its products exceed 16 bits.
LARGE = keras.initializers.RandomUniform(0.9, 1.0, seed=3)


@pytest.mark.parametrize("precision", ["int8", "int16x8", "weight_int8", "weight_int4"])
@pytest.mark.parametrize(
    "function",
    [
        Function(transposed, (16, 7), initializer="orthogonal"),
        thresholds,
        Function(branch, (16, 32), initializer=LARGE),
    ],
    ids=["transposed", "thresholds", "branch"],
)
def test_uncommon_products_are_reduced(function, precision):
    model = built(function, 16)
    made = fused(model, precision)
    assert reduce_precision(made, precision) == 1
    sink_weights(made.graph)
    rows = 1 + 0.1 * numbers(3, 16)
    (found,), expected = run(made, x=rows), np.asarray(model(rows))
    loss = 0.3 if precision == "weight_int4" else 0.05
    assert np.abs(found - expected).max() < loss * np.abs(expected).max()


@pytest.mark.parametrize(
    "inner",
    [
        layers.GRU(6, return_sequences=True),
        layers.SimpleRNN(6, return_sequences=True),
        layers.LSTM(6, return_sequences=True),
        layers.Dense(6, dtype="float64"),
        lambda x: Function(branch, (6, 6))(layers.Dense(6)(x)),
    ],
    ids=["GRU", "SimpleRNN", "LSTM", "doubles", "branches"],
)
def test_other_layers_are_exported_in_float16(inner):
    model = built(lambda x: layers.Dense(4)(inner(x)), None, 12)
    made = fused(model, "float16")
    reduce_precision(made, "float16")
    (found,) = run(made, x=numbers(3, 5, 12))
    np.testing.assert_allclose(found, model(numbers(3, 5, 12)), atol=0.01)
