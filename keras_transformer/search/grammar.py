"""Grammars restrict the tokens that a search may choose next.

The output always follows the grammar, even if the model is bad.

Shapes: B batch, W hypotheses, S source length, V vocabulary.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import Cache, SearchModel
from keras_transformer.search.inputs import missing_methods
from keras_transformer.special_ids import PAD_ID
from keras_transformer.types import Tensor


class Grammar(Protocol):
    """Decides after each token which tokens may follow."""

    def read(self, source: Any) -> Any:
        """Reads the source before the first step.

        Args:
            source: the input of the model's encoder: ids (B, S), or a dict of arrays.

        Returns:
            The facts about the source that `step` needs: a nest of tensors (B, ...), `()` for none.
        """

    def start(self, batch_size: Tensor, beam_width: int) -> Any:
        """Returns the state before the first token: a nest of tensors (B, W, ...)."""

    def step(self, ids: Tensor, state: Any, known: Any) -> tuple[Tensor, Any]:
        """Reads one token of each hypothesis.

        Args:
            ids: int32 (B, W), the last token of each hypothesis; first the begin token.
            state: the state before this token. The search reorders it with the hypotheses.
            known: the result of `read`.

        Returns:
            Whether each token may follow, boolean (B, W, V), and the state after `ids`.
        """


class GrammarMemory(NamedTuple):
    """The encoded source, as model and grammar know it.

    Attributes:
        memory: the model's own memory.
        known: the result of the grammar's `read`, tensors (B, ...).
    """

    memory: Any
    known: Any


class Constrained:
    """A `SearchModel` that generates only what a grammar allows.

    Probabilities are the model's own: forbidden tokens keep their share, so a score tells how
    likely the model finds the output. If the grammar allows no token, the sentence has no
    hypothesis: its ids are 0 and its score is -inf. The grammar also applies to given tokens, of a
    prompt or a `target_prefix`.

    Args:
        model: a `Transformer`, or any other `SearchModel`.
        grammar: a `BracketGrammar`, or any other `keras_transformer.search.Grammar`.

    Raises:
        TypeError: if the grammar lacks a method.
        ValueError: in a search, if model and grammar have different vocabularies.

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

    def __init__(self, model: SearchModel, grammar: Grammar) -> None:
        check_grammar(grammar)
        self.model: SearchModel = model
        self.grammar: Grammar = grammar
        self.max_length: int | None = getattr(model, "max_length", None)
        self.source_inputs: Any = getattr(model, "source_inputs", None)
        if hasattr(model, "start_ids"):
            self.start_ids: Any = model.start_ids

    def encode(self, source_ids: Any) -> GrammarMemory:
        """Encodes the source; the grammar reads it."""
        return GrammarMemory(self.model.encode(source_ids), self.grammar.read(source_ids))

    def initial_cache(self, batch_size: Tensor, beam_width: int) -> Cache:
        """The model's cache, with the grammar's state of each hypothesis."""
        cache = self.model.initial_cache(batch_size, beam_width)
        state = self.grammar.start(batch_size, beam_width)
        return cache._replace(by_hypothesis=(cache.by_hypothesis, state))

    def decode_step(
        self,
        ids: Tensor,
        position: Tensor,
        memory: GrammarMemory,
        cache: Cache,
        **options: Any,
    ) -> tuple[Any, ...]:
        """The model's step, with the logit -inf for forbidden tokens."""
        own, state = cache.by_hypothesis
        own_cache = cache._replace(by_hypothesis=own)
        logits, cache, *weights = self.model.decode_step(
            ids, position, memory.memory, own_cache, **options
        )
        logits = tf.cast(logits, tf.float32)
        allowed, state = self.grammar.step(ids, state, memory.known)
        if allowed.shape[-1] != logits.shape[-1]:
            raise ValueError(
                f"The model has a vocabulary of {logits.shape[-1]} ids, but the grammar has "
                f"{allowed.shape[-1]}. Make the grammar from the model's target vocabulary."
            )
        cache = cache._replace(by_hypothesis=(cache.by_hypothesis, state))
        return _without(logits, tf.logical_not(allowed)), cache, *weights


def _without(logits: Tensor, forbidden: Tensor) -> Tensor:
    """`logits` (B, W, V) with -inf for forbidden tokens.

    The padding token, which searches never choose, takes the share of the forbidden tokens.
    """
    forbidden = tf.logical_or(forbidden, np.arange(logits.shape[-1]) == PAD_ID)
    peak = tf.reduce_max(logits, axis=-1, keepdims=True)
    share = tf.exp(logits - peak) * tf.cast(forbidden, tf.float32)
    share = peak + tf.math.log(tf.reduce_sum(share, axis=-1, keepdims=True))  # (B, W, 1)
    return tf.concat([share, tf.where(forbidden, -np.inf, logits)[..., PAD_ID + 1 :]], axis=-1)


def check_grammar(grammar: Any) -> None:
    """Raises `TypeError` unless `grammar` has the methods of a `Grammar`."""
    if missing := missing_methods(grammar, Grammar):
        raise TypeError(
            f"{type(grammar).__name__} has no {missing}, so it is not a grammar. Pass a "
            "BracketGrammar or an object with the methods of keras_transformer.search.Grammar."
        )
