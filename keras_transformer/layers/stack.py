"""One side of figure 1 of the paper: embeddings, positions, dropout, blocks, norm.

Shapes: B batch, T length, D d_model.
"""

from dataclasses import dataclass

from keras import layers

from keras_transformer.layers.embeddings import TokenEmbedding
from keras_transformer.layers.positions import PositionEncoding


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
