"""The encoder blocks of sources without ids, such as sound and pictures."""

from typing import Any

from keras import layers

from keras_transformer.layers.blocks import EncoderBlock
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.types import Tensor


def encoder_stack(
    x: Tensor,
    num_layers: int,
    length: int,
    learned: bool = True,
    *,
    dropout: float,
    epsilon: float,
    dtype: Any = None,
    **arguments: Any,
) -> Tensor:
    """Adds positions, and applies dropout, pre-norm blocks and the last norm.

    Args:
        x: (B, S, D), a symbolic tensor.
        num_layers: int, number of blocks.
        length: int, number of positions.
        learned: bool, whether positions are trainable.
        dropout, epsilon, dtype, **arguments: as in `EncoderBlock`.

    Returns:
        (B, S, D).
    """
    positions = LearnedPositionEncoding(
        length, trainable=learned, dtype=dtype, name="source_positions"
    )
    x = layers.Dropout(dropout, dtype=dtype, name="source_dropout")(positions(x))
    arguments |= {"dropout": dropout, "epsilon": epsilon, "dtype": dtype}
    for i in range(num_layers):
        block = EncoderBlock(norm_first=True, use_bias=True, name=f"encoder_block_{i}", **arguments)
        x = block(x)
    return layers.LayerNormalization(epsilon=epsilon, dtype=dtype, name="encoder_norm")(x)
