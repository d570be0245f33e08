"""Attention against the NumPy reference, by hand, and against itself on another way.

Shapes: B batch, T target length, S source length, H heads, K key size, U value size, D d_model,
E and F sizes of value and key inputs, A units of additive attention.
"""

import keras
import numpy as np
import pytest
from keras import ops
from support import reference
from support.checks import (
    LOW_PRECISION,
    assert_close,
    assert_rounding_only,
    check_gradients,
    check_layer,
    gradients,
    largest_difference,
    normal,
    numpy64,
    randomise,
    weights_of,
)
from support.linear_bias import LinearBias

from keras_transformer.layers import attention
from keras_transformer.layers.additive import AdditiveAttention
from keras_transformer.layers.masks import padding_mask

B, T, S, H, K, U, D, E, F, A = 2, 5, 7, 3, 11, 13, 17, 19, 23, 29

# Tokens of a batch of two, padded on either side.
SIDES = {"right": [[4, 9, 8, 6, 3, 0, 0]], "left": [[0, 0, 0, 4, 9, 8, 6]]}
FULL = [5, 8, 7, 9, 6, 4, 3]


def source_ids(side):
    return np.array([*SIDES[side], FULL], "int32")  # (B, S)


def multi_head(positions=None, **kwargs):
    """A built layer with random weights, query, value and key of three different sizes."""
    key_dim = K + 1 if positions else K  # rotation needs an even size
    layer = attention.MultiHeadAttention(H, key_dim, U, positions=positions, **kwargs)
    inputs = normal(B, T, D, seed=1), normal(B, S, E, seed=2), normal(B, S, F, seed=3)
    layer.build(*(x.shape for x in inputs))
    return randomise(layer), inputs


# The pure function


@pytest.mark.numeric
def test_dot_product_attention_by_hand():
    """Scores (0, 2 log 3) / sqrt(4): weights 1/4 and 3/4."""
    query = np.array([[1.0, 0.0, 0.0, 0.0]], "float32")
    key = np.array([[0, 1, 1, 1], [2 * np.log(3), 0, 0, 0]], "float32")
    value = np.array([[4.0, 0.0], [8.0, 4.0]], "float32")
    output, weights = attention.scaled_dot_product_attention(query, key, value)
    assert_close(weights, [[0.25, 0.75]], 1e-6)
    assert_close(output, [[7.0, 3.0]], 1e-6)


@pytest.mark.numeric
@pytest.mark.parametrize("masked", [False, True])
def test_dot_product_attention_is_the_formula(masked):
    query, key, value = normal(B, H, T, K), normal(B, H, S, K, seed=1), normal(B, H, S, U, seed=2)
    mask = np.random.default_rng(0).random((B, 1, T, S)) < 0.6 if masked else None
    output, weights = attention.scaled_dot_product_attention(query, key, value, mask)
    expected, expected_weights = reference.attention(query, key, value, mask)
    assert_close(output, expected)
    assert_close(weights, expected_weights)


@pytest.mark.numeric
@pytest.mark.parametrize("masked", [False, True])
def test_the_attention_bias_is_added_to_the_scores(masked):
    scores, bias = normal(B, H, T, S), normal(1, 1, T, S, seed=1)
    mask = np.random.default_rng(0).random((B, 1, T, S)) < 0.6 if masked else None
    expected = attention.masked_softmax(scores + bias, mask)
    assert_close(attention.masked_softmax(scores, mask, attention_bias=bias), numpy64(expected))
    bias[..., 2] = attention.FORBIDDEN
    weights = attention.masked_softmax(scores, mask, attention_bias=bias)
    assert not numpy64(weights)[..., 2].any()


@pytest.mark.numeric
def test_a_fully_masked_row_gives_zeros_and_harms_no_other():
    query, key, value = normal(T, K), normal(S, K, seed=1), normal(S, U, seed=2)
    mask = np.ones((T, S), bool)
    mask[3] = False
    output, weights = attention.scaled_dot_product_attention(query, key, value, mask)
    assert not numpy64(output)[3].any() and not numpy64(weights)[3].any()
    assert_close(weights, reference.attention(query, key, value, mask)[1])
    open_rows = [0, 1, 2, 4]
    plain = attention.scaled_dot_product_attention(query, key, value)[0]
    assert_close(numpy64(output)[open_rows], numpy64(plain)[open_rows])


@pytest.mark.numeric
def test_what_is_masked_gets_exactly_nothing():
    """Also where its score is far above all others."""
    query, key, value = normal(T, K), normal(S, K, seed=1), normal(S, U, seed=2)
    mask = np.ones((T, S), bool)
    mask[:, 4] = False
    key[4] = 1e4 * np.sign(query[0])
    weights = attention.scaled_dot_product_attention(query, key, value, mask)[1]
    assert not numpy64(weights)[:, 4].any()
    np.testing.assert_allclose(numpy64(weights).sum(-1), 1.0, rtol=1e-6)


@pytest.mark.numeric
def test_large_scores_stay_finite():
    query = 1e4 * normal(T, K)
    output, weights = attention.scaled_dot_product_attention(query, query, query)
    assert np.isfinite(numpy64(output)).all() and np.isfinite(numpy64(weights)).all()


# Multi-head attention


@pytest.mark.numeric
@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_multi_head_attention_is_the_formula(side, use_bias):
    layer, (query, value, key) = multi_head(use_bias=use_bias)
    mask = source_ids(side) != 0
    expected, maps = reference.multi_head_attention(
        weights_of(layer), H, query, value, key, mask[:, None]
    )
    assert_close(layer(query, value, key, attention_mask=mask), expected)
    assert_close(
        layer(query, value, key, attention_mask=mask, return_attention_scores=True)[1], maps
    )


@pytest.mark.numeric
def test_self_attention_with_rotary_positions_is_the_formula():
    layer = attention.MultiHeadAttention(H, K + 1, positions="rotary")
    x = normal(B, S, D)
    layer.build(x.shape, x.shape)
    mask = reference.causal_mask(S)[None] & (source_ids("left") != 0)[:, None]
    weights = weights_of(randomise(layer))
    expected = reference.multi_head_attention(weights, H, x, x, mask=mask, positions="rotary")[0]
    ours = layer(x, x, attention_mask=source_ids("left") != 0, use_causal_mask=True)
    assert_close(ours, expected)


@pytest.mark.numeric
@pytest.mark.parametrize("positions", [None, "rotary"])
def test_multi_head_attention_has_the_right_gradients(positions):
    layer, (query, value, key) = multi_head(positions)
    mask = np.random.default_rng(4).random((B, T, S)) < 0.6
    mask[0, 2] = False  # a row that may attend to nothing
    cotangent = normal(B, T, D, seed=4)

    def loss(weights):
        output, _ = reference.multi_head_attention(weights, H, query, value, key, mask, positions)
        return np.sum(output * cotangent)

    found = gradients(layer, cotangent, query, value, key, attention_mask=mask)
    check_gradients(found, weights_of(layer), loss)


@pytest.mark.numeric
def test_weight_shapes_are_the_documented_ones():
    layer, _ = multi_head()
    shapes = {path: weight.shape for path, weight in weights_of(layer).items()}
    assert shapes == {
        "query/kernel": (D, H * K),
        "query/bias": (H * K,),
        "key/kernel": (F, H * K),
        "key/bias": (H * K,),
        "value/kernel": (E, H * U),
        "value/bias": (H * U,),
        "output/kernel": (H * U, D),
        "output/bias": (D,),
    }


@pytest.mark.numeric
def test_key_defaults_to_value_and_value_dim_to_key_dim():
    x, memory = normal(B, T, D), normal(B, S, E)
    layer = attention.MultiHeadAttention(H, K)
    np.testing.assert_array_equal(numpy64(layer(x, memory)), numpy64(layer(x, memory, memory)))
    assert weights_of(layer)["value/kernel"].shape == (E, H * K)


@pytest.mark.numeric
@pytest.mark.parametrize("shape", [(B, S), (B, T, S), (B, H, T, S), (1, T, S), (B, 1, S)])
def test_masks_of_every_rank_are_the_same_mask(shape):
    layer, (query, value, key) = multi_head()
    mask = np.random.default_rng(5).random(shape) < 0.6
    rows = {2: (slice(None), None, None), 3: (slice(None), None), 4: ()}[mask.ndim]
    whole = np.broadcast_to(mask[rows], (B, H, T, S))
    same = numpy64(layer(query, value, key, attention_mask=whole))
    assert_close(layer(query, value, key, attention_mask=mask), same, 1e-6)


@pytest.mark.numeric
def test_the_causal_argument_is_the_causal_mask():
    layer = attention.MultiHeadAttention(H, K)
    x = normal(B, T, D)
    explicit = numpy64(layer(x, x, attention_mask=reference.causal_mask(T)[None]))
    assert_close(layer(x, x, use_causal_mask=True), explicit, 1e-6)
    weights = numpy64(layer(x, x, use_causal_mask=True, return_attention_scores=True)[1])
    assert not np.triu(weights, 1).any()


@pytest.mark.numeric
@pytest.mark.parametrize("masked", ["value", "key"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("layer", [attention.MultiHeadAttention(H, K), AdditiveAttention(A)])
def test_the_keras_mask_of_value_or_key_is_the_explicit_mask(layer, side, masked):
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
    assert largest_difference(unmasked, explicit) > 1e-3  # the mask does something


@pytest.mark.numeric
def test_projected_once_and_attended_later_is_the_call():
    layer, (query, value, key) = multi_head()
    mask = source_ids("right") != 0
    keys, values = layer.project_key_value(value, key)
    assert tuple(keys.shape) == (B, H, S, K) and tuple(values.shape) == (B, H, S, U)
    whole = numpy64(layer(query, value, key, attention_mask=mask))
    assert_close(layer.attend(query, keys, values, mask), whole, 1e-6)


@pytest.mark.numeric
@pytest.mark.parametrize("positions", [None, "rotary", LinearBias()])
def test_steps_with_a_cache_are_causal_self_attention(positions):
    layer, x = attention.MultiHeadAttention(H, K + 1, U, positions=positions), normal(B, S, D)
    layer.build(x.shape, x.shape)
    randomise(layer)
    whole = numpy64(layer(x, x, use_causal_mask=True))
    cache = np.zeros((B, H, 0, K + 1), "float32"), np.zeros((B, H, 0, U), "float32")
    for position in range(S):
        output, cache = layer.step(x[:, position : position + 1], cache, position)
        assert_close(output, whole[:, position : position + 1])
    assert tuple(cache[0].shape) == (B, H, S, K + 1) and tuple(cache[1].shape) == (B, H, S, U)


@pytest.mark.numeric
def test_dropout_drops_weights_in_training_only():
    layer, (query, value, key) = multi_head(dropout=0.5)
    still = numpy64(layer(query, value, key, training=False))
    assert_close(layer(query, value, key), still, 0.0)
    dropped = layer(query, value, key, training=True)
    assert largest_difference(dropped, still) > 1e-3


@pytest.mark.numeric
def test_dropout_keeps_the_mean():
    """Values and output are identities, so an output is a mean of kept weights, doubled.

    A weight is 1/S; over n rows the mean of its dropped self errs by 1/(S sqrt(n)), five of which
    are allowed.
    """
    rows = 2003
    layer = attention.MultiHeadAttention(1, S, dropout=0.5, use_bias=False)
    value = np.broadcast_to(np.eye(S, dtype="float32"), (1, S, S))
    query = np.zeros((1, rows, S), "float32")  # zero queries: all weights are 1/S
    layer.build(query.shape, value.shape)
    for name in ("value_projection", "output_projection"):
        getattr(layer, name).kernel.assign(np.eye(S))
    mean = numpy64(layer(query, value, training=True)).mean(axis=(0, 1))
    assert_close(mean, np.full(S, 1 / S), 5 / (S * np.sqrt(rows)))


@pytest.mark.numeric
@pytest.mark.parametrize("policy", LOW_PRECISION)
def test_low_precision_errs_as_little_as_its_rounding(policy):
    """Rounded in sequence: inputs, kernels, projections, scale, scores, weights, means, then the
    output kernel and the output: 9.
    """
    layer, (query, value, key) = multi_head()
    low = attention.MultiHeadAttention(H, K, U, dtype=policy)
    low.build(query.shape, value.shape, key.shape)
    mask = source_ids("left") != 0
    expected = reference.multi_head_attention(
        weights_of(layer), H, query, value, key, mask[:, None]
    )[0]
    output = randomise(low)(query, value, key, attention_mask=mask)
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    assert_rounding_only(output, expected, policy, 9)


# Additive attention


@pytest.mark.numeric
@pytest.mark.parametrize("side", ["left", "right"])
def test_additive_attention_is_the_formula(side):
    query, value, key = normal(B, T, D), normal(B, S, E, seed=1), normal(B, S, F, seed=2)
    layer = AdditiveAttention(A)
    layer.build(query.shape, value.shape, key.shape)
    mask = source_ids(side) != 0
    weights = weights_of(randomise(layer))
    expected = reference.additive_attention(weights, query, value, key, mask[:, None])
    assert_close(layer(query, value, key, attention_mask=mask), expected)


@pytest.mark.numeric
def test_additive_attention_has_the_right_gradients():
    query, value, cotangent = normal(B, T, D), normal(B, S, E, seed=1), normal(B, T, E, seed=2)
    layer = AdditiveAttention(A)
    layer.build(query.shape, value.shape)
    mask = np.random.default_rng(4).random((B, T, S)) < 0.6
    mask[1, 3] = False

    def loss(weights):
        output = reference.additive_attention(weights, query, value, value, mask)
        return np.sum(output * cotangent)

    weights = weights_of(randomise(layer))
    check_gradients(gradients(layer, cotangent, query, value, attention_mask=mask), weights, loss)


@pytest.mark.numeric
def test_additive_attention_gives_zeros_where_all_is_masked():
    mask = np.ones((B, T, S), bool)
    mask[1, 3] = False
    output = AdditiveAttention(A)(normal(B, T, D), normal(B, S, E), attention_mask=mask)
    assert not numpy64(output)[1, 3].any() and numpy64(output)[1, 2].all()


# Promises and errors


MULTI_HEAD = {
    "num_heads": H,
    "key_dim": K + 1,
    "value_dim": U,
    "dropout": 0.3,
    "use_bias": False,
    "positions": "rotary",
}


@pytest.mark.parametrize(
    "cls, config",
    [(attention.MultiHeadAttention, MULTI_HEAD), (AdditiveAttention, {"units": A})],
)
def test_layer_promises(cls, config, tmp_path):
    inputs = [normal(B, T, D), normal(B, S, E, seed=1), normal(B, S, F, seed=2)]
    check_layer(cls, config, inputs, tmp_path)


@pytest.mark.parametrize("argument", ["num_heads", "key_dim", "value_dim"])
def test_sizes_that_are_not_positive_are_refused(argument):
    with pytest.raises(ValueError, match=f"{argument} must be at least 1, but 0"):
        attention.MultiHeadAttention(**{"num_heads": H, "key_dim": K, argument: 0})


def test_no_units_are_refused():
    with pytest.raises(ValueError, match="units must be at least 1, but 0"):
        AdditiveAttention(0)


@pytest.mark.parametrize(
    "shapes, named",
    [
        (((B, D), (B, S, D), (B, S, D)), "query"),
        (((B, T, D), (B, 1, S, D), (B, S, D)), "value"),
        (((B, T, D), (B, S, D), (S, D)), "key"),
    ],
)
def test_inputs_of_another_rank_are_refused(shapes, named):
    inputs = [np.zeros(shape, "float32") for shape in shapes]
    for layer in (attention.MultiHeadAttention(H, K), AdditiveAttention(A)):
        with pytest.raises(
            ValueError, match=rf"{named} must have shape \(batch, length, features\)"
        ):
            layer(*inputs)


def test_keys_must_be_as_many_as_values():
    query, value, key = normal(B, T, D), normal(B, S, D), normal(B, S - 1, D)
    for layer in (attention.MultiHeadAttention(H, K), AdditiveAttention(A)):
        with pytest.raises(ValueError, match=f"same length, but {S - 1} and {S}"):
            layer(query, value, key)


def test_weights_can_be_had_before_the_first_call():
    layer, x = attention.MultiHeadAttention(H, K), normal(B, T, D)
    assert layer(x, x, return_attention_scores=True)[1].shape == (B, H, T, T)


def test_inputs_of_another_width_than_at_first_are_refused():
    for layer in (attention.MultiHeadAttention(H, K), AdditiveAttention(A)):
        layer(normal(B, T, D), normal(B, S, E))
        with pytest.raises(ValueError, match=f"value {D}.*{F}"):
            layer(normal(B, T, F), normal(B, S, E))
        with pytest.raises(ValueError, match=f"value {E}.*{F}"):
            layer(normal(B, T, D), normal(B, S, F))


def test_a_rotation_of_odd_size_is_refused():
    x = normal(B, T, D)
    with pytest.raises(ValueError, match="even"):
        attention.MultiHeadAttention(H, K, positions="rotary")(x, x)


def test_positions_for_embeddings_are_refused_inside_attention():
    with pytest.raises(ValueError, match="LearnedPositionEncoding.*inside attention"):
        attention.MultiHeadAttention(H, K, positions="learned")


def test_masks_that_do_not_fit_are_refused():
    layer, x, memory = attention.MultiHeadAttention(H, K), normal(B, T, D), normal(B, S, D)
    with pytest.raises(TypeError, match="boolean.*int32"):
        layer(x, memory, attention_mask=ops.ones((B, S), "int32"))
    with pytest.raises(ValueError, match=rf"\({B}, {T}\).*\({B}, {S}\)"):
        layer(x, memory, attention_mask=np.ones((B, T), bool))
    with pytest.raises(ValueError, match=rf"\({B}, {S}, {T}\).*\({B}, {T}, {S}\)"):
        layer(x, memory, attention_mask=np.ones((B, S, T), bool))


@pytest.mark.parametrize("shape", [(B, 1), (B, T, 1), (B, 2, T, S), (B, H, S, S)])
def test_masks_that_broadcast_wrongly_are_refused(shape):
    layer, x, memory = attention.MultiHeadAttention(H, K), normal(B, T, D), normal(B, S, D)
    with pytest.raises(ValueError, match="Any axis but the last may be 1"):
        layer(x, memory, attention_mask=np.ones(shape, bool))
    keys, values = layer.project_key_value(memory)
    with pytest.raises(ValueError, match="Any axis but the last may be 1"):
        layer.attend(x, keys, values, np.ones(shape, bool))


def test_additive_attention_refuses_masks_that_do_not_fit():
    layer, x, memory = AdditiveAttention(A), normal(B, T, D), normal(B, S, E)
    with pytest.raises(TypeError, match="boolean.*float32"):
        layer(x, memory, attention_mask=np.ones((B, S), "float32"))
    for shape in [(B, T), (B, H, T, S)]:
        with pytest.raises(ValueError, match="Any axis but the last may be 1"):
            layer(x, memory, attention_mask=np.ones(shape, bool))


def test_a_mask_may_be_an_input_of_a_functional_model():
    layer, query, value = attention.MultiHeadAttention(H, K), normal(B, T, D), normal(B, S, E)
    ends = keras.Input((None, D)), keras.Input((None, E)), keras.Input((None,), dtype="bool")
    model = keras.Model(ends, layer(ends[0], ends[1], attention_mask=ends[2]))
    mask = source_ids("left") != 0
    eager = numpy64(layer(query, value, attention_mask=mask))
    assert_close(model([query, value, mask]), eager, 1e-6)


def test_padding_mask_feeds_attention_as_it_is():
    layer, x = attention.MultiHeadAttention(H, K), normal(B, S, D)
    layer.build(x.shape, x.shape)
    mask = padding_mask(source_ids("left"))
    weights = numpy64(layer(x, x, attention_mask=mask, return_attention_scores=True)[1])
    assert weights.shape == (B, H, S, S)
    assert not weights[0, :, :, :3].any() and weights[0, :, :, 3:].all()
