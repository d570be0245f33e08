"""Step-by-step decoding: one new token at a time, keys and values of the past in a cache.

A step gives what the whole pass gives at its last position (section 3.1: "the model is
auto-regressive"), at the price of one position.

The W hypotheses of a sentence share one cache, in which the token of hypothesis w at step j has
place j W + w and stays there. When hypotheses branch and die, what changes is only which places
are a hypothesis' own past: a (W, t W) matrix of penalties on the attention scores, instead of all
keys and values of all blocks.

Shapes: B batch, W hypotheses a sentence, t tokens so far, S source length, H heads, K key size,
V value size, D d_model.
"""

from keras import ops

from keras_transformer.layers.attention import FORBIDDEN


def empty_cache(block, rows):
    """A block's keys (B, H, 0, K) and values (B, H, 0, V) before the first token."""
    attention = block.self_attention
    sizes = attention.key_dim, attention.value_dim
    return tuple(
        ops.zeros((rows, attention.num_heads, 0, size), block.compute_dtype) for size in sizes
    )


def step_attention(attention, query, cache, position, penalty=None):
    """Self-attention of one new token of each hypothesis to itself and its past.

    Args:
        attention: `MultiHeadAttention`.
        query: (B, W, D), the new tokens.
        cache: keys (B, H, t W, K) and values (B, H, t W, V).
        position: t as an integer scalar, the new tokens' position.
        penalty: float (B, 1, W, (t + 1) W), `FORBIDDEN` where a token is none of the
            hypothesis' own; `None` for one hypothesis a sentence.

    Returns:
        Output (B, W, D) and the cache with the new tokens at its end.
    """
    new = attention.project_key_value(query, position=position)
    keys, values = (ops.concatenate(pair, axis=2) for pair in zip(cache, new, strict=True))
    output = attention.attend(query, keys, values, penalty=penalty, position=position)
    return output, (keys, values)


def step_block(block, x, cache, position, penalty=None, memory=None, memory_mask=None):
    """One new token of each of the W hypotheses of B sentences through a block.

    Args:
        block: `DecoderBlock`; or `EncoderBlock`, without memory.
        x: (B, W, D).
        cache, position, penalty: as `step_attention` takes them.
        memory: keys and values (B, H, S, K) of `cross_attention.project_key_value`.
        memory_mask: boolean (B, S).

    Returns:
        Output (B, W, D) and the longer cache.
    """
    longer = None

    def attend_self(x):
        nonlocal longer
        output, longer = step_attention(block.self_attention, x, cache, position, penalty)
        return output

    def attend_memory(x):
        return block.cross_attention.attend(x, *memory, mask=memory_mask)

    x = block.residual(x, attend_self, block.self_attention_norm)
    if memory is not None:
        x = block.residual(x, attend_memory, block.cross_attention_norm)
    return block.residual(x, block.feed_forward, block.feed_forward_norm), longer


class CachedDecoding:
    """What a search needs of a model with a decoder, beside its own `start_ids` and `encode`."""

    def initial_cache(self, rows, width=1):
        """The decoder's empty cache for `width` hypotheses of each of `rows` sentences.

        Returns:
            A dict of "shared", what the hypotheses of a sentence have in common, tensors
            (B, ...); and "own", what goes along with each of them, tensors (B, W, ...).
        """
        shared = {"blocks": [empty_cache(block, rows) for block in self.decoder.blocks]}
        if width == 1:
            return {"shared": shared, "own": {}}
        # Penalties: among the tokens of one step all others are forbidden.
        others = ops.broadcast_to(FORBIDDEN * (1.0 - ops.eye(width)), (rows, width, width))
        past = ops.zeros((rows, width, 0))
        return {"shared": {**shared, "others": others}, "own": {"past": past}}

    def decode_step(self, ids, position, memory, cache):
        """Logits of the next token of W hypotheses for each of B sentences.

        Args:
            ids: (B, W) int32, the last token of each hypothesis.
            position: integer scalar, number of tokens before it.
            memory: result of `encode`, one row a sentence.
            cache: of the tokens before. Where hypotheses w continue others, `own` must hold in
                row w what it held for the one that is continued.

        Returns:
            Logits (B, W, vocabulary) float32 and the cache, one position longer.
        """
        shared, own, penalty = cache["shared"], cache["own"], None
        if own:
            own = {"past": ops.concatenate([own["past"], shared["others"]], axis=2)}
            penalty = own["past"][:, None]  # (B, 1, W, (t + 1) W)
        x = self.decoder.embed(ids, position)  # (B, W, D)
        grown = []
        for i, (block, past) in enumerate(zip(self.decoder.blocks, shared["blocks"], strict=True)):
            source = (memory["layers"][i], memory["mask"]) if memory else ()
            x, past = step_block(block, x, past, position, penalty, *source)
            grown.append(past)
        logits = self.decoder.embedding.logits(self.decoder.norm(x))
        return logits, {"shared": {**shared, "blocks": grown}, "own": own}
