"""One side of figure 1 of the paper: embeddings, positions, dropout, blocks, norm.

Shapes: B batch, T length, D d_model.
"""

from dataclasses import dataclass

import keras
from keras import layers

from keras_transformer.layers.checks import check_positive
from keras_transformer.layers.embeddings import SegmentEmbedding, TokenEmbedding
from keras_transformer.layers.positions import PositionEncoding, position_encoding


@dataclass
class Stack:
    """One side of figure 1. Where attention holds the positions, adding them does nothing."""

    embedding: TokenEmbedding
    positions: PositionEncoding
    dropout: layers.Dropout  # on their sum (section 5.4)
    blocks: list  # of `EncoderBlock` or `DecoderBlock`
    norm: layers.Layer  # of pre-norm stacks; post-norm blocks end with one, and this does nothing
    segments: SegmentEmbedding | None = None
    embedding_norm: layers.Layer | None = None

    def embed(self, ids, position=None, segment_ids=None):
        """Embeddings + positions + segments, norm and dropout on the sum: (B, T) -> (B, T, D).

        With `position`, an integer scalar, all T tokens of a sentence are alternatives for it.
        """
        x = self.positions.add(self.embedding(ids), position)
        if self.segments is not None:
            x = self.segments(x, segment_ids)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return self.dropout(x)

    def __call__(self, ids, *memory, segment_ids=None, **options):
        """(B, T) -> (B, T, D). The Keras mask of the embedding hides the padding."""
        x = self.embed(ids, segment_ids=segment_ids)
        for block in self.blocks:
            x = block(x, *memory, **options)
        return self.norm(x)


def make_embedding(model, name, vocab_size, *output):
    """`TokenEmbedding` of the model's size; `output` is its `tie_output` and `output_bias`."""
    return TokenEmbedding(vocab_size, model.d_model, *output, dtype=model.layers_dtype, name=name)


def make_embeddings(model):
    """Embeddings of the source and of the target, which gives the logits, of a `Transformer`.

    They are one where both share a vocabulary, or an encoder of the caller's reads the source.
    """
    output = (model.tie_output, model.output_bias)
    if model.target_vocab_size is None:
        return [make_embedding(model, "token_embedding", model.vocab_size, *output)] * 2
    source = make_embedding(model, "source_embedding", model.vocab_size)
    return source, make_embedding(model, "target_embedding", model.target_vocab_size, *output)


def make_stack(model, embedding, block, num_layers, side, text, num_segments=None):
    """One side of figure 1, of the sizes, rates and kinds that `model` was made with.

    Args:
        model: has the arguments of `EncoderBlock`, `positions`, `embedding_norm` and
            `layers_dtype`.
        embedding: `TokenEmbedding`.
        block: class of the blocks.
        num_layers: number of blocks.
        side: what the names of blocks and norm begin with.
        text: what the names of positions, dropout and norm of the embedding begin with.
        num_segments: as in `SegmentEmbedding`; `None` for rows of one text.
    """
    check_positive(num_layers=num_layers)
    dtype = model.layers_dtype
    positions = position_encoding(model.positions, dtype=dtype, name=f"{text}_positions")
    blocks = [
        block(
            model.num_heads, model.d_ff, model.dropout, model.activation, model.norm_first,
            key_dim=model.key_dim, value_dim=model.value_dim,
            attention_dropout=model.attention_dropout, use_bias=model.use_bias,
            epsilon=model.epsilon, dtype=dtype, name=f"{side}_block_{i}",
            positions=model.positions if positions.in_attention else None,
        )
        for i in range(num_layers)
    ]  # fmt: skip
    dropout = layers.Dropout(model.dropout, dtype=dtype, name=f"{text}_dropout")
    if model.norm_first:
        norm = _norm(model, f"{side}_norm")
    else:
        norm = layers.Identity(dtype=dtype.name, name=f"{side}_norm")
    segments = embedding_norm = None
    if num_segments is not None:
        segments = SegmentEmbedding(num_segments, dtype=dtype, name="segment_embedding")
    if model.embedding_norm:
        embedding_norm = _norm(model, f"{text}_embedding_norm")
    return Stack(embedding, positions, dropout, blocks, norm, segments, embedding_norm)


def _norm(model, name):
    return layers.LayerNormalization(epsilon=model.epsilon, dtype=model.layers_dtype, name=name)


def encoded(encoder, source):
    """The output (B, S, D) of a `Stack` for ids, or of a Keras model for its inputs.

    `source` is the only input, or a dict of all of them by name.
    """
    if isinstance(source, dict):
        source = [source[tensor.name] for tensor in encoder.inputs]
        source = keras.tree.pack_sequence_as(encoder.input, source)
    return encoder(source)
