"""Feed-forward network, encoder and decoder block against the NumPy reference.

Shapes: B batch, T target length, S source length, H heads, K key size, U value size, D d_model,
F d_ff, M size of the memory.
"""

import keras
import numpy as np
import pytest
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

from keras_transformer.layers import blocks

B, T, S, H, K, U, D, F, M = 2, 5, 7, 3, 11, 13, 17, 19, 23

TARGET = {  # padded on either side, and one row that is full
    "right": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool),
    "left": np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], bool),
}
SOURCE = {
    "right": np.array([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]], bool),
    "left": np.array([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]], bool),
}
VARIANTS = [
    {},
    {"norm_first": True, "activation": "gelu"},
    {"positions": "rotary", "key_dim": K + 1, "use_bias": True},
]


def encoder_block(seed=0, **options):
    block = blocks.EncoderBlock(H, F, **{"key_dim": K, "value_dim": U, **options})
    block.build((B, T, D))
    return randomise(block, seed)


def decoder_block(seed=0, **options):
    block = blocks.DecoderBlock(H, F, **{"key_dim": K, "value_dim": U, **options})
    block.build((B, T, D), (B, S, M))
    return randomise(block, seed)


@pytest.mark.parametrize("block", [encoder_block, decoder_block])
def test_the_epsilon_of_layer_norms_is_documented(block):
    made = block()
    norms = [
        layer.epsilon
        for layer in made._flatten_layers()
        if isinstance(layer, keras.layers.LayerNormalization)
    ]
    assert len(norms) >= 2 and set(norms) == {1e-5}


def arguments(options):
    names = ("norm_first", "activation", "positions")
    return {"num_heads": H, **{name: options[name] for name in names if name in options}}


# Feed-forward network


@pytest.mark.numeric
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh"])
def test_feed_forward_is_the_formula_and_its_gradient(activation):
    layer, x = blocks.FeedForward(F, activation), normal(B, T, D)
    layer.build(x.shape)
    weights, cotangent = weights_of(randomise(layer)), normal(B, T, D, seed=1)
    assert_close(layer(x), reference.feed_forward(weights, x, activation))

    def loss(weights):
        return np.sum(reference.feed_forward(weights, x, activation) * cotangent)

    check_gradients(gradients(layer, cotangent, x), weights, loss)


@pytest.mark.numeric
def test_feed_forward_is_the_same_at_every_position():
    layer, x = blocks.FeedForward(F), normal(B, T, D)
    whole = numpy64(layer(x))
    for t in range(T):
        assert_close(layer(x[:, t : t + 1]), whole[:, t : t + 1], 1e-6)


# Blocks


@pytest.mark.numeric
@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_encoder_block_is_the_formula(side, options):
    block, x = encoder_block(**options), normal(B, T, D)
    expected = reference.encoder_block(weights_of(block), x, TARGET[side], **arguments(options))
    assert_close(block(x, attention_mask=TARGET[side]), expected)


@pytest.mark.numeric
@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_decoder_block_is_the_formula(side, options):
    block, x, memory = decoder_block(**options), normal(B, T, D), normal(B, S, M, seed=1)
    masks = TARGET[side], SOURCE[side]
    expected = reference.decoder_block(weights_of(block), x, memory, *masks, **arguments(options))
    assert_close(block(x, memory, attention_mask=masks[0], memory_mask=masks[1]), expected)


@pytest.mark.numeric
@pytest.mark.parametrize("options", VARIANTS[:2])
def test_encoder_block_has_the_right_gradients(options):
    block, x, cotangent = encoder_block(**options), normal(B, T, D), normal(B, T, D, seed=1)
    mask = TARGET["left"]

    def loss(weights):
        output = reference.encoder_block(weights, x, mask, **arguments(options))
        return np.sum(output * cotangent)

    found = gradients(block, cotangent, x, attention_mask=mask)
    check_gradients(found, weights_of(block), loss)


@pytest.mark.numeric
@pytest.mark.parametrize("options", VARIANTS[:2])
def test_decoder_block_has_the_right_gradients(options):
    block, x, memory = decoder_block(**options), normal(B, T, D), normal(B, S, M, seed=1)
    cotangent, masks = normal(B, T, D, seed=2), (TARGET["left"], SOURCE["right"])

    def loss(weights):
        output = reference.decoder_block(weights, x, memory, *masks, **arguments(options))
        return np.sum(output * cotangent)

    found = gradients(block, cotangent, x, memory, attention_mask=masks[0], memory_mask=masks[1])
    check_gradients(found, weights_of(block), loss)


@pytest.mark.numeric
def test_a_mask_of_rank_three_says_who_sees_whom():
    block, x = encoder_block(), normal(B, T, D)
    mask = np.random.default_rng(3).random((B, T, T)) < 0.6
    expected = reference.encoder_block(weights_of(block), x, mask, num_heads=H)
    assert_close(block(x, attention_mask=mask), expected)
    decoder, memory = decoder_block(), normal(B, S, M, seed=1)
    memory_mask = np.random.default_rng(4).random((B, T, S)) < 0.6
    expected = reference.decoder_block(
        weights_of(decoder), x, memory, mask, memory_mask, num_heads=H
    )
    assert_close(decoder(x, memory, attention_mask=mask, memory_mask=memory_mask), expected)


@pytest.mark.numeric
def test_a_causal_encoder_block_is_a_decoder_block_without_memory():
    block, x = encoder_block(), normal(B, T, D)
    expected = reference.encoder_block(
        weights_of(block), x, np.broadcast_to(reference.causal_mask(T), (B, T, T)), num_heads=H
    )
    assert_close(block(x, use_causal_mask=True), expected)


@pytest.mark.numeric
def test_the_decoder_never_sees_the_future():
    block, memory = decoder_block(), normal(B, S, M)
    x = normal(B, T, D, seed=1)
    before = numpy64(block(x, memory))
    x[:, 3:] += 1.0
    after = block(x, memory)
    assert_close(numpy64(after)[:, :3], before[:, :3], 1e-6)
    assert largest_difference(numpy64(after)[:, 3:], before[:, 3:]) > 1e-3


@pytest.mark.numeric
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_keras_mask_is_the_explicit_mask(side, norm_first):
    x, memory = normal(B, T, D), normal(B, S, M, seed=1)
    x = np.where(TARGET[side][..., None], x, 0.0).astype("float32")
    memory = np.where(SOURCE[side][..., None], memory, 0.0).astype("float32")
    masking = keras.layers.Masking()
    ends = keras.Input((T, D)), keras.Input((S, M))
    encoder, decoder = encoder_block(norm_first=norm_first), decoder_block(norm_first=norm_first)
    outputs = encoder(masking(ends[0])), decoder(masking(ends[0]), masking(ends[1]))
    ours = keras.Model(ends, outputs)([x, memory])
    explicit = encoder(x, attention_mask=TARGET[side])
    assert_close(ours[0], numpy64(explicit), 1e-6)
    explicit = decoder(x, memory, attention_mask=TARGET[side], memory_mask=SOURCE[side])
    assert_close(ours[1], numpy64(explicit), 1e-6)


@pytest.mark.numeric
def test_rows_that_see_nothing_stay_finite_in_output_and_gradient():
    block, x, memory = decoder_block(), normal(B, T, D), normal(B, S, M, seed=1)
    nothing = {"attention_mask": np.zeros((B, T), bool), "memory_mask": np.zeros((B, S), bool)}
    assert np.isfinite(numpy64(block(x, memory, **nothing))).all()
    found = gradients(block, normal(B, T, D, seed=2), x, memory, **nothing)
    assert all(np.isfinite(gradient).all() for gradient in found.values())


@pytest.mark.numeric
def test_dropout_is_on_every_sublayer_in_training_only():
    x = normal(B, T, D)
    block = encoder_block(dropout=0.5, norm_first=True)
    still = numpy64(block(x, training=False))
    assert_close(block(x), still, 0.0)
    assert largest_difference(block(x, training=True), still) > 1e-3
    # All dropped: pre-norm leaves the residual alone, in the decoder too.
    closed = {"dropout": 1.0 - 1e-7, "norm_first": True}
    assert_close(encoder_block(**closed)(x, training=True), x, 0.0)
    memory = normal(B, S, M)
    assert_close(decoder_block(**closed)(x, memory, training=True), x, 0.0)


@pytest.mark.numeric
@pytest.mark.parametrize("policy", LOW_PRECISION)
@pytest.mark.parametrize("kind, roundings", [("encoder", 18), ("decoder", 29)])
def test_low_precision_errs_as_little_as_its_rounding(kind, roundings, policy):
    """Rounded in sequence: 9 times in an attention, 5 in the feed-forward network (inputs, kernel,
    hidden, kernel, output), and each sum and norm: 9 + 5 + 2 * 2 and 2 * 9 + 5 + 3 * 2.
    """
    make = {"encoder": encoder_block, "decoder": decoder_block}[kind]
    block, low = make(), make(dtype=policy)
    inputs = (normal(B, T, D),) if kind == "encoder" else (normal(B, T, D), normal(B, S, M, seed=1))
    masks = (TARGET["left"],) if kind == "encoder" else (TARGET["left"], SOURCE["right"])
    compute = getattr(reference, f"{kind}_block")
    expected = compute(weights_of(block), *inputs, *masks, num_heads=H)
    names = ("attention_mask", "memory_mask")
    output = low(*inputs, **dict(zip(names, masks, strict=False)))
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    assert_rounding_only(output, expected, policy, roundings)


# Promises and errors


BLOCK = {
    "num_heads": H,
    "d_ff": F,
    "dropout": 0.3,
    "activation": "gelu",
    "norm_first": True,
    "key_dim": K + 1,
    "value_dim": U,
    "attention_dropout": 0.2,
    "use_bias": True,
    "positions": "rotary",
    "epsilon": 1e-3,
}


@pytest.mark.parametrize(
    "cls, config, inputs",
    [
        (blocks.FeedForward, {"d_ff": F, "activation": "gelu"}, [normal(B, T, D)]),
        (blocks.EncoderBlock, BLOCK, [normal(B, T, D)]),
        (blocks.DecoderBlock, BLOCK, [normal(B, T, D), normal(B, S, M)]),
    ],
)
def test_layer_promises(cls, config, inputs, tmp_path):
    check_layer(cls, config, inputs, tmp_path)


def test_epsilon_reaches_the_norms():
    x = np.zeros((B, T, D), "float32")
    for name in ("self_attention_norm", "feed_forward_norm"):
        assert getattr(encoder_block(epsilon=1e-3), name).epsilon == 1e-3
    assert decoder_block(epsilon=1e-3).cross_attention_norm.epsilon == 1e-3
    assert np.isfinite(numpy64(encoder_block()(x))).all()


def test_no_hidden_units_are_refused():
    with pytest.raises(ValueError, match="d_ff must be at least 1, but 0"):
        blocks.FeedForward(0)


@pytest.mark.parametrize("kind", [blocks.EncoderBlock, blocks.DecoderBlock])
def test_heads_that_do_not_divide_the_width_are_refused(kind):
    inputs = [normal(B, T, D)] * (1 if kind is blocks.EncoderBlock else 2)
    with pytest.raises(ValueError, match=f"d_model={D}.*num_heads={H}.*key_dim"):
        kind(H, F)(*inputs)
    assert kind(D, F)(*inputs).shape == (B, T, D)


@pytest.mark.parametrize("kind", [blocks.EncoderBlock, blocks.DecoderBlock])
def test_inputs_of_another_rank_are_refused(kind):
    inputs = [normal(B, D)] * (1 if kind is blocks.EncoderBlock else 2)
    with pytest.raises(ValueError, match=rf"\(batch, length, features\).*{D}"):
        kind(1, F)(*inputs)


def test_inputs_of_another_width_than_at_first_are_refused():
    with pytest.raises(ValueError, match=f"value {D}.*{M}"):
        encoder_block()(normal(B, T, M))
    with pytest.raises(ValueError, match=f"value {M}.*{D}"):
        decoder_block()(normal(B, T, D), normal(B, S, D))


def test_masks_that_do_not_fit_are_refused():
    block, x = encoder_block(), normal(B, T, D)
    with pytest.raises(TypeError, match="boolean.*float32"):
        block(x, attention_mask=np.ones((B, T), "float32"))
    with pytest.raises(ValueError, match=rf"\({B}, {S}\)"):
        block(x, attention_mask=np.ones((B, S), bool))
