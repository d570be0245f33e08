"""Tokens that are given, not chosen: prompts and target prefixes.

A prompt is fed first and is no part of the result. A prefix follows it and is. Both pass through
the same steps as generated tokens: at a position with a given token there is no choice.

Shapes: B batch, W beam width, P prompt length, Q prefix length, T generated length, V vocabulary,
t steps so far.
"""

import numpy as np
import tensorflow as tf

from keras_transformer.special_ids import PAD_ID


def given_tokens(start, prefix):
    """Prompt and prefix of each sentence in one row, without padding between them.

    Args:
        start: int32 (B, P), right-padded with 0.
        prefix: int32 (B, Q), right-padded with 0, or `None`.

    Returns:
        `start_length`, int32 (B, 1), and the given tokens, int32 (B, P + Q + 1), with at least one
        0 at the end. The int 1 and `None` if each sentence has one start token and no prefix.
    """
    if prefix is None and start.shape[1] == 1:
        return 1, None
    batch_size, width = tf.unstack(tf.shape(start))
    length = tf.reduce_sum(tf.cast(start != PAD_ID, tf.int32), axis=1, keepdims=True)  # (B, 1)
    length = tf.maximum(length, 1)  # an empty prompt starts with its padding
    parts = [start] if prefix is None else [start, prefix]
    tokens = tf.concat(parts + [tf.zeros([batch_size, 1], tf.int32)], axis=1)  # (B, P + Q + 1)
    total = tf.shape(tokens)[1]
    column = tf.range(total)[tf.newaxis]
    after = tf.minimum(column - length + width, total - 1)
    return length, tf.gather(tokens, tf.where(column < length, column, after), batch_dims=1)


def given_at(position, log_probs, count, given):
    """The tokens that are given for the next position, and their log-probabilities.

    Args:
        position: int32 scalar, of the tokens that were fed in this step.
        log_probs: float32 (B, W, V).
        count: int32 (B, 1), number of generated tokens with the next one.
        given: int32 (B, P + Q + 1).

    Returns:
        Tokens, int32 (B, 1), 0 where none is given, and log-probabilities, float32 (B, W), 0 for
        tokens of the prompt.
    """
    column = tf.minimum(position + 1, tf.shape(given)[1] - 1)
    tokens = tf.expand_dims(tf.gather(given, column, axis=1), 1)  # (B, 1)
    batch_size, width, vocab_size = tf.unstack(tf.shape(log_probs))
    offset = tf.reshape(tf.range(batch_size * width) * vocab_size, [batch_size, width])
    log_probs = tf.gather(tf.reshape(log_probs, [-1]), offset + tokens)  # (B, W)
    # No log-probability is above 0, so the maximum gives 0 for tokens of the prompt.
    uncounted = tf.where(count > 0, -np.inf, np.float32(0))
    return tokens, tf.maximum(log_probs, uncounted)


def without_prompt(history, start_length):
    """Each sentence's tokens (B, W, t) moved to the front, over its prompt; 0 at the end."""
    batch_size, width, length = tf.unstack(tf.shape(history))
    padded = tf.pad(history, [[0, 0], [0, 0], [0, 1]])  # (B, W, t + 1)
    # Position 0 is never in the history, hence the 1.
    column = tf.minimum(tf.range(length) + start_length - 1, length)  # (B, t)
    row = tf.reshape(tf.range(batch_size * width) * (length + 1), [batch_size, width, 1])
    return tf.gather(tf.reshape(padded, [-1]), row + column[:, tf.newaxis])  # (B, W, t)
