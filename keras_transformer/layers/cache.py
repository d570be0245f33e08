"""Step-by-step decoding: one new token at a time, keys and values of the past in a cache.

A step gives what the whole pass gives at its last position (section 3.1: "the model is
auto-regressive"), at the cost of one position.

Hypotheses share one cache; reordering changes only which slots each sees. In step t every
hypothesis of a sentence appends one key and one value to each block: hypothesis w fills slot
t W + w, which never moves. An attention bias (W, t W) hides the slots of other hypotheses. When
the search reorders hypotheses, it reorders the rows of this bias.

A block with a recurrent unit keeps one state for each hypothesis instead. The search reorders the
states themselves, which are small.

Shapes: B batch, W beam width, S source length, H heads, K key size, U value size, D d_model,
V vocabulary, t steps so far.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.layers.dot_product import FORBIDDEN
from keras_transformer.layers.masks import padding_mask
from keras_transformer.layers.ssru import RecurrentDecoderBlock
from keras_transformer.layers.stack import Stack, encoded
from keras_transformer.special_ids import BEGIN_ID


class Cache(NamedTuple):
    """What a model keeps between the steps of a search: two nests of tensors, `()` for nothing.

    A search drops sentences that are over and reorders hypotheses. It needs to know only what
    belongs to a sentence and what to a hypothesis.

    Attributes:
        by_sentence: tensors (B, ...), which the hypotheses of a sentence share.
        by_hypothesis: tensors (B, W, ...), which the search reorders with the hypotheses.
    """

    by_sentence: Any = ()
    by_hypothesis: Any = ()


class DecoderSlots(NamedTuple):
    """What the hypotheses of a sentence share in the cache of our decoders.

    Attributes:
        blocks: for each block keys (B, H, t W, K) and values (B, H, t W, U).
        step_bias: (B, W, W), attention bias between the tokens of one step: each sees itself
            alone. `()` where W is 1.
    """

    blocks: Any
    step_bias: Any

    @staticmethod
    def put(past, new):
        """`append`. Slots of another kind may write elsewhere."""
        return append(past, new)


class States(NamedTuple):
    """What each hypothesis has of its own in the cache of a decoder of recurrent blocks.

    Attributes:
        blocks: for each block its state (B, W, D).
    """

    blocks: Any


class Memory(NamedTuple):
    """What decoder blocks attend to: the encoded source.

    Attributes:
        blocks: for each block keys (B, H, S, K) and values (B, H, S, U).
        mask: boolean (B, S), False for padding; `()` where there is none.
    """

    blocks: Any
    mask: Any


def empty_cache(block, batch_size):
    """A block's keys (B, H, 0, K) and values (B, H, 0, U) before the first token."""
    attention = block.self_attention
    return tuple(
        ops.zeros((batch_size, attention.num_heads, 0, size), block.compute_dtype)
        for size in (attention.key_dim, attention.value_dim)
    )


def append(past, new):
    """Past and new keys, values or biases in a row, on axis 2: a cache that grows."""
    return ops.concatenate([past, new], axis=2)


def step_attention(attention, query, cache, position, attention_bias=None, put=append):
    """Self-attention of one new token of each hypothesis to itself and its past.

    Args:
        attention: `MultiHeadAttention`.
        query: (B, W, D), the new tokens.
        cache: keys (B, H, t W, K) and values (B, H, t W, U).
        position: t, integer scalar, the position of the new tokens.
        attention_bias: float (B, 1, W, (t + 1) W), `FORBIDDEN` at the slots of other hypotheses.
            `None` for one hypothesis a sentence.
        put: function that adds the new tokens' keys or values to those of the cache.

    Returns:
        Output (B, W, D), and the cache with the new tokens.
    """
    new = attention.project_key_value(query, position=position)
    keys, values = (put(*pair) for pair in zip(cache, new, strict=True))
    output = attention.attend(query, keys, values, attention_bias=attention_bias, position=position)
    return output, (keys, values)


def step_block(
    block, x, cache, position, attention_bias=None, memory=None, memory_mask=None, put=append
):
    """One new token of each hypothesis through a block.

    Args:
        block: `DecoderBlock` or `RecurrentDecoderBlock`; or `EncoderBlock`, without memory.
        x: (B, W, D).
        cache: as in `step_attention`, or the state (B, W, D) of a recurrent unit.
        position, attention_bias, put: as in `step_attention`.
        memory: keys (B, H, S, K) and values (B, H, S, U) of `cross_attention.project_key_value`.
        memory_mask: boolean (B, S).

    Returns:
        Output (B, W, D) and the cache after the new tokens.
    """
    after = None

    def attend_self(x):
        nonlocal after
        if isinstance(block, RecurrentDecoderBlock):
            output, after = block.self_attention.step(x, cache)
        else:
            output, after = step_attention(
                block.self_attention, x, cache, position, attention_bias, put
            )
        return output

    def attend_memory(x):
        return block.cross_attention.attend(x, *memory, mask=memory_mask)

    x = block.residual(x, attend_self, block.self_attention_norm)
    if memory is not None:
        x = block.residual(x, attend_memory, block.cross_attention_norm)
    return block.residual(x, block.feed_forward, block.feed_forward_norm), after


class CachedDecoding:
    """What searches ask of a model with a `decoder`, and an `encoder` or `None`."""

    @property
    def recurrent(self):
        """Whether the decoder's blocks keep a state instead of keys and values."""
        return isinstance(self.decoder.blocks[0], RecurrentDecoderBlock)

    @property
    def source_inputs(self):
        """What an encoder of the caller's reads: dict from names to `keras.KerasTensor`.

        `None` where token ids are read.
        """
        if self.encoder is None or isinstance(self.encoder, Stack):
            return None
        return {tensor.name: tensor for tensor in self.encoder.inputs}

    def start_ids(self, source_ids):
        """What precedes the first generated token: the begin id, (B, 1) int32.

        Without an encoder the prompt itself, (B, P) int32.
        """
        if self.encoder is None:
            return ops.cast(source_ids, "int32")
        batch_size = ops.shape(keras.tree.flatten(source_ids)[0])[0]
        return ops.full((batch_size, 1), BEGIN_ID, dtype="int32")

    def encode(self, source_ids):
        """What a search needs of the source (B, S), or of a dict of the encoder's inputs.

        `Memory`, computed once; `()` without an encoder, where all is in the cache.
        """
        if self.encoder is None:
            return ()
        memory = encoded(self.encoder, source_ids)
        blocks = [block.cross_attention.project_key_value(memory) for block in self.decoder.blocks]
        if isinstance(self.encoder, Stack):
            return Memory(blocks, padding_mask(source_ids))
        mask = getattr(memory, "_keras_mask", None)
        return Memory(blocks, () if mask is None else mask)

    def initial_cache(self, batch_size, beam_width=1):
        """The empty `Cache` before the first token: `DecoderSlots`, and the bias (B, W, 0).

        Of recurrent blocks: `States`, and nothing that a sentence shares.
        """
        if self.recurrent:
            units = [block.self_attention for block in self.decoder.blocks]
            states = [unit.initial_state(batch_size, beam_width) for unit in units]
            return Cache(by_hypothesis=States(states))
        blocks = [empty_cache(block, batch_size) for block in self.decoder.blocks]
        if beam_width == 1:
            return Cache(DecoderSlots(blocks, step_bias=()))
        others = FORBIDDEN * (1.0 - ops.eye(beam_width))  # (W, W)
        step_bias = ops.broadcast_to(others, (batch_size, beam_width, beam_width))
        past_bias = ops.zeros((batch_size, beam_width, 0))
        return Cache(DecoderSlots(blocks, step_bias), by_hypothesis=past_bias)

    def decode_step(self, ids, position, memory, cache):
        """Logits of the next token of each hypothesis.

        Args:
            ids: (B, W) int32, the last token of each hypothesis.
            position: t, integer scalar, how many tokens come before it.
            memory: what `encode` returned.
            cache: `Cache` of the t tokens before. If hypothesis w continues another one, row w of
                `by_hypothesis` must hold the row of that one.

        Returns:
            Logits (B, W, V) float32, and the cache of t + 1 tokens.
        """
        vectors, cache = self.decode_vectors(ids, position, memory, cache)
        return self.decoder.embedding.logits(vectors), cache

    def decode_vectors(self, ids, position, memory, cache):
        """As `decode_step`, with the vectors (B, W, D) that give the logits in their place."""
        slots, own = cache
        attention_bias, put = None, append
        if self.recurrent:
            pasts = own.blocks
        else:
            pasts, put = slots.blocks, slots.put
            if not isinstance(slots.step_bias, tuple):
                own = put(own, slots.step_bias)  # (B, W, (t + 1) W)
                attention_bias = own[:, None]  # (B, 1, W, (t + 1) W)
        x = self.decoder.embed(ids, position)  # (B, W, D)
        after, mask = [], None
        if memory and not isinstance(memory.mask, tuple):
            mask = memory.mask
        for i, (block, past) in enumerate(zip(self.decoder.blocks, pasts, strict=True)):
            source = (memory.blocks[i], mask) if memory else (None, None)
            x, past = step_block(block, x, past, position, attention_bias, *source, put)
            after.append(past)
        vectors = self.decoder.norm(x)
        if self.recurrent:
            return vectors, Cache(by_hypothesis=States(after))
        return vectors, Cache(slots._replace(blocks=after), by_hypothesis=own)
