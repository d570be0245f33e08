"""Step-by-step decoding: one new token at a time, keys and values of the past in a cache.

A step gives what the whole pass gives at its last position (section 3.1: "the model is
auto-regressive"), at the price of one position. A block's cache is a pair: keys (B W, H, t, K)
and values (B W, H, t, V) of the t tokens so far.

Shapes: B batch, W hypotheses a sentence, t tokens so far, S source length, H heads, K key size,
V value size, D d_model.
"""

from keras import ops

from keras_transformer.embeddings import embed


def empty_cache(block, rows):
    """A block's cache before the first token, for so many rows."""
    attention = block.self_attention
    sizes = attention.key_dim, attention.value_dim
    return tuple(
        ops.zeros((rows, attention.num_heads, 0, size), block.compute_dtype) for size in sizes
    )


def step_attention(attention, query, cache, position):
    """Self-attention of one new token a row to itself and its past.

    Args:
        attention: `MultiHeadAttention`.
        query: (B W, 1, D), the new tokens.
        cache: keys and values of the past.
        position: t as an integer scalar, the new tokens' position.

    Returns:
        Output (B W, 1, D) and the cache with the new token at its end.
    """
    new = attention.project_key_value(query, offset=position)
    keys, values = (ops.concatenate(pair, axis=2) for pair in zip(cache, new, strict=True))
    return attention.attend(query, keys, values, offset=position), (keys, values)


def step_block(block, x, cache, position, memory=None, memory_mask=None):
    """One new token of each of the W hypotheses of B sentences through a block.

    Args:
        block: `DecoderBlock`; or `EncoderBlock`, without memory.
        x: (B W, 1, D), rows of one sentence side by side.
        cache, position: as `step_attention` takes them.
        memory: keys and values (B, H, S, K) of `cross_attention.project_key_value`, shared by
            the W hypotheses, which attend as W queries of their sentence.
        memory_mask: boolean (B, S).

    Returns:
        Output (B W, 1, D) and the longer cache.
    """
    longer = None

    def attend_self(x):
        nonlocal longer
        output, longer = step_attention(block.self_attention, x, cache, position)
        return output

    def attend_memory(x):
        queries = ops.reshape(x, (ops.shape(memory_mask)[0], -1, x.shape[-1]))  # (B, W, D)
        output = block.cross_attention.attend(queries, *memory, mask=memory_mask)
        return ops.reshape(output, (-1, 1, x.shape[-1]))  # (B W, 1, D)

    x = block.residual(x, attend_self, block.self_attention_norm)
    if memory is not None:
        x = block.residual(x, attend_memory, block.cross_attention_norm)
    return block.residual(x, block.feed_forward, block.feed_forward_norm), longer


class CachedDecoding:
    """What a search needs of a model with a decoder, beside its own `start_ids` and `encode`."""

    def initial_cache(self, rows):
        """The decoder's empty cache, one pair for each block."""
        return [empty_cache(block, rows) for block in self.decoder_blocks]

    def decode_step(self, ids, position, memory, cache):
        """Logits of the next token of W hypotheses for each of B sentences.

        Args:
            ids: (B, W) int32, the last token of each hypothesis.
            position: integer scalar, number of tokens before it.
            memory: result of `encode`, one row a sentence.
            cache: of the tokens before, rows B W, those of one sentence side by side.

        Returns:
            Logits (B, W, vocabulary) float32 and the cache, one position longer.
        """
        rows = ops.reshape(ids, (-1, 1))  # (B W, 1)
        embedding = self.target_embedding
        x = embed(rows, embedding, self.target_positions, self.target_dropout, offset=position)
        grown = []
        for i, (block, past) in enumerate(zip(self.decoder_blocks, cache, strict=True)):
            source = (memory["layers"][i], memory["mask"]) if memory else ()
            x, past = step_block(block, x, past, position, *source)
            grown.append(past)
        logits = embedding.logits(self.decoder_norm(x))  # (B W, 1, vocabulary)
        return ops.reshape(logits, (-1, ops.shape(ids)[1], logits.shape[-1])), grown
