"""The recurrent unit and its block against a loop in NumPy.

Shapes: B batch, T target length, S source length, D d_model, F d_ff, V vocabulary.
"""

import keras
import numpy as np
import pytest
from helpers import reference
from helpers.checks import (
    assert_close,
    normal,
    randomise,
    weights_of,
)
from keras import ops

from keras_transformer.layers.ssru import SSRU, RecurrentDecoderBlock

B, T, S, D, F, V = 3, 11, 7, 22, 19, 23


def relu(states):
    return np.maximum(states, 0.0)


def unit(**options):
    layer = SSRU(**options)
    layer.build((B, T, D))
    return randomise(layer)


@pytest.mark.numeric
@pytest.mark.parametrize("length", [1, 2, 3, 8, T])
def test_steps_and_full_pass_match_the_reference_at_every_length(length):
    layer, x = unit(), normal(B, length, D)
    states, state = reference.recurrent_states(weights_of(layer), x), layer.initial_state(B, 1)
    assert_close(layer(x), relu(states))
    for t in range(length):
        output, state = layer.step(x[:, t : t + 1], state)
        assert_close(output[:, 0], relu(states[:, t]))
        assert_close(state[:, 0], states[:, t])


@pytest.mark.numeric
@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_masked_positions_leave_the_state_unchanged(side):
    layer, x, mask = unit(), normal(B, T, D), np.ones((B, T), bool)
    mask[0, {"left": slice(0, 4), "right": slice(7, T), "middle": slice(3, 6)}[side]] = False
    whole = relu(reference.recurrent_states(weights_of(layer), x, mask))
    assert_close(layer(x, attention_mask=ops.convert_to_tensor(mask)), whole)
    masked = keras.layers.Masking()(np.where(mask[..., None], x, 0.0).astype("float32"))
    assert_close(layer(masked), whole)  # the same by a Keras mask
    alone = layer(x[:1, mask[0]])  # and as if it were not there
    assert_close(alone, whole[:1, mask[0]])


def test_masks_of_queries_and_keys_are_refused():
    with pytest.raises(ValueError, match=r"must have shape \(B, T\), but"):
        unit()(normal(B, T, D), attention_mask=np.ones((B, T, T), bool))
    with pytest.raises(ValueError, match="inputs must have shape"):
        SSRU().build((B, D))


def test_the_block_replaces_self_attention_with_the_unit():
    block, x, memory = RecurrentDecoderBlock(2, F), normal(B, T, D), normal(B, S, D, seed=1)
    block(x, memory)
    paths = [path for path in weights_of(block) if path.startswith("self_attention/")]
    names = ("input/kernel", "forget/kernel", "forget/bias")
    assert paths == [f"self_attention/{name}" for name in names]
    with pytest.raises(ValueError, match="from left to right"):
        block(x, memory, use_causal_mask=False)
