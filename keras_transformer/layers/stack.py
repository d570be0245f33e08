"""One side of figure 1 of the paper: embeddings, positions, dropout, blocks, norm.

Shapes: B batch, T length, D d_model.
"""

from dataclasses import dataclass

import keras
from keras import layers

from keras_transformer.layers.checks import check_positive
from keras_transformer.layers.embeddings import TokenEmbedding
from keras_transformer.layers.positions import PositionEncoding, position_encoding


@dataclass
class Stack:
    """One side of figure 1. Where attention holds the positions, adding them does nothing."""

    embedding: TokenEmbedding
    positions: PositionEncoding
    dropout: layers.Dropout  # on their sum (section 5.4)
    blocks: list  # of `EncoderBlock` or `DecoderBlock`
    norm: layers.Layer  # of pre-norm stacks; post-norm blocks end with one, and this does nothing

    def embed(self, ids, position=None):
        """Embeddings + positions, with dropout on the sum: (B, T) -> (B, T, D).

        With `position`, an integer scalar, all T tokens of a sentence are alternatives for it.
        """
        return self.dropout(self.positions.add(self.embedding(ids), position))

    def __call__(self, ids, *memory, **options):
        """(B, T) -> (B, T, D). The Keras mask of the embedding hides the padding."""
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, *memory, **options)
        return self.norm(x)


def make_stack(model, embedding, block, num_layers, side, text):
    """One side of figure 1, of the sizes, rates and kinds that `model` was made with.

    Args:
        model: has the arguments of `EncoderBlock`, `positions` and `layers_dtype`.
        embedding: `TokenEmbedding`.
        block: class of the blocks.
        num_layers: number of blocks.
        side: what the names of blocks and norm begin with.
        text: what the names of positions and dropout begin with.
    """
    check_positive(num_layers=num_layers)
    dtype = model.layers_dtype
    positions = position_encoding(model.positions, dtype=dtype, name=f"{text}_positions")
    blocks = [
        block(
            model.num_heads, model.d_ff, model.dropout, model.activation, model.norm_first,
            key_dim=model.key_dim, value_dim=model.value_dim,
            attention_dropout=model.attention_dropout, use_bias=model.use_bias,
            positions=model.positions if positions.in_attention else None,
            dtype=dtype, name=f"{side}_block_{i}",
        )
        for i in range(num_layers)
    ]  # fmt: skip
    dropout = layers.Dropout(model.dropout, dtype=dtype, name=f"{text}_dropout")
    if model.norm_first:
        norm = layers.LayerNormalization(epsilon=1e-5, dtype=dtype, name=f"{side}_norm")
    else:
        norm = layers.Identity(dtype=dtype.name, name=f"{side}_norm")
    return Stack(embedding, positions, dropout, blocks, norm)


def encoded(encoder, source):
    """The output (B, S, D) of a `Stack` for ids, or of a Keras model for its inputs.

    `source` is the only input, or a dict of all of them by name.
    """
    if isinstance(source, dict):
        source = [source[tensor.name] for tensor in encoder.inputs]
        source = keras.tree.pack_sequence_as(encoder.input, source)
    return encoder(source)
