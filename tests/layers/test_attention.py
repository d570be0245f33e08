"""Attention against the NumPy reference, and on equivalent paths.

Shapes: B batch, T target length, S source length, H heads, K key size, U value size, D d_model,
E and F sizes of value and key inputs, A units of additive attention.
"""

import functools
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
from keras import ops

from keras_transformer.layers.additive import AdditiveAttention
from keras_transformer.layers.attention import (
    MultiHeadAttention,
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
def test_a_masked_key_with_the_largest_score_has_zero_weight():
    query, key, value = normal(T, K), normal(S, K, seed=1), normal(S, U, seed=2)
    mask = np.broadcast_to(np.arange(S) != 4, (T, S))
    expected, _ = reference.attention(query, key, value, mask)
    key[4] = 1e4 * np.sign(query[0])
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    assert not numpy64(weights)[:, 4].any()
    assert_close(output, expected)
    large = scaled_dot_product_attention(1e4 * query, 1e4 * query, 1e4 * query)
    assert all(np.isfinite(numpy64(x)).all() for x in large)


# Multi-head attention


@pytest.mark.numeric
@pytest.mark.parametrize("positions", [None, "rotary"])
def test_the_weights_and_each_part_of_a_call_match_the_reference(positions):
    layer, (query, value, key) = multi_head(positions)
    mask = source_ids("left") != 0
    expected, maps = reference.multi_head_attention(
        weights_of(layer), H, query, value, key, mask[:, None], positions
    )
    output, weights = layer(query, value, key, attention_mask=mask, return_attention_scores=True)
    assert_close(output, expected)
    assert_close(weights, maps)
    keys, values = layer.project_key_value(value, key)  # once for all steps of a search
    assert tuple(keys.shape) == (B, H, S, layer.key_dim) and tuple(values.shape) == (B, H, S, U)
    assert_close(layer.attend(query, keys, values, mask)[0], expected)


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
def test_dropout_drops_weights_in_training_only():
    layer, inputs = multi_head(dropout=1.0 - 1e-7, use_bias=False)
    assert not numpy64(layer(*inputs, training=True)).any()
    assert_close(layer(*inputs), numpy64(layer(*inputs, training=False)), 0.0)
    assert numpy64(layer(*inputs)).all()


# Promises and errors


Q, VALUE = normal(B, T, D), normal(B, S, E)
MASKS = [(B, T), (B, S, T), (B, 1), (B, T, 1), (B, 2, T, S), (B, H, S, S)]


def new(cls, *shapes, **mask):
    """Calls a new layer with zeros."""
    layer = cls(A) if cls is AdditiveAttention else cls(H, K)
    return layer(*(np.zeros(shape, "float32") for shape in shapes), **mask)


def built(cls, *shapes):
    """Calls a layer that was built for sizes D and E."""
    layer = cls(A) if cls is AdditiveAttention else cls(H, K)
    layer.build((B, T, D), (B, S, E))
    return layer(*(np.zeros(shape, "float32") for shape in shapes))


def attended(mask):
    layer = MultiHeadAttention(H, K)
    layer.build(Q.shape, VALUE.shape)
    return layer.attend(Q, *layer.project_key_value(VALUE), mask)


REFUSED = [
    *(
        (functools.partial(new, cls, *shapes), ValueError, message)
        for cls in (MultiHeadAttention, AdditiveAttention)
        for shapes, message in (
            (((B, D), (B, S, D), (B, S, D)), r"query must have shape \(batch, length, features\)"),
            (((B, T, D), (B, 1, S, D), (B, S, D)), "value must have shape"),
            (((B, T, D), (B, S, D), (S, D)), "key must have shape"),
            (((B, T, D), (B, S, D), (B, S - 1, D)), f"same length, but {S - 1} and {S}"),
        )
    ),
    *(
        (functools.partial(built, cls, *shapes), ValueError, f"value {size}.*{F}")
        for cls in (MultiHeadAttention, AdditiveAttention)
        for shapes, size in ((((B, T, F), (B, S, E)), D), (((B, T, D), (B, S, F)), E))
    ),
    *(
        (
            functools.partial(new, cls, Q.shape, VALUE.shape, attention_mask=mask),
            TypeError,
            f"boolean.*{mask.dtype}",
        )
        for cls in (MultiHeadAttention, AdditiveAttention)
        for mask in (np.ones((B, S), "int32"), np.ones((B, S), "float32"))
    ),
    *(
        (call, ValueError, re.escape(f"shape {shape}") + ".*Any axis but the last may be 1")
        for shape in MASKS
        for mask in [np.ones(shape, bool)]
        for call in (
            functools.partial(new, MultiHeadAttention, Q.shape, VALUE.shape, attention_mask=mask),
            functools.partial(new, AdditiveAttention, Q.shape, VALUE.shape, attention_mask=mask),
            functools.partial(attended, mask),
        )
    ),
    (lambda: MultiHeadAttention(H, K, positions="rotary")(Q, Q), ValueError, "even"),
    (
        lambda: MultiHeadAttention(H, K, positions="learned"),
        ValueError,
        "LearnedPosition.*inside attention",
    ),
]


@pytest.mark.parametrize("call, error, message", REFUSED)
def test_calls_with_inputs_positions_or_a_mask_that_do_not_fit_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


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
