"""Grammars: a search that writes only what fits.

A grammar says after each token which ones may follow. So a search never writes what is no tree, no
number or no JSON, however little the model knows of that. A grammar is any object with three
methods:

- `read(source)`, with what the model's encoder reads, ids (B, S) or a dict: returns what is to be
  known of the source, any nest of tensors (B, ...); `()` for nothing.
- `start(batch_size, beam_width)`, with an int32 scalar and an int: returns the state before the
  first token, any nest of tensors (B, W, ...).
- `step(ids, state, known)`, with the last token of each hypothesis, int32 (B, W), the state before
  it and what `read` returned: returns which tokens may follow, boolean (B, W, V), and the state
  after it. The begin token comes first.

A search knows nothing of it: `Constrained` puts model and grammar together, and is a model to it.

Shapes: B batch, W hypotheses, S source length, V vocabulary.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import Cache
from keras_transformer.search.loop import memory_of
from keras_transformer.special_ids import PAD_ID


class GrammarMemory(NamedTuple):
    """What every step needs of the source.

    Attributes:
        memory: the model's own.
        known: what the grammar read, tensors (B, ...).
    """

    memory: Any
    known: Any

    def of(self, sentences):
        """The memory of these sentences."""
        known = tf.nest.map_structure(lambda x: tf.gather(x, sentences), self.known)
        return GrammarMemory(memory_of(self.memory, sentences), known)


class Constrained:
    """A model as a search knows it, that writes only what a grammar allows.

    Probabilities are the model's own: what is forbidden keeps its share, so scores tell how likely
    the model finds what it had to write. A sentence of which the grammar allows nothing more has no
    hypothesis: ids 0, score -inf. Given tokens, as a prompt's or of a `target_prefix`, are held to
    the grammar, too.

    Args:
        model: a `Transformer`, or any other model that can be searched.
        grammar: a `BracketGrammar`, or any object with the methods of one: `read`, `start` and
            `step`.

    Raises:
        TypeError: the grammar lacks a method.
        ValueError: in a search, the grammar is of another vocabulary.

    Example:

    >>> class NoTokenTwiceInARow:
    ...     def read(self, source):
    ...         return ()
    ...
    ...     def start(self, batch_size, beam_width):
    ...         return ()
    ...
    ...     def step(self, ids, state, known):
    ...         return tf.not_equal(ids[..., None], np.arange(97)), state
    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> source_ids = np.array([[5, 11, 23], [7, 13, 0]], "int32")
    >>> result = GreedySearch()(Constrained(model, NoTokenTwiceInARow()), source_ids, max_length=10)
    >>> ids = result.ids.numpy()
    >>> bool((ids[:, :, 1:] == ids[:, :, :-1])[ids[:, :, 1:] > 0].any())
    False
    """

    def __init__(self, model, grammar):
        check_grammar(grammar)
        self.model, self.grammar = model, grammar
        self.max_length = getattr(model, "max_length", None)
        self.source_inputs = getattr(model, "source_inputs", None)
        if hasattr(model, "start_ids"):
            self.start_ids = model.start_ids

    def encode(self, source):
        """`GrammarMemory` of what the encoder reads."""
        return GrammarMemory(self.model.encode(source), self.grammar.read(source))

    def initial_cache(self, batch_size, beam_width):
        """The model's cache, and the grammar's state of each hypothesis."""
        cache = self.model.initial_cache(batch_size, beam_width)
        state = self.grammar.start(batch_size, beam_width)
        return Cache(cache.by_sentence, (cache.by_hypothesis, state))

    def decode_step(self, ids, position, memory, cache):
        """As the model's, with -inf as the logit of what is forbidden."""
        own, state = cache.by_hypothesis
        cache = Cache(cache.by_sentence, own)
        logits, cache = self.model.decode_step(ids, position, memory.memory, cache)
        allowed, state = self.grammar.step(ids, state, memory.known)
        if allowed.shape[-1] != logits.shape[-1]:
            raise ValueError(
                f"The model writes {logits.shape[-1]} ids, but the grammar knows "
                f"{allowed.shape[-1]}. Make it of the vocabulary that the model writes."
            )
        cache = Cache(cache.by_sentence, (cache.by_hypothesis, state))
        return _without(tf.cast(logits, tf.float32), tf.logical_not(allowed)), cache


def _without(logits, forbidden):
    """`logits` (B, W, V) with -inf where they are forbidden.

    The padding token, which no search writes, takes the share of the forbidden ones.
    """
    forbidden = tf.logical_or(forbidden, np.arange(logits.shape[-1]) == PAD_ID)
    peak = tf.reduce_max(logits, axis=-1, keepdims=True)
    share = tf.exp(logits - peak) * tf.cast(forbidden, tf.float32)
    share = peak + tf.math.log(tf.reduce_sum(share, axis=-1, keepdims=True))  # (B, W, 1)
    return tf.concat([share, tf.where(forbidden, -np.inf, logits)[..., PAD_ID + 1 :]], axis=-1)


def check_grammar(grammar):
    """Raises `TypeError` unless it has the methods of a grammar."""
    missing = [name for name in ("read", "start", "step") if not hasattr(grammar, name)]
    if missing:
        raise TypeError(
            f"{type(grammar).__name__} has no {', '.join(missing)}, so it is no grammar. Pass a "
            "BracketGrammar or an object with these methods (keras_transformer.search.grammar)."
        )
