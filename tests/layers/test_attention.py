"""Attention against the NumPy reference, and on equivalent paths.

Shapes: B batch, T target length, S source length, H heads, K key size, U value size, D d_model,
E and F sizes of value and key inputs, A units of additive attention.
"""

import re

import keras
import numpy as np
import pytest
from helpers import reference
from helpers.checks import (
    assert_close,
    largest_difference,
    normal,
    numpy64,
    randomise,
    weights_of,
)
from helpers.linear_bias import LinearBias
from keras import ops

from keras_transformer.layers.additive import AdditiveAttention
from keras_transformer.layers.attention import (
    FORBIDDEN,
    MultiHeadAttention,
    masked_softmax,
    scaled_dot_product_attention,
)
from keras_transformer.layers.masks import padding_mask

B, T, S, H, K, U, D, E, F, A = 2, 5, 7, 3, 11, 13, 17, 19, 23, 29

# Tokens of a batch of two, padded on either side.
SIDES = {"right": [[4, 9, 8, 6, 3, 0, 0]], "left": [[0, 0, 0, 4, 9, 8, 6]]}
FULL = [5, 8, 7, 9, 6, 4, 3]


def source_ids(side):
    return np.array([*SIDES[side], FULL], "int32")  # (B, S)


def multi_head(positions=None, **kwargs):
    """Returns a built layer with random weights, and query, value and key of three sizes."""
    key_dim = K + 1 if positions else K  # rotation needs an even size
    layer = MultiHeadAttention(H, key_dim, U, positions=positions, **kwargs)
    inputs = normal(B, T, D, seed=1), normal(B, S, E, seed=2), normal(B, S, F, seed=3)
    layer.build(*(x.shape for x in inputs))
    return randomise(layer), inputs


# The pure function


@pytest.mark.numeric
@pytest.mark.parametrize("masked", [False, True])
def test_dot_product_attention_matches_the_reference(masked):
    query, key, value = normal(B, H, T, K), normal(B, H, S, K, seed=1), normal(B, H, S, U, seed=2)
    mask = np.random.default_rng(0).random((B, 1, T, S)) < 0.6 if masked else None
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    expected, expected_weights = reference.attention(query, key, value, mask)
    assert_close(output, expected)
    assert_close(weights, expected_weights)


@pytest.mark.numeric
@pytest.mark.parametrize("masked", [False, True])
def test_the_attention_bias_is_added_to_the_scores(masked):
    scores, bias = normal(B, H, T, S), normal(1, 1, T, S, seed=1)
    mask = np.random.default_rng(0).random((B, 1, T, S)) < 0.6 if masked else None
    expected = numpy64(masked_softmax(scores + bias, mask))
    assert_close(masked_softmax(scores, mask, attention_bias=bias), expected)
    bias[..., 2] = FORBIDDEN
    assert not numpy64(masked_softmax(scores, mask, attention_bias=bias))[..., 2].any()


@pytest.mark.numeric
def test_masked_pairs_have_zero_weight_and_change_no_output():
    """Tests a fully masked row, and a masked key with the largest score."""
    query, key, value = normal(T, K), normal(S, K, seed=1), normal(S, U, seed=2)
    mask = np.ones((T, S), bool)
    mask[3] = mask[:, 4] = False
    expected, _ = reference.attention(query, key, value, mask)
    key[4] = 1e4 * np.sign(query[0])
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    assert not numpy64(output)[3].any() and not numpy64(weights)[3].any()
    assert not numpy64(weights)[:, 4].any()
    assert_close(output, expected)
    large = scaled_dot_product_attention(1e4 * query, 1e4 * query, 1e4 * query)
    assert all(np.isfinite(numpy64(x)).all() for x in large)


# Multi-head attention


@pytest.mark.numeric
@pytest.mark.parametrize("side, use_bias", [("left", False), ("right", True)])
@pytest.mark.parametrize("positions", [None, "rotary"])
def test_multi_head_attention_matches_the_reference(positions, side, use_bias):
    layer, (query, value, key) = multi_head(positions, use_bias=use_bias)
    mask = source_ids(side) != 0
    expected, maps = reference.multi_head_attention(
        weights_of(layer), H, query, value, key, mask[:, None], positions
    )
    output, weights = layer(query, value, key, attention_mask=mask, return_attention_scores=True)
    assert_close(output, expected)
    assert_close(weights, maps)
    assert_close(layer(query, value, key, attention_mask=mask), expected)
    keys, values = layer.project_key_value(value, key)  # once for all steps of a search
    assert tuple(keys.shape) == (B, H, S, layer.key_dim) and tuple(values.shape) == (B, H, S, U)
    assert_close(layer.attend(query, keys, values, mask)[0], expected)


@pytest.mark.numeric
def test_weight_shapes_are_the_documented_ones():
    shapes = {path: weight.shape for path, weight in weights_of(multi_head()[0]).items()}
    sizes = {"query": (D, H * K), "key": (F, H * K), "value": (E, H * U), "output": (H * U, D)}
    biases = {f"{name}/bias": shape[1:] for name, shape in sizes.items()}
    assert shapes == {f"{name}/kernel": shape for name, shape in sizes.items()} | biases


@pytest.mark.numeric
def test_key_defaults_to_value_and_value_dim_to_key_dim():
    x, memory = normal(B, T, D), normal(B, S, E)
    layer = MultiHeadAttention(H, K)
    assert_close(layer(x, memory), numpy64(layer(x, memory, memory)), 0.0)
    assert weights_of(layer)["value/kernel"].shape == (E, H * K)


@pytest.mark.numeric
@pytest.mark.parametrize("masked", ["value", "key"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("layer", [MultiHeadAttention(H, K), AdditiveAttention(A)])
def test_a_keras_mask_of_value_or_key_equals_the_explicit_mask(layer, side, masked):
    layer, ids = layer.from_config(layer.get_config()), source_ids(side)
    query, plain = normal(B, T, D), normal(B, S, F, seed=1)
    embedding = keras.layers.Embedding(11, E, mask_zero=True)
    ends = keras.Input((T, D)), keras.Input((S,), dtype="int32"), keras.Input((S, F))

    def attend(query, embedded, plain, **mask):
        value, key = (embedded, plain) if masked == "value" else (plain, embedded)
        return layer(query, value, key, **mask)

    model = keras.Model(ends, attend(ends[0], embedding(ends[1]), ends[2]))
    embedded = ops.take(embedding.embeddings, ids, 0)
    explicit = numpy64(attend(query, embedded, plain, attention_mask=ids != 0))
    assert_close(model([query, ids, plain]), explicit, 1e-6)
    unmasked = attend(query, embedded, plain)
    assert largest_difference(unmasked, explicit) > 1e-3  # the mask has an effect


@pytest.mark.numeric
@pytest.mark.parametrize("positions", [None, "rotary", LinearBias()])
def test_cached_steps_equal_causal_self_attention(positions):
    layer, x = MultiHeadAttention(H, K + 1, U, positions=positions), normal(B, S, D)
    layer.build(x.shape, x.shape)
    whole = numpy64(randomise(layer)(x, x, use_causal_mask=True))
    cache = layer.initial_cache(B)
    for position in range(S):
        output, cache = layer.step(x[:, position : position + 1], cache, position)
        assert_close(output, whole[:, position : position + 1])
    assert tuple(cache[0].shape) == (B, H, S, K + 1) and tuple(cache[1].shape) == (B, H, S, U)


@pytest.mark.numeric
def test_dropout_keeps_the_mean_of_the_weights_in_training_only():
    """Value and output kernels are identities, so the output is the weights after dropout.

    A weight is 1/S. Its mean over n rows errs by 1/(S sqrt(n)); the test allows five times that.
    """
    rows = 2003
    layer = MultiHeadAttention(1, S, dropout=0.5, use_bias=False)
    value = np.broadcast_to(np.eye(S, dtype="float32"), (1, S, S))
    query = np.zeros((1, rows, S), "float32")  # zero queries: all weights are 1/S
    layer.build(query.shape, value.shape)
    for projection in (layer.value_projection, layer.output_projection):
        projection.kernel.assign(np.eye(S))
    assert_close(layer(query, value), np.full((1, rows, S), 1 / S), 1e-6)
    dropped = numpy64(layer(query, value, training=True))
    assert (dropped == 0).mean() > 0.4
    assert_close(dropped.mean(axis=(0, 1)), np.full(S, 1 / S), 5 / (S * np.sqrt(rows)))


# Additive attention


# Promises and errors


both = pytest.mark.parametrize("layer", [MultiHeadAttention(H, K), AdditiveAttention(A)])


@both
@pytest.mark.parametrize(
    "shapes, message",
    [
        (((B, D), (B, S, D), (B, S, D)), r"query must have shape \(batch, length, features\)"),
        (((B, T, D), (B, 1, S, D), (B, S, D)), "value must have shape"),
        (((B, T, D), (B, S, D), (S, D)), "key must have shape"),
        (((B, T, D), (B, S, D), (B, S - 1, D)), f"same length, but {S - 1} and {S}"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(layer, shapes, message):
    layer = layer.from_config(layer.get_config())
    with pytest.raises(ValueError, match=message):
        layer(*(np.zeros(shape, "float32") for shape in shapes))


@both
def test_inputs_of_another_width_than_built_are_refused(layer):
    layer.build((B, T, D), (B, S, E))
    with pytest.raises(ValueError, match=f"value {D}.*{F}"):
        layer(normal(B, T, F), normal(B, S, E))
    with pytest.raises(ValueError, match=f"value {E}.*{F}"):
        layer(normal(B, T, D), normal(B, S, F))


def test_unfit_positions_are_refused():
    x = normal(B, T, D)
    with pytest.raises(ValueError, match="even"):
        MultiHeadAttention(H, K, positions="rotary")(x, x)
    with pytest.raises(ValueError, match="LearnedPosition.*inside attention"):
        MultiHeadAttention(H, K, positions="learned")


@both
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_masks_that_are_not_boolean_are_refused(layer, dtype):
    layer = layer.from_config(layer.get_config())
    with pytest.raises(TypeError, match=f"boolean.*{dtype}"):
        layer(normal(B, T, D), normal(B, S, D), attention_mask=ops.ones((B, S), dtype))


@pytest.mark.parametrize(
    "shape", [(B, T), (B, S, T), (B, 1), (B, T, 1), (B, 2, T, S), (B, H, S, S)]
)
def test_masks_that_do_not_fit_are_refused(shape):
    layer, x, memory = MultiHeadAttention(H, K), normal(B, T, D), normal(B, S, D)
    message = re.escape(f"shape {shape}") + ".*Any axis but the last may be 1"
    with pytest.raises(ValueError, match=message):
        layer(x, memory, attention_mask=np.ones(shape, bool))
    keys, values = layer.project_key_value(memory)
    with pytest.raises(ValueError, match=message):
        layer.attend(x, keys, values, np.ones(shape, bool))
    with pytest.raises(ValueError, match=message):
        AdditiveAttention(A)(x, memory, attention_mask=np.ones(shape, bool))


def test_a_functional_model_takes_a_mask_and_returns_the_weights():
    layer, query, value = MultiHeadAttention(H, K), normal(B, T, D), normal(B, S, E)
    ends = keras.Input((None, D)), keras.Input((None, E)), keras.Input((None,), dtype="bool")
    outputs = layer(*ends[:2], attention_mask=ends[2], return_attention_scores=True)
    assert [tuple(x.shape) for x in outputs] == [(None, None, D), (None, H, None, None)]
    ids = source_ids("left")
    output, weights = keras.Model(ends, outputs)([query, value, ids != 0])
    assert_close(output, numpy64(layer(query, value, attention_mask=padding_mask(ids))), 1e-6)
    assert not numpy64(weights)[0, :, :, :3].any() and numpy64(weights)[0, :, :, 3:].all()


@pytest.mark.parametrize("length", [1, 3])
def test_queries_see_keys_up_to_their_position_whatever_the_lengths(length):
    layer, query, value = MultiHeadAttention(H, K), normal(B, length, D), normal(B, 5, E)
    ends = keras.Input((None, D)), keras.Input((None, E))
    outputs = layer(*ends, use_causal_mask=True, return_attention_scores=True)
    _, weights = keras.Model(ends, outputs)([query, value])
    assert weights.shape == (B, H, length, 5) and not np.triu(numpy64(weights), 1).any()
    assert_close(numpy64(weights).sum(-1), np.ones((B, H, length)))


def test_masked_attention_does_not_depend_on_the_default_dtype():
    layer, x, memory = MultiHeadAttention(H, K, dtype="float32"), normal(B, T, D), normal(B, S, E)
    mask = padding_mask(source_ids("left"))
    expected = numpy64(layer(x, memory, attention_mask=mask))
    keras.config.set_floatx("float64")
    try:
        assert_close(layer(x, memory, attention_mask=mask), expected)
    finally:
        keras.config.set_floatx("float32")
