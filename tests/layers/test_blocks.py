"""Masks, dropout, norms and errors of encoder and decoder block.

Shapes: B batch, T target length, S source length, H heads, K key size, U value size, D d_model,
F d_ff, M size of the memory.
"""

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
)

from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock

B, T, S, H, K, U, D, F, M = 2, 5, 7, 3, 11, 13, 17, 19, 23

TARGET = {  # padded on either side, and one row that is full
    "right": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool),
    "left": np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], bool),
}
SOURCE = {
    "right": np.array([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]], bool),
    "left": np.array([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]], bool),
}
sides = pytest.mark.parametrize("side", ["left", "right"])
both = pytest.mark.parametrize("cls", [EncoderBlock, DecoderBlock])


def made(cls, seed=0, **options):
    """Returns a built block with random weights."""
    block = cls(H, F, **{"key_dim": K, "value_dim": U, **options})
    block.build(*(x.shape for x in inputs_of(cls)))
    return randomise(block, seed)


def inputs_of(cls):
    return [normal(B, T, D), normal(B, S, M, seed=1)][: 1 + (cls is DecoderBlock)]


def masks_of(cls, side="left", memory_side="right"):
    """Returns masks by call argument, in the order of the reference."""
    masks = {"attention_mask": TARGET[side], "memory_mask": SOURCE[memory_side]}
    return masks if cls is DecoderBlock else {"attention_mask": TARGET[side]}


@pytest.mark.numeric
@both
def test_a_causal_block_never_sees_the_future_and_another_sees_all_positions(cls):
    block, (x, *memory) = made(cls), inputs_of(cls)
    explicit = np.broadcast_to(reference.causal_mask(T), (B, T, T))
    found = block(x, *memory, attention_mask=explicit, use_causal_mask=False)
    later = x + np.float32(1.0) * (np.arange(T) >= 3)[:, None]
    before, after = (
        [numpy64(block(each, *memory, use_causal_mask=causal)) for causal in (True, False)]
        for each in (x, later)
    )
    assert_close(found, before[0], 1e-6)
    assert_close(after[0][:, :3], before[0][:, :3], 1e-6)
    for one, two in ((after[0][:, 3:], before[0][:, 3:]), (after[1], before[1])):
        assert np.abs(one - two).max(axis=2).min() > 1e-4


@pytest.mark.numeric
@pytest.mark.parametrize("norm_first", [False, True])
@sides
def test_a_keras_mask_equals_the_explicit_mask(side, norm_first):
    x, memory = inputs_of(DecoderBlock)
    x = np.where(TARGET[side][..., None], x, 0.0).astype("float32")
    memory = np.where(SOURCE[side][..., None], memory, 0.0).astype("float32")
    masking = keras.layers.Masking()
    ends = keras.Input((T, D)), keras.Input((S, M))
    blocks = [made(cls, norm_first=norm_first) for cls in (EncoderBlock, DecoderBlock)]
    outputs = blocks[0](masking(ends[0])), blocks[1](masking(ends[0]), masking(ends[1]))
    ours = keras.Model(ends, outputs)([x, memory])
    assert_close(ours[0], numpy64(blocks[0](x, **masks_of(EncoderBlock, side))), 1e-6)
    explicit = blocks[1](x, memory, **masks_of(DecoderBlock, side, side))
    assert_close(ours[1], numpy64(explicit), 1e-6)


@pytest.mark.numeric
@both
def test_dropout_is_on_every_sublayer_in_training_only(cls):
    block, inputs = made(cls, dropout=0.5, attention_dropout=0.5), inputs_of(cls)
    still = numpy64(block(*inputs, training=False))
    assert_close(block(*inputs), still, 0.0)
    assert largest_difference(block(*inputs, training=True), still) > 1e-3
    # With everything dropped, only the residual connection of a pre-norm block is left.
    block = made(cls, dropout=1.0 - 1e-7, norm_first=True)
    assert_close(block(*inputs, training=True), inputs[0], 0.0)


# Promises and errors


@both
def test_epsilon_reaches_every_norm_and_has_the_documented_default(cls):
    for options, epsilon in (({}, 1e-5), ({"epsilon": 1e-3}, 1e-3)):
        layers = made(cls, **options)._flatten_layers()
        norms = [layer for layer in layers if isinstance(layer, keras.layers.LayerNormalization)]
        assert {norm.epsilon for norm in norms} == {epsilon}
        assert len(norms) == 2 + (cls is DecoderBlock)


@both
def test_inputs_and_arguments_that_do_not_fit_are_refused(cls):
    inputs, block, plain = inputs_of(cls), made(cls), [normal(B, T, D)] * len(inputs_of(cls))
    for call, error, message in (
        (lambda: cls(H, 0), ValueError, "d_ff must be at least 1, but 0"),
        (lambda: cls(H, F)(*plain), ValueError, f"d_model={D}.*num_heads={H}.*key_dim"),
        (
            lambda: cls(1, F)(*([normal(B, D)] * len(inputs))),
            ValueError,
            rf"\(batch, length, features\).*{D}",
        ),
        (
            lambda: block(*inputs[:-1], normal(B, S, F)),
            ValueError,
            f"value {inputs[-1].shape[2]}.*{F}",
        ),
        (
            lambda: block(*inputs, attention_mask=np.ones((B, T), "float32")),
            TypeError,
            "boolean.*float32",
        ),
        (
            lambda: block(*inputs, attention_mask=np.ones((B, S), bool)),
            ValueError,
            rf"\({B}, {S}\)",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
    assert cls(D, F)(*plain).shape == (B, T, D)
