"""Whole models, built from the blocks as functional Keras models (section 3 of the paper).

The path and shape of every weight are a contract that checkpoints and importers rely on; the
documentation lists them.

Shapes: B batch, S source length, T target length, D d_model, V vocabulary.
"""

import keras

from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.cache import CachedDecoding
from keras_transformer.layers.checks import check_encoder, check_known
from keras_transformer.layers.ssru import RecurrentDecoderBlock
from keras_transformer.layers.stack import encoded, make_embedding, make_embeddings, make_stack
from keras_transformer.model_base import ModelBase


@keras.saving.register_keras_serializable("keras_transformer")
class Transformer(CachedDecoding, ModelBase):
    """The encoder-decoder of the paper (figure 1): source and target ids in, logits out.

    Defaults are the paper's "base" model; every row of its Table 3 is a choice of
    these arguments (dropout and label smoothing apart from the shape).

    With `encoder`, the decoder writes about anything that a Keras model turns into vectors: speech,
    pictures, series. Its Keras mask, where it sets one, hides positions from the decoder.

    Args:
        vocab_size: V, ids of the source and, unless `target_vocab_size` is
            set, of the target; the three-way tied matrix of section 3.4. With `encoder`, of the
            target alone.
        num_layers: N, blocks in each stack, or a pair, in encoder and decoder. Defaults to 6.
        d_model: D. Defaults to 512.
        num_heads: h. Defaults to 8.
        d_ff: size of the feed-forward networks. Defaults to 2048.
        dropout: rate on sublayer outputs and on embeddings + positions. Defaults to 0.1.
        key_dim: d_k. Defaults to d_model / num_heads.
        value_dim: d_v. Defaults to `key_dim`.
        attention_dropout: rate on attention weights. Defaults to 0.
        activation: of the feed-forward networks. Defaults to "relu".
        norm_first: `False` for the paper's post-norm, `True` for pre-norm.
        positions: "sinusoidal" (the paper's), "learned" (Table 3, row E) or "rotary"; or a
            position encoding such as `LearnedPositionEncoding(max_length=512)`.
        target_vocab_size: size of a separate target vocabulary; its matrix also gives
            the logits. Defaults to `None`, one shared vocabulary.
        encoder: functional Keras model with output (B, S, any size), in place of the stack of
            encoder blocks; it becomes part of this model. Then `num_layers`, sizes and rates are
            the decoder's. Defaults to `None`.
        use_bias: whether attention projections have biases. Defaults to `False`.
        epsilon: of the layer norms. Defaults to 1e-5.
        embedding_norm: whether a layer norm follows embeddings + positions. Defaults to `False`.
        tie_output: `False` for logits by a matrix of their own. Defaults to `True`.
        output_bias: whether the logits have a bias. Defaults to `False`.
        recurrent_decoder: whether the decoder's blocks are `RecurrentDecoderBlock`, with an `SSRU`
            in the place of self-attention. Defaults to `False`.
        **kwargs: `name`, and `dtype`: policy of the layers, such as "mixed_bfloat16".

    Call arguments:
        inputs: `{"source_ids": (B, S), "target_ids": (B, T)}` int32; id 0 is padding. The
            target starts with the begin id 2 (the shift of section 3.1). With `encoder`, its
            inputs by their own names stand in the place of "source_ids".

    Returns:
        (B, T, V) float32 logits. Padding, on either side, is attended to by nobody;
        logits at padded target positions mean nothing.

    Raises:
        ValueError: a size is not positive, `num_heads` does not divide `d_model` while
            `key_dim` is not set, an unknown `positions`, a sequence beyond `max_length`, an
            encoder whose output is not (B, S, D).
        TypeError: ids are not integers, or `encoder` is no functional model.

    Example:

    >>> model = Transformer(vocab_size=23, num_layers=2, d_model=16, num_heads=2, d_ff=32)
    >>> ids = keras.ops.array([[5, 7, 3, 0]])
    >>> model({"source_ids": ids, "target_ids": ids}).shape
    (1, 4, 23)

    >>> frames = keras.Input((None, 5), name="frames")
    >>> encoder = keras.Model(frames, keras.layers.Conv1D(16, 3, strides=2)(frames))
    >>> model = Transformer(23, 2, d_model=16, num_heads=2, d_ff=32, encoder=encoder)
    >>> model({"frames": keras.ops.ones((1, 11, 5)), "target_ids": ids}).shape
    (1, 4, 23)
    """

    def __init__(
        self, vocab_size, num_layers=6, d_model=512, num_heads=8, d_ff=2048, dropout=0.1, *,
        key_dim=None, value_dim=None, attention_dropout=0.0, activation="relu", norm_first=False,
        positions="sinusoidal", target_vocab_size=None, encoder=None, use_bias=False, epsilon=1e-5,
        embedding_norm=False, tie_output=True, output_bias=False, recurrent_decoder=False, **kwargs,
    ):  # fmt: skip
        check_encoder(encoder, target_vocab_size)
        self.target_vocab_size, self.encoder = target_vocab_size, encoder
        self.recurrent_decoder = recurrent_decoder
        super().__init__(
            vocab_size, num_layers, d_model, num_heads, d_ff, dropout,
            key_dim=key_dim, value_dim=value_dim, attention_dropout=attention_dropout,
            activation=activation, norm_first=norm_first, positions=positions, use_bias=use_bias,
            epsilon=epsilon, embedding_norm=embedding_norm, tie_output=tie_output,
            output_bias=output_bias, **kwargs,
        )  # fmt: skip

    def _connect(self):
        pair = isinstance(self.num_layers, (tuple, list))
        depth, decoder_depth = self.num_layers if pair else [self.num_layers] * 2
        source = keras.Input((None,), dtype="int32", name="source_ids")
        encoder, inputs = self.encoder, {"source_ids": source}
        embedding, target = make_embeddings(self)
        if encoder is None:
            encoder = make_stack(self, embedding, EncoderBlock, depth, "encoder", "source")
        else:
            source = inputs = {x.name: keras.Input(x.shape[1:], None, x.dtype, name=x.name)
                               for x in encoder.inputs}  # fmt: skip
        block = RecurrentDecoderBlock if self.recurrent_decoder else DecoderBlock
        decoder = make_stack(self, target, block, decoder_depth, "decoder", "target")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        logits = target.logits(decoder(target_ids, encoded(encoder, source)))
        return {**inputs, "target_ids": target_ids}, logits, (encoder, decoder)

    def get_config(self):
        encoder = None if self.source_inputs is None else self.encoder
        return {
            **super().get_config(),
            "target_vocab_size": self.target_vocab_size,
            "recurrent_decoder": self.recurrent_decoder,
            "encoder": keras.saving.serialize_keras_object(encoder),
        }


@keras.saving.register_keras_serializable("keras_transformer")
class TransformerEncoder(ModelBase):
    """The encoder alone: ids in, one vector a token out (section 3.1).

    For classification, tagging, retrieval: put any head on its output. Arguments and errors are
    those of `Transformer`, without `target_vocab_size`, `tie_output` and `output_bias`.

    Args:
        num_segments: number of texts in a row, whose `SegmentEmbedding` is then added to the
            embeddings. Defaults to `None`: one text, without such vectors.

    Call arguments:
        inputs: (B, S) int32 `source_ids`; id 0 is padding. With `num_segments`
            `{"source_ids": (B, S), "segment_ids": (B, S)}`: 0 for padding, 1 for the first text, 2
            for the second.

    Returns:
        (B, S, D). Carries the Keras mask of the ids, so that pooling layers which
        respect masks leave the padding out.

    Example:

    >>> encoder = TransformerEncoder(vocab_size=23, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> encoder(keras.ops.array([[5, 7, 0]])).shape
    (1, 3, 16)
    """

    own = ("num_segments",)

    def __init__(
        self, vocab_size, num_layers=6, d_model=512, num_heads=8, d_ff=2048, dropout=0.1, *,
        key_dim=None, value_dim=None, attention_dropout=0.0, activation="relu", norm_first=False,
        positions="sinusoidal", use_bias=False, epsilon=1e-5, embedding_norm=False,
        num_segments=None, **kwargs,
    ):  # fmt: skip
        check_known(self, kwargs, "name", "trainable", "dtype", "max_length")
        self.num_segments = num_segments
        super().__init__(
            vocab_size, num_layers, d_model, num_heads, d_ff, dropout,
            key_dim=key_dim, value_dim=value_dim, attention_dropout=attention_dropout,
            activation=activation, norm_first=norm_first, positions=positions, use_bias=use_bias,
            epsilon=epsilon, embedding_norm=embedding_norm, **kwargs,
        )  # fmt: skip

    def _connect(self):
        embedding = make_embedding(self, "token_embedding", self.vocab_size)
        encoder = make_stack(self, embedding, EncoderBlock, self.num_layers, "encoder", "source",
                             self.num_segments)  # fmt: skip
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        if self.num_segments is None:
            return source_ids, encoder(source_ids), (encoder, None)
        segment_ids = keras.Input((None,), dtype="int32", name="segment_ids")
        inputs = {"source_ids": source_ids, "segment_ids": segment_ids}
        return inputs, encoder(source_ids, segment_ids=segment_ids), (encoder, None)


@keras.saving.register_keras_serializable("keras_transformer")
class CausalTransformer(CachedDecoding, ModelBase):
    """The decoder alone, a language model: each position predicts the next token.

    The decoder of section 3.1 without its attention to an encoder. Arguments and errors are those
    of `Transformer`, without `target_vocab_size`.

    Call arguments:
        inputs: (B, T) int32 `target_ids`; id 0 is padding, on the right.

    Returns:
        (B, T, V) float32 logits of the tokens after each position.

    Example:

    >>> model = CausalTransformer(vocab_size=23, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> model(keras.ops.array([[2, 5, 7]])).shape
    (1, 3, 23)
    """

    def _connect(self):
        output = (self.tie_output, self.output_bias)
        embedding = make_embedding(self, "token_embedding", self.vocab_size, *output)
        decoder = make_stack(self, embedding, EncoderBlock, self.num_layers, "decoder", "target")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        logits = embedding.logits(decoder(target_ids, use_causal_mask=True))
        return target_ids, logits, (None, decoder)
