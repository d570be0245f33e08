"""Whole models, built from the blocks as functional Keras models (section 3 of the paper).

The README's section "Weights" lists the path and shape of every weight: a contract that
checkpoints and importers rely on.

Shapes: B batch, S source length, T target length, D d_model, V vocabulary, W
hypotheses a sentence.
"""

from types import SimpleNamespace

import keras
from keras import layers, ops

from keras_transformer.blocks import DecoderBlock, EncoderBlock
from keras_transformer.embeddings import TokenEmbedding
from keras_transformer.masks import padding_mask
from keras_transformer.positions import LearnedPositionEncoding, SinusoidalPositionEncoding

BEGIN_ID = 2
NOT_CONFIGURED = ("self", "__class__", "dtype", "name")


class _Model(keras.Model):
    """What the models share: the constructor, the layers it describes, the configuration.

    A model makes its layers in `_connect`, which returns Keras inputs and outputs.
    """

    def __init__(
        self,
        vocab_size,
        num_layers=6,
        d_model=512,
        num_heads=8,
        d_ff=2048,
        dropout=0.1,
        *,
        key_dim=None,
        value_dim=None,
        attention_dropout=0.0,
        activation="relu",
        norm_first=False,
        positions="sinusoidal",
        max_length=1024,
        use_bias=False,
        dtype=None,
        name=None,
    ):
        self._build({k: v for k, v in locals().items() if k not in NOT_CONFIGURED}, dtype, name)

    def _build(self, arguments, dtype, name):
        if arguments["positions"] not in ("sinusoidal", "learned", "rotary"):
            raise ValueError(
                'positions must be "sinusoidal", "learned" or "rotary", but '
                f"{arguments['positions']!r} was passed."
            )
        if arguments["num_layers"] < 1:
            raise ValueError(
                f"num_layers must be at least 1, but {arguments['num_layers']} was passed."
            )
        self._arguments = arguments
        self._dtype = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        learned = arguments["positions"] == "learned"
        self.max_length = arguments["max_length"] if learned else None
        # Layers become attributes last: PyTorch takes none before the model is initialised.
        parts = SimpleNamespace()
        inputs, outputs = self._connect(parts, **arguments)
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        for part, layer in vars(parts).items():
            setattr(self, part, layer)

    def call(self, inputs, training=None, mask=None):
        # A functional model would cut floats down to its inputs' int32 without a word.
        for ids in keras.tree.flatten(inputs):
            if "int" not in keras.backend.standardize_dtype(ids.dtype):
                raise TypeError(
                    f"Token ids must be integers, but their dtype is {ids.dtype}. Cast them, or "
                    "feed vectors to the blocks themselves."
                )
        return super().call(inputs, training=training, mask=mask)

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
        return None

    def _blocks(self, cls, name):
        names = ("num_heads", "d_ff", "dropout", "activation", "norm_first", "key_dim")
        names += ("value_dim", "attention_dropout", "use_bias")
        options = {name: self._arguments[name] for name in names}
        options |= {"rotary": self._arguments["positions"] == "rotary", "dtype": self._dtype}
        return [cls(**options, name=f"{name}_{i}") for i in range(self._arguments["num_layers"])]

    def _final_norm(self, name):
        """Pre-norm stacks end with a layer norm of their own; post-norm ones do not."""
        if not self._arguments["norm_first"]:
            return layers.Identity(dtype=self._dtype, name=name)
        return layers.LayerNormalization(epsilon=1e-5, dtype=self._dtype, name=name)

    def _dropout(self, name):
        return layers.Dropout(self._arguments["dropout"], dtype=self._dtype, name=name)

    def _make_encoder(self, parts, embedding):
        parts.source_embedding = embedding
        parts.source_positions = self._positions("source_positions")
        parts.encoder_blocks = self._blocks(EncoderBlock, "encoder_block")
        parts.encoder_norm = self._final_norm("encoder_norm")

    def _make_decoder(self, parts, embedding, block):
        parts.target_embedding = embedding
        parts.target_positions = self._positions("target_positions")
        parts.decoder_blocks = self._blocks(block, "decoder_block")
        parts.decoder_norm = self._final_norm("decoder_norm")

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


class _Decoding:
    """Step-by-step decoding, what a search needs of a model beside `start_ids` and `encode`."""

    def initial_cache(self, rows):
        """The decoder's empty cache: keys and values (rows, H, 0, K) for each block."""
        return [block.initial_cache(rows) for block in self.decoder_blocks]

    def decode_step(self, ids, position, memory, cache):
        """Logits of the next token of W hypotheses for each of B sentences.

        Args:
            ids: (B, W) int32, the last token of each hypothesis.
            position: integer scalar, number of tokens before it.
            memory: result of `encode`, one row a sentence.
            cache: of the tokens before, rows B W, those of one sentence side by side.

        Returns:
            Logits (B, W, V) float32 and the cache, one position longer.
        """
        rows = ops.reshape(ids, (-1, 1))  # (B W, 1)
        x = _embed(rows, self.target_embedding, self.target_positions, offset=position)
        grown = []
        for i, (block, past) in enumerate(zip(self.decoder_blocks, cache, strict=True)):
            source = (memory["layers"][i], memory["mask"]) if memory else ()
            x, past = block.step(x, past, position, *source)
            grown.append(past)
        logits = self.target_embedding.logits(self.decoder_norm(x))  # (B W, 1, V)
        return ops.reshape(logits, (-1, ops.shape(ids)[1], logits.shape[-1])), grown


def _embed(ids, embedding, positions, dropout=None, offset=0):
    """Embeddings + positions, with dropout on the sum (sections 3.4, 3.5 and 5.4)."""
    x = embedding(ids)
    if positions is not None:
        x = positions(x, offset=offset)
    return x if dropout is None else dropout(x)


def _encode(model, source_ids, dropout=None):
    """The encoder stack (section 3.1): (B, S) -> (B, S, D)."""
    x = _embed(source_ids, model.source_embedding, model.source_positions, dropout)
    for block in model.encoder_blocks:  # the embedding's Keras mask hides the padding
        x = block(x)
    return model.encoder_norm(x)


def _decode(model, target_ids, dropout, *memory, **options):
    """The decoder stack and the projection to logits: (B, T) -> (B, T, V)."""
    x = _embed(target_ids, model.target_embedding, model.target_positions, dropout)
    for block in model.decoder_blocks:
        x = block(x, *memory, **options)
    return model.target_embedding.logits(model.decoder_norm(x))


def _ids(name):
    return keras.Input((None,), dtype="int32", name=name)


@keras.saving.register_keras_serializable("keras_transformer")
class Transformer(_Decoding, _Model):
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
        self,
        vocab_size,
        num_layers=6,
        d_model=512,
        num_heads=8,
        d_ff=2048,
        dropout=0.1,
        *,
        key_dim=None,
        value_dim=None,
        attention_dropout=0.0,
        activation="relu",
        norm_first=False,
        positions="sinusoidal",
        max_length=1024,
        target_vocab_size=None,
        use_bias=False,
        dtype=None,
        name=None,
    ):
        self._build({k: v for k, v in locals().items() if k not in NOT_CONFIGURED}, dtype, name)

    def _connect(self, parts, vocab_size, target_vocab_size, **_):
        if target_vocab_size is None:
            source = target = self._embedding("token_embedding", vocab_size)
        else:
            source = self._embedding("source_embedding", vocab_size)
            target = self._embedding("target_embedding", target_vocab_size)
        self._make_encoder(parts, source)
        self._make_decoder(parts, target, DecoderBlock)
        inputs = {name: _ids(name) for name in ("source_ids", "target_ids")}
        memory = _encode(parts, inputs["source_ids"], self._dropout("source_dropout"))
        dropout = self._dropout("target_dropout")
        return inputs, _decode(parts, inputs["target_ids"], dropout, memory)

    def start_ids(self, source_ids):
        """What precedes the first generated token: the begin id, (B, 1) int32."""
        return ops.full((ops.shape(source_ids)[0], 1), BEGIN_ID, dtype="int32")

    def encode(self, source_ids):
        """Everything a search needs of the source, computed once.

        Args:
            source_ids: (B, S) int32.

        Returns:
            Dictionary with "mask" (B, S) boolean and "layers", one pair of
            keys (B, H, S, K) and values (B, H, S, W) for each decoder block.
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
        self._make_encoder(parts, self._embedding("token_embedding", vocab_size))
        source_ids = _ids("source_ids")
        return source_ids, _encode(parts, source_ids, self._dropout("source_dropout"))


@keras.saving.register_keras_serializable("keras_transformer")
class CausalTransformer(_Decoding, _Model):
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
        self._make_decoder(parts, self._embedding("token_embedding", vocab_size), EncoderBlock)
        target_ids = _ids("target_ids")
        dropout = self._dropout("target_dropout")
        return target_ids, _decode(parts, target_ids, dropout, use_causal_mask=True)

    def start_ids(self, prompt_ids):
        """What precedes the first generated token: the prompt, (B, P) int32."""
        return ops.cast(prompt_ids, "int32")

    def encode(self, prompt_ids):
        """Nothing: a decoder-only model has no memory beside its cache."""
        return {}
