"""Whole models, built from the blocks as functional Keras models (section 3 of the paper).

The README's section "Weights" lists the path and shape of every weight: a contract that
checkpoints and importers rely on.

Shapes: B batch, S source length, T target length, D d_model, V vocabulary.
"""

from functools import partial
from types import SimpleNamespace

import keras
from keras import layers, ops

from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.cache import CachedDecoding
from keras_transformer.layers.checks import check_ids, check_positive
from keras_transformer.layers.embeddings import TokenEmbedding, embed
from keras_transformer.layers.masks import padding_mask
from keras_transformer.layers.positions import LearnedPositionEncoding, SinusoidalPositionEncoding
from keras_transformer.special_ids import BEGIN_ID
from keras_transformer.training.distribution import DistributedModel

BLOCK_OPTIONS = ("num_heads", "d_ff", "dropout", "activation", "norm_first", "key_dim")
BLOCK_OPTIONS += ("value_dim", "attention_dropout", "use_bias")


def _encode(parts, source_ids):
    """The encoder stack (section 3.1): (B, S) -> (B, S, D)."""
    x = embed(source_ids, parts.source_embedding, parts.source_positions, parts.source_dropout)
    for block in parts.encoder_blocks:  # the embedding's Keras mask hides the padding
        x = block(x)
    return parts.encoder_norm(x)


def _decode(parts, target_ids, *memory, **options):
    """The decoder stack and the projection to logits: (B, T) -> (B, T, V)."""
    x = embed(target_ids, parts.target_embedding, parts.target_positions, parts.target_dropout)
    for block in parts.decoder_blocks:
        x = block(x, *memory, **options)
    return parts.target_embedding.logits(parts.decoder_norm(x))


class _Model(DistributedModel):
    """What the models share. Each makes its layers in `_connect`: Keras inputs and outputs."""

    def __init__(
        self, vocab_size, num_layers=6, d_model=512, num_heads=8, d_ff=2048, dropout=0.1, *,
        key_dim=None, value_dim=None, attention_dropout=0.0, activation="relu", norm_first=False,
        positions="sinusoidal", max_length=1024, use_bias=False, dtype=None, name=None,
    ):  # fmt: skip
        self._build(locals(), dtype, name)

    def _build(self, arguments, dtype, name):
        others = ("self", "dtype", "name")
        self._arguments = {k: v for k, v in arguments.items() if k not in others}
        check_positive(num_layers=arguments["num_layers"])
        self._dtype = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        learned = arguments["positions"] == "learned"
        self.max_length = arguments["max_length"] if learned else None
        # Layers become attributes last: PyTorch takes none before the model is initialised.
        parts = SimpleNamespace()
        inputs, outputs = self._connect(parts, **self._arguments)
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        for part, layer in vars(parts).items():
            setattr(self, part, layer)

    def _embedding(self, name, vocab_size):
        d_model = self._arguments["d_model"]
        return TokenEmbedding(vocab_size, d_model, dtype=self._dtype, name=name)

    def _positions(self, name):
        """The position layer of one stack, or `None` where attention rotates instead."""
        kind = self._arguments["positions"]
        if kind == "learned":
            return LearnedPositionEncoding(self.max_length, dtype=self._dtype, name=name)
        if kind == "sinusoidal":
            return SinusoidalPositionEncoding(dtype=self._dtype, name=name)
        if kind == "rotary":
            return None
        raise ValueError(
            f'positions must be "sinusoidal", "learned" or "rotary", but {kind!r} was passed.'
        )

    def _stack(self, text, stack, block, embedding):
        """One side of figure 1: a dict of the layers that `_encode` or `_decode` runs through."""
        chosen = self._arguments
        options = {name: chosen[name] for name in BLOCK_OPTIONS}
        options |= {"rotary": chosen["positions"] == "rotary", "dtype": self._dtype}
        # Pre-norm stacks end with a layer norm of their own; post-norm ones do not.
        last = layers.Identity
        if chosen["norm_first"]:
            last = partial(layers.LayerNormalization, epsilon=1e-5)
        return {
            f"{text}_embedding": embedding,
            f"{text}_positions": self._positions(f"{text}_positions"),
            f"{text}_dropout": layers.Dropout(
                chosen["dropout"], dtype=self._dtype, name=f"{text}_dropout"
            ),
            f"{stack}_blocks": [
                block(**options, name=f"{stack}_block_{i}") for i in range(chosen["num_layers"])
            ],
            f"{stack}_norm": last(dtype=self._dtype, name=f"{stack}_norm"),
        }

    def call(self, inputs, training=None, mask=None):
        for ids in keras.tree.flatten(inputs):  # which Keras would cut down to int32 in silence
            check_ids(ids, "feed vectors to the blocks themselves")
        return super().call(inputs, training=training, mask=mask)

    def get_config(self):
        activation = keras.activations.get(self._arguments["activation"])
        return {
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self._dtype),
            **self._arguments,
            "activation": keras.activations.serialize(activation),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)


def _ids(name):
    return keras.Input((None,), dtype="int32", name=name)


@keras.saving.register_keras_serializable("keras_transformer")
class Transformer(CachedDecoding, _Model):
    """The encoder-decoder of the paper (figure 1): source and target ids in, logits out.

    Defaults are the paper's "base" model; every row of its Table 3 is a choice of
    these arguments (dropout and label smoothing apart from the shape).

    Args:
        vocab_size: V, ids of the source and, unless `target_vocab_size` is
            set, of the target; the three-way tied matrix of section 3.4.
        num_layers: N, blocks in each stack. Defaults to 6.
        d_model: D. Defaults to 512.
        num_heads: h. Defaults to 8.
        d_ff: size of the feed-forward networks. Defaults to 2048.
        dropout: rate on sublayer outputs and on embeddings + positions. Defaults to 0.1.
        key_dim: d_k. Defaults to d_model / num_heads.
        value_dim: d_v. Defaults to `key_dim`.
        attention_dropout: rate on attention weights. Defaults to 0.
        activation: of the feed-forward networks. Defaults to "relu".
        norm_first: `False` for the paper's post-norm, `True` for pre-norm.
        positions: "sinusoidal" (the paper's), "learned" (Table 3, row E) or "rotary".
        max_length: longest sequence, for learned positions only. Defaults to 1024.
        target_vocab_size: size of a separate target vocabulary; its matrix also gives
            the logits. Defaults to `None`, one shared vocabulary.
        use_bias: whether attention projections have biases. Defaults to `False`.
        dtype: dtype policy of the layers, such as "mixed_bfloat16".

    Call arguments:
        inputs: `{"source_ids": (B, S), "target_ids": (B, T)}` int32; id 0 is padding. The
            target starts with the begin id 2 (the shift of section 3.1).

    Returns:
        (B, T, V) float32 logits. Padding, on either side, is attended to by nobody;
        logits at padded target positions mean nothing.

    Raises:
        ValueError: a size is not positive, `num_heads` does not divide `d_model` while
            `key_dim` is not set, an unknown `positions`, a sequence beyond `max_length`.
        TypeError: ids are not integers.

    Example:

    >>> model = Transformer(vocab_size=23, num_layers=2, d_model=16, num_heads=2, d_ff=32)
    >>> ids = keras.ops.array([[5, 7, 3, 0]])
    >>> model({"source_ids": ids, "target_ids": ids}).shape
    (1, 4, 23)
    """

    def __init__(
        self, vocab_size, num_layers=6, d_model=512, num_heads=8, d_ff=2048, dropout=0.1, *,
        key_dim=None, value_dim=None, attention_dropout=0.0, activation="relu", norm_first=False,
        positions="sinusoidal", max_length=1024, target_vocab_size=None, use_bias=False,
        dtype=None, name=None,
    ):  # fmt: skip
        self._build(locals(), dtype, name)

    def _connect(self, parts, vocab_size, target_vocab_size, **_):
        if target_vocab_size is None:
            source = target = self._embedding("token_embedding", vocab_size)
        else:
            source = self._embedding("source_embedding", vocab_size)
            target = self._embedding("target_embedding", target_vocab_size)
        vars(parts).update(self._stack("source", "encoder", EncoderBlock, source))
        vars(parts).update(self._stack("target", "decoder", DecoderBlock, target))
        inputs = {name: _ids(name) for name in ("source_ids", "target_ids")}
        return inputs, _decode(parts, inputs["target_ids"], _encode(parts, inputs["source_ids"]))

    def start_ids(self, source_ids):
        """What precedes the first generated token: the begin id, (B, 1) int32."""
        return ops.full((ops.shape(source_ids)[0], 1), BEGIN_ID, dtype="int32")

    def encode(self, source_ids):
        """What a search needs of the source (B, S), computed once.

        A dict of "mask", boolean (B, S), and "layers", for each decoder block one pair of
        keys (B, H, S, K) and values (B, H, S, W).
        """
        memory = _encode(self, source_ids)
        layers = [block.cross_attention.project_key_value(memory) for block in self.decoder_blocks]
        return {"mask": padding_mask(source_ids), "layers": layers}


@keras.saving.register_keras_serializable("keras_transformer")
class TransformerEncoder(_Model):
    """The encoder alone: ids in, one vector a token out (section 3.1).

    For classification, tagging, retrieval: put any head on its output.

    Args: as `Transformer`, without `target_vocab_size`.

    Call arguments:
        inputs: (B, S) int32 `source_ids`; id 0 is padding.

    Returns:
        (B, S, D). Carries the Keras mask of the ids, so that pooling layers which
        respect masks leave the padding out.

    Raises:
        ValueError, TypeError: as `Transformer`.

    Example:

    >>> encoder = TransformerEncoder(vocab_size=23, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> encoder(keras.ops.array([[5, 7, 0]])).shape
    (1, 3, 16)
    """

    def _connect(self, parts, vocab_size, **_):
        embedding = self._embedding("token_embedding", vocab_size)
        vars(parts).update(self._stack("source", "encoder", EncoderBlock, embedding))
        source_ids = _ids("source_ids")
        return source_ids, _encode(parts, source_ids)


@keras.saving.register_keras_serializable("keras_transformer")
class CausalTransformer(CachedDecoding, _Model):
    """The decoder alone, a language model: each position predicts the next token.

    The decoder of section 3.1 without its attention to an encoder.

    Args: as `Transformer`, without `target_vocab_size`.

    Call arguments:
        inputs: (B, T) int32 `target_ids`; id 0 is padding, on the right.

    Returns:
        (B, T, V) float32 logits of the tokens after each position.

    Raises:
        ValueError, TypeError: as `Transformer`.

    Example:

    >>> model = CausalTransformer(vocab_size=23, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> model(keras.ops.array([[2, 5, 7]])).shape
    (1, 3, 23)
    """

    def _connect(self, parts, vocab_size, **_):
        embedding = self._embedding("token_embedding", vocab_size)
        vars(parts).update(self._stack("target", "decoder", EncoderBlock, embedding))
        target_ids = _ids("target_ids")
        return target_ids, _decode(parts, target_ids, use_causal_mask=True)

    def start_ids(self, prompt_ids):
        """What precedes the first generated token: the prompt, (B, P) int32."""
        return ops.cast(prompt_ids, "int32")

    def encode(self, prompt_ids):
        """Nothing: a decoder-only model has no memory beside its cache."""
        return {}
