"""Figure 1 of the paper as functional Keras models: encoder, decoder and logits (section 3).

Checkpoints and importers rely on the path and shape of every weight, listed in the documentation.

Shapes: B batch, S source length, T target length, D d_model, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import layers, ops

from keras_transformer.decoding import CachedDecoding, call_encoder, check_start
from keras_transformer.layers.base import apply_settings, sublayer_settings
from keras_transformer.layers.blocks import BlockArguments, DecoderBlock, EncoderBlock
from keras_transformer.layers.checks import (
    check_encoder,
    check_id_inputs,
    check_no_text,
    check_positive,
)
from keras_transformer.layers.embeddings import SegmentEmbedding, TokenEmbedding
from keras_transformer.layers.positions import PositionEncoding, position_encoding
from keras_transformer.layers.ssru import RecurrentDecoderBlock
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID
from keras_transformer.training.distribution import Model
from keras_transformer.types import Tensor


@dataclass(frozen=True)
class Stack:
    """The layers of one side of figure 1, in the order in which a forward pass calls them."""

    embedding: TokenEmbedding
    # If `in_attention`, this layer is not called; each block has its own copy, or all share it.
    positions: PositionEncoding
    segments: SegmentEmbedding | None
    embedding_norm: keras.Layer | None
    dropout: keras.Layer  # on embeddings + positions (section 5.4)
    blocks: list[Any]  # `EncoderBlock`, `DecoderBlock` or `RecurrentDecoderBlock`
    norm: keras.Layer  # a norm for pre-norm blocks, the identity for post-norm blocks

    @property
    def has_bias(self) -> bool:
        """Whether the scores of a block have a bias of positions."""
        if self.blocks[0].recurrent:
            return False
        positions = [block.self_attention.positions for block in self.blocks]
        return any(each is not None and each.has_bias for each in positions)

    def embed(
        self,
        ids: Tensor,
        position: int | Tensor | None = None,
        segment_ids: Tensor | None = None,
    ) -> Tensor:
        """Embeds ids and adds positions and segments: (B, T) -> (B, T, D).

        With `position`, an integer scalar, all T tokens stand at this position.
        """
        x = self.embedding(ids)
        if not self.positions.in_attention:
            x = self.positions.at(x, position)
        if self.segments is not None:
            x = self.segments(x, segment_ids)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return self.dropout(x)

    def __call__(
        self, ids: Tensor, *memory: Tensor, segment_ids: Tensor | None = None, **options: Any
    ) -> Tensor:
        """Computes (B, T) -> (B, T, D). The embedding's Keras mask masks out the padding."""
        x = self.embed(ids, segment_ids=segment_ids)
        for block in self.blocks:
            x = block(x, *memory, **options)
        return self.norm(x)


class TransformerModel(Model):
    """Constructor arguments, layers and configuration that the three models share.

    Attributes:
        encoder: functional model of the encoder, or `None`.
        decoder: functional model of the decoder without logits, or `None`.
        encoder_stack: layers of the encoder, or `None`.
        decoder_stack: layers of the decoder, or `None`.
        max_length: maximum number of positions, or `None` for no limit.
    """

    encoder: keras.Model | None = None
    decoder: keras.Model | None = None
    encoder_stack: Stack | None = None
    decoder_stack: Stack | None = None
    max_length: int | None = None

    def _store_arguments(
        self, kwargs: dict[str, Any], block_arguments: BlockArguments, **others: Any
    ) -> None:
        """Checks the constructor's arguments and stores them as attributes of their names.

        The method runs before any layer is made. A functional model calls `super().__init__` last,
        in `_connect`, because it needs the outputs. Attributes may be set before: Keras starts to
        track them at the first assignment.

        Args:
            kwargs: the constructor's keyword arguments for Keras; `dtype` is removed from them.
            block_arguments: the arguments of the blocks. `positions` is stored as its
                configuration.
            **others: all other arguments of the constructor.
        """
        self._block_arguments = block_arguments
        self._argument_names = tuple(others)
        for name, value in {**vars(block_arguments), **others}.items():
            setattr(self, name, value)
        self._policy = keras.dtype_policies.get(kwargs.pop("dtype", None))
        if self._policy.quantization_mode is not None:
            raise ValueError(
                f"dtype={self._policy.name!r} is quantized, but a new model has floating-point "
                "weights. Quantize it after training: model.quantize('int8')."
            )
        if unknown := sorted(set(kwargs) - {"name", "trainable"}):  # Keras would ignore them
            raise TypeError(
                f"{type(self).__name__} has no arguments {unknown}. Check the spelling: "
                f"help({type(self).__name__}) lists all arguments."
            )

    def _connect(self, inputs: Any, outputs: Tensor, **kwargs: Any) -> None:
        """Initializes the functional model from inputs to outputs.

        Keras then puts `Functional` among the base classes, so `call` runs the graph that the
        constructor built.
        """
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.dtype_policy: Any = self._policy
        if not self.trainable:  # Keras sets `trainable` before it knows the layers
            for layer in self.layers:
                layer.trainable = False

    def _make_stack(
        self,
        side: str,
        text: str,
        embedding: TokenEmbedding,
        block: type[EncoderBlock | DecoderBlock],
        num_layers: int,
        positions: Any,
        num_segments: int | None = None,
    ) -> Stack:
        """Makes the layers of one side of figure 1.

        Args:
            side: prefix of the names of blocks and norm, "encoder" or "decoder".
            text: prefix of the names of positions and dropout, "source" or "target".
            embedding: layer that embeds the ids.
            block: class of the blocks.
            num_layers: number of blocks.
            positions: argument of a position encoding, or a list with one for each block.
            num_segments: as in `SegmentEmbedding`; `None` for rows of one text.
        """
        check_positive(num_layers=num_layers)
        dtype = self._policy
        each = positions if isinstance(positions, list) else [positions] * num_layers
        if len(each) != num_layers:
            raise ValueError(
                f"positions has {len(each)} encodings for {num_layers} blocks. Pass one for each "
                "block, or one for all."
            )
        first, *others = [
            position_encoding(one, dtype=dtype, name=f"{text}_positions") for one in each
        ]
        if isinstance(positions, list) and not all(one.in_attention for one in (first, *others)):
            raise ValueError(
                "positions lists an encoding for each block, but one of them acts on embeddings, "
                "which have no block. List encodings inside attention, such as "
                "RotaryPositionEncoding(window=64)."
            )
        self.max_length = first.max_length
        arguments = self._block_arguments
        if not first.in_attention or block.recurrent:
            each = [None] * num_layers
        norm_first = [self.norm_first] * num_layers
        if self.embedding_norm not in (False, True):
            if self.embedding_norm != "first" or not self.norm_first:
                raise ValueError(
                    f"embedding_norm={self.embedding_norm!r} was passed, but it must be True, "
                    'False or "first", which replaces the first norm of pre-norm blocks: set '
                    "norm_first=True."
                )
            norm_first[0] = "feed_forward"
        blocks = [
            block(
                **vars(replace(arguments, positions=each[i], norm_first=norm_first[i])),
                dtype=dtype,
                name=f"{side}_block_{i}",
            )
            for i in range(num_layers)
        ]
        if first.shared and not isinstance(positions, list) and not block.recurrent:
            key_dim = arguments.key_dim or embedding.d_model // arguments.num_heads
            first.build((None, arguments.num_heads, None, key_dim))
            for one in blocks:
                one.shared_positions = first
        embedding_norm = None
        if self.embedding_norm:
            embedding_norm = arguments.make_norm(dtype=dtype, name=f"{text}_embedding_norm")
        segments = None
        if num_segments is not None:
            segments = SegmentEmbedding(num_segments, dtype=dtype, name="segment_embedding")
        if self.norm_first:
            norm = arguments.make_norm(dtype=dtype, name=f"{side}_norm")
        else:
            norm = layers.Identity(dtype=dtype.compute_dtype, name=f"{side}_norm")
        return Stack(
            embedding=embedding,
            positions=first,
            segments=segments,
            embedding_norm=embedding_norm,
            dropout=layers.Dropout(self.dropout, dtype=dtype, name=f"{text}_dropout"),
            blocks=blocks,
            norm=norm,
        )

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        if all(tensor.dtype != "string" for tensor in self.inputs):
            check_no_text(inputs)  # before Keras converts arrays
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Tensor:
        check_id_inputs(self, inputs)
        return super().call(inputs, training=training, mask=mask)

    def get_config(self) -> dict[str, Any]:
        settings = sublayer_settings(self)
        return {
            **{name: getattr(self, name) for name in self._argument_names},
            **self._block_arguments.get_config(),
            **({"sublayers": settings} if settings else {}),
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.dtype_policies.serialize(self._policy),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> "TransformerModel":
        config = dict(config)
        if config.get("encoder") is not None:
            encoder = keras.saving.deserialize_keras_object(config["encoder"], custom_objects)
            config["encoder"] = encoder
        settings = config.pop("sublayers", None)
        model = cls(**config)
        if settings:
            apply_settings(model, settings)
        sides = [model.decoder, model.encoder if model.encoder_stack is not None else None]
        for side in filter(None, sides):  # they share their layers with this model
            if not any(weight.trainable for weight in side.weights):
                side.trainable = False
        return model


@keras.saving.register_keras_serializable("keras_transformer")
class Transformer(CachedDecoding, TransformerModel):
    """The encoder-decoder of the paper (figure 1): source and target ids in, logits out.

    The defaults are the paper's "base" model. The arguments cover every row of its Table 3.

    With `encoder`, the decoder attends to the output of any Keras model, such as a model of speech,
    images or time series. If that output has a Keras mask, the decoder ignores masked positions.

    Args:
        vocab_size: V, number of ids of the source. Without `target_vocab_size` the target shares
            them, with the three-way tied matrix of section 3.4. With `encoder`, number of ids of
            the target.
        num_layers: N, number of blocks in each stack, or a pair for encoder and decoder. Defaults
            to 6.
        d_model: D. Defaults to 512.
        num_heads: h. Defaults to 8.
        d_ff: size of the feed-forward networks. Defaults to 2048, the size of the paper.
        dropout: rate on sublayer outputs and on embeddings + positions. Defaults to 0.1.
        key_dim: d_k. Defaults to d_model / num_heads.
        value_dim: d_v. Defaults to `key_dim`.
        attention_dropout: rate on attention weights. Defaults to 0.
        activation: of the feed-forward networks. Defaults to "relu", as in the paper.
        norm_first: `False` for the paper's post-norm, `True` for pre-norm. `True` also adds a layer
            norm after the last block. Defaults to `False`.
        positions: "sinusoidal" (the paper's), "learned" (Table 3, row E) or "rotary"; or a
            position encoding such as `LearnedPositionEncoding(max_length=512)`; or a pair of them
            for encoder and decoder. One side, or a model with one stack, also takes a list of
            encodings inside attention, one for each block.
        target_vocab_size: size of a separate target vocabulary, whose matrix also computes the
            logits. Defaults to `None`, one shared vocabulary.
        encoder: functional Keras model with output (B, S, any size), which replaces the stack of
            encoder blocks and becomes part of this model. The other arguments then describe the
            decoder. Defaults to `None`.
        use_bias: whether attention projections have biases. Defaults to `False`.
        epsilon: of the norms. Defaults to 1e-5.
        embedding_norm: whether a norm follows embeddings + positions. "first": and stands for the
            norm before the first self-attention, with `norm_first`. Defaults to `False`.
        feed_forward: a layer in place of the paper's network, such as `GatedFeedForward(2048)`,
            which replaces `d_ff` and `activation`; each block has a copy. Defaults to `None`.
        norm: "layer", "rms" or a layer such as `keras.layers.LayerNormalization(center=False)`,
            which replaces `epsilon`; each place has a copy. Defaults to "layer".
        tie_output: whether the target embedding also computes the logits. Defaults to `True`.
        output_bias: whether the logits have a bias. Defaults to `False`.
        recurrent_decoder: whether the decoder's blocks are `RecurrentDecoderBlock`, with an `SSRU`
            instead of self-attention. Defaults to `False`.
        reads_start: whether a search reads the tokens before the first generated one from the
            source input `start_ids` (B, P), padded with 0 on the right. Requires `encoder`.
            Defaults to `False`: each target starts with the begin id.
        reads_end: whether the encoder reads the end token of a source. `False` masks it out like
            padding, for models that were trained on sources without it. Defaults to `True`.
        target_start: ids with which every target starts, the begin id first, such as a language
            after it. A search does not write them. Defaults to (2,), the begin id alone.
        **kwargs: `name`, `trainable`, and `dtype`: policy of the layers, such as "mixed_bfloat16".

    Call arguments:
        inputs: `{"source_ids": (B, S), "target_ids": (B, T)}` int32; id 0 is padding. The target
            starts with the begin id 2 (the shift of section 3.1). With `encoder`, the inputs of
            the encoder, by their names, replace "source_ids".

    Returns:
        (B, T, V) float32 logits. Padding is masked out on both sides. Ignore logits at padded
        target positions.

    Raises:
        ValueError: a size is not positive, `num_heads` does not divide `d_model` while `key_dim` is
            not set, `positions` is unknown, a sequence is longer than `max_length`, the output of
            `encoder` is not (B, S, D), or an argument has no effect together with `encoder`.
        TypeError: ids are not integers, or `encoder` is not a functional model.

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
        self,
        vocab_size: int,
        num_layers: int | tuple[int, int] = 6,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int | None = None,
        dropout: float = 0.1,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        attention_dropout: float = 0.0,
        activation: Any = None,
        norm_first: bool = False,
        positions: Any = "sinusoidal",
        target_vocab_size: int | None = None,
        encoder: keras.Model | None = None,
        use_bias: bool = False,
        epsilon: float | None = None,
        embedding_norm: bool | str = False,
        feed_forward: Any = None,
        norm: Any = "layer",
        tie_output: bool = True,
        output_bias: bool = False,
        recurrent_decoder: bool = False,
        reads_start: bool = False,
        reads_end: bool = True,
        target_start: Sequence[int] = (BEGIN_ID,),
        **kwargs: Any,
    ) -> None:
        arguments = BlockArguments(
            num_heads,
            d_ff,
            dropout,
            activation,
            norm_first,
            key_dim,
            value_dim,
            attention_dropout,
            use_bias,
            positions,
            epsilon,
            feed_forward,
            norm,
        )
        self._store_arguments(
            kwargs,
            arguments,
            vocab_size=vocab_size,
            num_layers=num_layers,
            d_model=d_model,
            target_vocab_size=target_vocab_size,
            embedding_norm=embedding_norm,
            tie_output=tie_output,
            output_bias=output_bias,
            recurrent_decoder=recurrent_decoder,
            reads_start=reads_start,
            reads_end=reads_end,
            target_start=check_start(target_start, reads_start),
        )
        is_pair = isinstance(num_layers, (tuple, list))
        depth, target_depth = num_layers if is_pair else (num_layers, num_layers)
        has_sides = isinstance(self.positions, list)
        sides = self.positions if has_sides else [self.positions, self.positions]
        if len(sides) != 2:
            raise ValueError(
                f"positions has {len(sides)} entries, but must be one encoding, or a pair for "
                "encoder and decoder. Each of the pair may be a list with one for each block."
            )
        dtype = self._policy
        target_embedding = TokenEmbedding(
            vocab_size if target_vocab_size is None else target_vocab_size,
            d_model,
            tie_output,
            output_bias,
            dtype=dtype,
            name="token_embedding" if target_vocab_size is None else "target_embedding",
        )
        embedding = target_embedding
        if target_vocab_size is not None:
            embedding = TokenEmbedding(vocab_size, d_model, dtype=dtype, name="source_embedding")

        if encoder is None:
            if reads_start:
                raise ValueError("reads_start=True needs encoder=, a model that reads the source.")
            source_ids = keras.Input((None,), dtype="int32", name="source_ids")
            inputs = {"source_ids": source_ids}
            self.encoder_stack = self._make_stack(
                "encoder", "source", embedding, EncoderBlock, depth, sides[0]
            )
            ids = source_ids
            if not reads_end:
                ids = ops.where(ops.equal(source_ids, END_ID), PAD_ID, source_ids)
            memory = self.encoder_stack(ids)
            encoder = keras.Model(source_ids, memory, name="encoder")
        else:
            if isinstance(encoder, keras.Sequential) and encoder.built:
                encoder = keras.Model(encoder.inputs, encoder.outputs[0], name=encoder.name)
            check_encoder(encoder, target_vocab_size)
            in_attention = not has_sides and position_encoding(self.positions).in_attention
            without_effect = {
                "reads_end": not reads_end,
                "num_layers[0]": is_pair,
                "positions[0]": has_sides,
                "positions": recurrent_decoder and in_attention,
            }
            for name in without_effect:
                if without_effect[name]:
                    raise ValueError(
                        f"{name} has no effect together with encoder=, because it describes the "
                        "stack that the encoder replaces. Leave it out."
                    )
            inputs = {
                x.name: keras.Input(x.shape[1:], None, x.dtype, name=x.name) for x in encoder.inputs
            }
            memory = call_encoder(encoder, inputs)

        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        block = RecurrentDecoderBlock if recurrent_decoder else DecoderBlock
        self.decoder_stack = self._make_stack(
            "decoder", "target", target_embedding, block, target_depth, sides[1]
        )
        vectors = self.decoder_stack(target_ids, memory)
        logits = target_embedding.logits(vectors)

        self._connect({**inputs, "target_ids": target_ids}, logits, **kwargs)
        self.encoder = encoder
        self.decoder = keras.Model([target_ids, memory], vectors, name="decoder")

    def get_config(self) -> dict[str, Any]:
        encoder = None if self.source_inputs is None else self.encoder
        return {**super().get_config(), "encoder": keras.saving.serialize_keras_object(encoder)}


@keras.saving.register_keras_serializable("keras_transformer")
class TransformerEncoder(TransformerModel):
    """The encoder alone: ids in, one vector per token out (section 3.1).

    For classification, tagging and retrieval, put any head on its output. Arguments and errors are
    the same as for `Transformer`, without the arguments of target, decoder and logits.

    Args:
        num_segments: number of texts in a row. The model then adds a `SegmentEmbedding`. Defaults
            to `None`, one text and no segments.

    Call arguments:
        inputs: (B, S) int32 `source_ids`; id 0 is padding. With `num_segments`
            `{"source_ids": (B, S), "segment_ids": (B, S)}`: 0 for padding, 1 for the first text, 2
            for the second.

    Returns:
        (B, S, D), with the Keras mask of the ids. Pooling layers that respect masks then ignore
        padding.

    Example:

    >>> encoder = TransformerEncoder(vocab_size=23, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> encoder(keras.ops.array([[5, 7, 0]])).shape
    (1, 3, 16)
    """

    def __init__(
        self,
        vocab_size: int,
        num_layers: int = 6,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int | None = None,
        dropout: float = 0.1,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        attention_dropout: float = 0.0,
        activation: Any = None,
        norm_first: bool = False,
        positions: Any = "sinusoidal",
        use_bias: bool = False,
        epsilon: float | None = None,
        embedding_norm: bool | str = False,
        feed_forward: Any = None,
        norm: Any = "layer",
        num_segments: int | None = None,
        **kwargs: Any,
    ) -> None:
        arguments = BlockArguments(
            num_heads,
            d_ff,
            dropout,
            activation,
            norm_first,
            key_dim,
            value_dim,
            attention_dropout,
            use_bias,
            positions,
            epsilon,
            feed_forward,
            norm,
        )
        self._store_arguments(
            kwargs,
            arguments,
            vocab_size=vocab_size,
            num_layers=num_layers,
            d_model=d_model,
            embedding_norm=embedding_norm,
            num_segments=num_segments,
        )
        embedding = TokenEmbedding(vocab_size, d_model, dtype=self._policy, name="token_embedding")
        self.encoder_stack = self._make_stack(
            "encoder", "source", embedding, EncoderBlock, num_layers, self.positions, num_segments
        )
        inputs = source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        segment_ids = None
        if num_segments is not None:
            segment_ids = keras.Input((None,), dtype="int32", name="segment_ids")
            inputs = {"source_ids": source_ids, "segment_ids": segment_ids}
        vectors = self.encoder_stack(source_ids, segment_ids=segment_ids)
        self._connect(inputs, vectors, **kwargs)
        self.supports_masking = True

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Tensor:
        ids = inputs["source_ids"] if isinstance(inputs, dict) else inputs
        return ops.not_equal(ids, PAD_ID)


@keras.saving.register_keras_serializable("keras_transformer")
class CausalTransformer(CachedDecoding, TransformerModel):
    """The decoder alone, a language model: each position predicts the next token.

    This is the decoder of section 3.1 without attention to an encoder. Arguments and errors are the
    same as for `Transformer`, without the arguments of source, encoder and target vocabulary.

    Call arguments:
        inputs: (B, T) int32 `target_ids`; id 0 is padding, on the right.

    Returns:
        (B, T, V) float32 logits of the tokens after each position.

    Example:

    >>> model = CausalTransformer(vocab_size=23, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> model(keras.ops.array([[2, 5, 7]])).shape
    (1, 3, 23)
    """

    def __init__(
        self,
        vocab_size: int,
        num_layers: int = 6,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int | None = None,
        dropout: float = 0.1,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        attention_dropout: float = 0.0,
        activation: Any = None,
        norm_first: bool = False,
        positions: Any = "sinusoidal",
        use_bias: bool = False,
        epsilon: float | None = None,
        embedding_norm: bool | str = False,
        feed_forward: Any = None,
        norm: Any = "layer",
        tie_output: bool = True,
        output_bias: bool = False,
        **kwargs: Any,
    ) -> None:
        arguments = BlockArguments(
            num_heads,
            d_ff,
            dropout,
            activation,
            norm_first,
            key_dim,
            value_dim,
            attention_dropout,
            use_bias,
            positions,
            epsilon,
            feed_forward,
            norm,
        )
        self._store_arguments(
            kwargs,
            arguments,
            vocab_size=vocab_size,
            num_layers=num_layers,
            d_model=d_model,
            embedding_norm=embedding_norm,
            tie_output=tie_output,
            output_bias=output_bias,
        )
        embedding = TokenEmbedding(
            vocab_size, d_model, tie_output, output_bias, dtype=self._policy, name="token_embedding"
        )
        self.decoder_stack = self._make_stack(
            "decoder", "target", embedding, EncoderBlock, num_layers, self.positions
        )
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        vectors = self.decoder_stack(target_ids, use_causal_mask=True)
        self._connect(target_ids, embedding.logits(vectors), **kwargs)
