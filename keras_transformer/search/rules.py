"""Constraints for any vocabulary: repetition, forbidden words and biased prefixes.

Shapes: B batch, W hypotheses, V vocabulary, t tokens so far, N words, L tokens of the longest word,
Q prefix length.
"""

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.call_options import check_number
from keras_transformer.search.constraints import Constraint, Past
from keras_transformer.search.scores import Scores
from keras_transformer.special_ids import PAD_ID
from keras_transformer.types import Array, Tensor


class Rule(Constraint):
    """The base of this file's constraints: dataclasses that `keras.saving` can save."""

    takes_listed: ClassVar[bool] = True

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes a constraint from the result of `get_config`."""
        return cls(**config)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class NoRepeatNgrams(Rule):
    """Forbids each token that would complete an n-gram of the hypothesis a second time.

    Paulus et al. 2017 forbid trigrams. The prompt of a language model counts, apart from its first
    token, which is usually the begin token.

    Args:
        size: int, n, at least 1.

    Call arguments:
        no_repeat_ngram_size: int from 0 to `size`; 0 forbids nothing. Defaults to `size`.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> search = GreedySearch(constraints=[NoRepeatNgrams(1)])
    >>> ids = search(model, np.array([[5, 11, 23]]), max_length=10).ids[0, 0].numpy()
    >>> len(set(ids)) == len(ids)
    True
    """

    size: int

    def __post_init__(self) -> None:
        check_number(self.size, "size", numbers.Integral, 1)

    @property
    def inputs(self) -> Mapping[str, Array]:
        """`no_repeat_ngram_size`."""
        return {"no_repeat_ngram_size": np.array(self.size, np.int32)}

    def read(self, source: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the size for this call."""
        return inputs["no_repeat_ngram_size"]

    def step(self, scores: Scores, past: Past, state: Any, known: Tensor) -> tuple[Scores, Any]:
        """Forbids the tokens that followed the last n - 1 tokens earlier."""
        before = self.size - 1
        history = tf.pad(past.history, [[0, 0], [0, 0], [before, 0]])  # (B, W, n - 1 + t)
        length = tf.shape(past.history)[2]
        found = tf.logical_and(past.history != PAD_ID, known > 0)
        for back in range(1, self.size):
            start = before - back
            last = history[:, :, start + length : start + length + 1]
            same = tf.equal(history[:, :, start : start + length], last)
            found = tf.logical_and(found, tf.logical_or(same, known <= back))
        ids = past.history * tf.cast(found, tf.int32)
        return scores.without(scores.among(ids)), state


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class RepetitionPenalty(Rule):
    """Makes tokens of the hypothesis less likely: positive logits are divided, others multiplied.

    Keskar et al. 2019, with the change for negative logits that most toolkits have. The prompt of a
    language model counts, apart from its first token, which is usually the begin token. Scores
    include the penalty.

    Args:
        penalty: number above 0; above 1 makes repetition less likely. Defaults to 1.2.

    Call arguments:
        repetition_penalty: number, in place of `penalty`. 1 changes nothing.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> search = GreedySearch(constraints=[RepetitionPenalty(1.3)])
    >>> result = search(model, np.array([[5, 11, 23]]), max_length=10, repetition_penalty=1.1)
    """

    penalty: float = 1.2

    def __post_init__(self) -> None:
        check_number(self.penalty, "penalty", numbers.Real, float(np.finfo("float32").tiny))

    @property
    def inputs(self) -> Mapping[str, Array]:
        """`repetition_penalty`."""
        return {"repetition_penalty": np.array(self.penalty, np.float32)}

    def read(self, source: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the penalty for this call."""
        return inputs["repetition_penalty"]

    def step(self, scores: Scores, past: Past, state: Any, known: Tensor) -> tuple[Scores, Any]:
        """Scales the logits of all tokens of the history."""
        seen = tf.logical_and(scores.among(past.history), tf.logical_not(scores.is_padding))
        factor = tf.where(scores.values < 0, known, 1.0 / known)
        return scores.with_values(scores.values * tf.where(seen, factor, 1.0)), state


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class ForbiddenWords(Rule):
    """Forbids words and sequences of words: the last token of each, after its other tokens.

    Args:
        words: sequence of words, each a sequence of ids. They are forbidden in every call. Defaults
            to none.

    Call arguments:
        forbidden_words: integers (B, N, L), or (1, N, L) for all sentences, each row a word, padded
            with 0 on the right. They are forbidden too. Ids outside the vocabulary forbid nothing.
            Defaults to none.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> search = GreedySearch(constraints=[ForbiddenWords([[7], [5, 11]])])
    >>> words = np.array([[[13, 17]]])
    >>> result = search(model, np.array([[5, 11, 23]]), max_length=10, forbidden_words=words)
    """

    words: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        words = tuple(tuple(map(int, word)) for word in self.words)
        if not all(words):
            raise ValueError("A forbidden word needs at least one token, but one has none.")
        object.__setattr__(self, "words", words)

    @property
    def inputs(self) -> Mapping[str, Array]:
        """`forbidden_words`."""
        return {"forbidden_words": np.zeros([1, 0, 0], np.int32)}

    def read(self, source: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the words of this call, (B, N, L + 1), padded with 0 on the left."""
        words = tf.pad(inputs["forbidden_words"], [[0, 0], [0, 0], [1, 0]])
        length = tf.reduce_sum(tf.cast(words != PAD_ID, tf.int32), axis=2, keepdims=True)
        size = tf.shape(words)[2]
        # Column 0 is padding, and so are all columns before the word.
        column = tf.maximum(tf.range(size) - (size - 1) + length, 0)
        return tf.gather(words, column, batch_dims=2)

    def step(self, scores: Scores, past: Past, state: Any, known: Tensor) -> tuple[Scores, Any]:
        """Forbids the last tokens of words whose other tokens end the history."""
        ids = _completing(past.history, known)
        if self.words:
            longest = max(map(len, self.words))
            words = [[PAD_ID] * (longest - len(word)) + list(word) for word in self.words]
            constant = tf.constant([words], tf.int32)
            ids = tf.concat([ids, _completing(past.history, constant)], axis=2)
        ids *= tf.cast(tf.logical_and(ids >= 0, ids < scores.vocab_size), tf.int32)
        return scores.without(scores.among(ids)), state


def _completing(history: Tensor, words: Tensor) -> Tensor:
    """Returns the last token of each word that the next token may complete, 0 for others.

    Args:
        history: int32 (B, W, t).
        words: int32 (B, N, L) or (1, N, L), padded with 0 on the left; L is at least 1.

    Returns:
        int32 (B, W, N).
    """
    before = tf.shape(words)[2] - 1
    history = tf.pad(history, [[0, 0], [0, 0], [before, 0]])
    recent = history[:, :, tf.shape(history)[2] - before :]  # (B, W, L - 1)
    start = words[:, tf.newaxis, :, :-1]  # (B, 1, N, L - 1)
    same = tf.logical_or(tf.equal(start, PAD_ID), tf.equal(start, recent[:, :, tf.newaxis]))
    return words[:, tf.newaxis, :, -1] * tf.cast(tf.reduce_all(same, axis=3), tf.int32)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class BiasedPrefix(Rule):
    """Makes the tokens of a prefix more likely, as long as the hypothesis follows it.

    The next token has the probability (1 - b) p + b if it continues the prefix, else (1 - b) p,
    where p is the model's probability and b the strength. Scores include the bias.

    Args:
        strength: number in [0, 1), b. Defaults to 0.5.

    Call arguments:
        biased_prefix: integers (B, Q), padded with 0 on the right. Defaults to no prefix.
        prefix_bias: number, in place of `strength`.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> search = GreedySearch(constraints=[BiasedPrefix(0.9)])
    >>> prefix = np.array([[13, 17]])
    >>> search(model, np.array([[5, 11, 23]]), max_length=2, biased_prefix=prefix).ids.numpy()[0, 0]
    array([13, 17], dtype=int32)
    """

    listed_inputs: ClassVar[Sequence[str]] = ("biased_prefix",)

    strength: float = 0.5

    def __post_init__(self) -> None:
        check_number(self.strength, "strength", numbers.Real, 0, 1 - 2.0**-24)

    @property
    def inputs(self) -> Mapping[str, Array]:
        """`biased_prefix` and `prefix_bias`."""
        prefix = np.zeros([1, 0], np.int32)
        return {"biased_prefix": prefix, "prefix_bias": np.array(self.strength, np.float32)}

    def read(self, source: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the prefix of this call, (B, Q + 1), and its strength."""
        return tf.pad(inputs["biased_prefix"], [[0, 0], [0, 1]]), inputs["prefix_bias"]

    def start(self, known: Any, batch_size: Tensor, width: int) -> Tensor:
        """Returns whether each hypothesis follows the prefix, boolean (B, W): all do at first."""
        return tf.fill([batch_size, width], True)

    def step(
        self, scores: Scores, past: Past, state: Tensor, known: tuple[Tensor, Tensor]
    ) -> tuple[Scores, Tensor]:
        """Mixes the distribution with the next token of the prefix."""
        prefix, strength = known
        last, token = (_at(prefix, past.count - back) for back in (2, 1))  # (B, 1)
        begins = tf.logical_or(past.count <= 1, tf.equal(last, PAD_ID))
        state = tf.logical_and(state, tf.logical_or(begins, tf.equal(past.ids, last)))
        now = tf.logical_and(state, tf.logical_and(token != PAD_ID, past.count > 0))
        bias = tf.expand_dims(strength * tf.cast(now, tf.float32), 2)  # (B, W, 1)
        here = tf.equal(scores.column_ids, token[:, :, tf.newaxis])
        log_probs = scores.log_softmax().values + tf.math.log(1.0 - bias)
        own = tf.reduce_max(tf.where(here, log_probs, -np.inf), axis=2, keepdims=True)
        mixed = tf.math.log(tf.exp(own) + bias)
        log_probs = tf.maximum(log_probs, tf.where(here, mixed, -np.inf))
        return scores.with_values(log_probs), state


def _at(tokens: Tensor, column: Tensor) -> Tensor:
    """Returns the tokens (B, 1) at `column`, int32 (B, 1) or scalar; clips it to the last one."""
    column = tf.clip_by_value(column, 0, tf.shape(tokens)[1] - 1)
    column += tf.zeros_like(tokens[:, :1])
    return tf.reshape(tf.gather(tokens, column, batch_dims=1), [-1, 1])
