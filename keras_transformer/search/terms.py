"""Terms: phrases that the output must contain.

`BeamSearch(constraints=[Terms()])` makes a `TermSearch`. It divides its hypotheses into banks by
the number of met tokens of terms, so that hypotheses with few and with many met tokens survive side
by side (Post and Vilar 2018, arXiv 1804.06609). Within a bank, hypotheses that have met different
terms take turns. With two terms and eight hypotheses, random models then find the best text in 91 %
of cases instead of 81.

Shapes: B batch, W hypotheses, N terms, L tokens of the longest term, V vocabulary, C candidates of
a hypothesis, K extensions of a sentence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.search.beam import BeamSearch, Extensions
from keras_transformer.search.constraints import Past
from keras_transformer.search.loop import Hypotheses, LoopInputs
from keras_transformer.search.rules import Rule
from keras_transformer.search.scores import Forbidden, Scores, forbid, top_k
from keras_transformer.special_ids import END_ID, PAD_ID
from keras_transformer.types import Array, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class TermSearch(BeamSearch):
    """The beam search that follows the constraint `Terms`: its W best are chosen from banks.

    With `early_stop`, W finished hypotheses of a sentence with terms are enough, because
    hypotheses without their terms often have better scores.

    Arguments and results are the same as in `BeamSearch`, which makes a `TermSearch` if `Terms` is
    one of its constraints.

    Example:

    >>> type(BeamSearch(beam_width=8, constraints=[Terms()])).__name__
    'TermSearch'
    """

    @property
    def _place(self) -> int:
        """The index of `Terms` among the constraints."""
        return [constraint.search for constraint in self.constraints].index(TermSearch)

    def _followed(self, hypotheses: Hypotheses, loop_inputs: LoopInputs) -> "FollowedTerms":
        """Returns the terms and the state of the hypotheses."""
        known, state = (x[self._place] for x in (loop_inputs.known, hypotheses.constraint_states))
        return FollowedTerms(known[:, tf.newaxis], state)

    def _extend(
        self,
        position: Tensor,
        log_probs: Scores,
        hypotheses: Hypotheses,
        loop_inputs: LoopInputs,
    ) -> Extensions:
        """Returns all extensions, because the best ones of each bank are needed."""
        followed = self._followed(hypotheses, loop_inputs)
        unmet = tf.expand_dims(followed.missing() > 0, 2)
        forbidden = [*self._forbidden(position, loop_inputs), (END_ID, unmet)]
        values, ids, is_given = self._next_tokens(position, log_probs, forbidden, loop_inputs)
        left = tf.reshape(loop_inputs.limit - loop_inputs.count(position), [-1, 1, 1])
        tokens = followed.with_next(values, ids, log_probs, forbidden, left, is_given)
        size = tf.shape(tokens[1], tf.int64)[2]
        return self._best(hypotheses, size, tf.cast(self.beam_width * size, tf.int32), *tokens)

    def _ranked(self, new: Extensions, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Ranks within the banks. The W best take turns between them."""
        place, order = by_bank(new.total, *new.more, ends)
        _, index = top_k(order, self.beam_width)  # (B, W)
        running = tf.gather(tf.where(ends, -np.inf, new.total), index, batch_dims=1)
        return place, running, index

    def _done(
        self, scores: Tensor, running: Tensor, count: Tensor, loop_inputs: LoopInputs
    ) -> Tensor:
        """Returns whether each search has finished, (B, 1): with `early_stop` and terms, all W."""
        best = tf.reduce_max(running, axis=1, keepdims=True)  # banks are not in order of scores
        if self.early_stop:
            terms = loop_inputs.known[self._place]
            has_terms = tf.reduce_any(terms != PAD_ID, axis=[1, 2])[:, tf.newaxis]
            best = tf.where(has_terms, -np.inf, best)
        return super()._done(scores, best, count, loop_inputs)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class Terms(Rule):
    """Makes a `BeamSearch` write all terms of each sentence (Post and Vilar 2018).

    A hypothesis can end as soon as it contains all terms. Each step also tries the next token of
    each unmet term. The hypotheses are divided into banks by the number of met tokens. Each bank
    gets an equal share of the W places; other banks use the places that a bank cannot fill. A wide
    beam is better: it should have more places than the terms have tokens.

    A term counts wherever its tokens follow each other. Terms may overlap: a term that is a part of
    another term, or that is given twice, needs to occur once. If a hypothesis breaks off a term,
    the term starts again; the last tokens may be its beginning. The tokens of a prompt do not
    count; tokens of `target_prefix` do. Scores do not change.

    A hypothesis is dropped if the rest of its unmet terms does not fit into `max_length`. If all
    terms of a sentence have more than `max_length` tokens together, or if another constraint
    forbids them, the sentence has no hypothesis: its ids are 0 and its score is -inf. The same
    holds for terms that contain padding, begin or end tokens. A `Shortlist` allows the tokens of
    all terms of a sentence.

    Call arguments:
        terms: integers (B, N, L), or (1, N, L) for all sentences, each row a term, padded with 0 on
            the right. Rows of zeros are no terms. Defaults to none: the search gives the same
            result as without `Terms`.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> search = BeamSearch(beam_width=8, constraints=[Terms()])
    >>> terms = np.array([[[13, 17], [19, 0]]])
    >>> result = search(model, np.array([[5, 11, 23]]), max_length=10, terms=terms)
    >>> bool(all(19 in ids for ids in result.ids.numpy()[0]))
    True
    """

    listed_inputs: ClassVar[Sequence[str]] = ("terms",)
    search: ClassVar[type | None] = TermSearch

    @property
    def inputs(self) -> Mapping[str, Array]:
        """`terms`."""
        return {"terms": np.zeros([1, 0, 0], np.int32)}

    def read(self, source: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the terms of this call and an empty one, int32 (B, N + 1, L + 1).

        Terms that are parts of other terms are left out.
        """
        terms = tf.pad(inputs["terms"], [[0, 0], [0, 1], [0, 1]])
        return terms * tf.cast(tf.logical_not(_in_others(terms)), tf.int32)[..., tf.newaxis]

    def start(self, known: Tensor, batch_size: Tensor, width: int) -> Tensor:
        """Returns the state (B, W, N, L) before the first token: False everywhere.

        Column i tells whether the last i + 1 tokens are the first i + 1 tokens of the term. The
        last column of a met term stays True.
        """
        return tf.fill([batch_size, width, *tf.unstack(tf.shape(known))[1:]], False)

    def step(self, scores: Scores, past: Past, state: Tensor, known: Tensor) -> tuple[Scores, Any]:
        """Follows the terms. `TermSearch` chooses the tokens."""
        after = matched(state, past.ids, known[:, tf.newaxis])
        generated = tf.reshape(past.count > 1, [-1, 1, 1, 1])
        return scores, tf.logical_and(after, generated)


def _in_others(terms: Tensor) -> Tensor:
    """Returns whether each term is in another term or equals an earlier one: boolean (B, N)."""
    count, length = tf.unstack(tf.shape(terms))[1:]
    place = tf.range(length)
    longer = tf.pad(terms, [[0, 0], [0, 0], [0, length]])
    parts = tf.gather(longer, place[:, tf.newaxis] + place, axis=2)  # (B, N, L, L)
    term = terms[:, :, tf.newaxis, tf.newaxis]  # (B, N, 1, 1, L)
    same = tf.logical_or(tf.equal(term, parts[:, tf.newaxis]), tf.equal(term, PAD_ID))
    inside = tf.reduce_any(tf.reduce_all(same, axis=4), axis=3)  # (B, N, N)
    equal = tf.logical_and(inside, tf.transpose(inside, [0, 2, 1]))
    number = tf.range(count)
    is_later = number[:, tf.newaxis] > number
    inside = tf.logical_and(inside, tf.logical_or(is_later, tf.logical_not(equal)))
    return tf.reduce_any(inside, axis=2)


def matched(before: Tensor, ids: Tensor, terms: Tensor) -> Tensor:
    """Returns the state of `Terms` after one more token.

    Args:
        before: boolean (B, ..., N, L).
        ids: int (B, ...), the tokens.
        terms: int32 (B, 1, ..., N, L).
    """
    ids = tf.cast(ids, tf.int32)[..., tf.newaxis, tf.newaxis]
    same = tf.logical_and(tf.equal(terms, ids), terms != PAD_ID)
    longer = tf.concat([tf.ones_like(before[..., :1]), before[..., :-1]], axis=-1)
    following = tf.concat([terms[..., 1:], tf.zeros_like(terms[..., :1])], axis=-1)
    is_last = tf.logical_and(terms != PAD_ID, tf.equal(following, PAD_ID))
    return tf.logical_or(tf.logical_and(longer, same), tf.logical_and(before, is_last))


class FollowedTerms(NamedTuple):
    """The terms of a step, and the state of the hypotheses.

    Attributes:
        terms: int32 (B, 1, N, L), the result of `Terms.read`.
        state: boolean (B, W, N, L), the state of `Terms`.
    """

    terms: Tensor
    state: Tensor

    def with_next(
        self,
        values: Tensor,
        ids: Tensor,
        log_probs: Scores,
        forbidden: Forbidden,
        left: Tensor,
        is_given: Tensor | bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Adds the next tokens of all terms to the candidates of each hypothesis.

        Args:
            values: float32 (B, W, C), log-probabilities of the candidates.
            ids: int64 (B, W, C).
            log_probs: `Scores` of all next tokens.
            forbidden: see `scores.Forbidden`.
            left: int32 (B or 1, 1, 1), how many tokens may follow the next one.
            is_given: boolean (B, 1, 1), whether the next token is given.

        Returns:
            Log-probabilities, -inf where the rest of the terms does not fit; ids; and after each
            candidate the number of missing tokens, int32, and `states`. All (B, W, C + N).
        """
        tokens = tf.cast(self._next_tokens(), ids.dtype)
        each = tokens[..., tf.newaxis]  # (B, W, N, 1)
        is_candidate = tf.reduce_any(tf.equal(each, ids[:, :, tf.newaxis]), axis=3)
        number = tf.range(tf.shape(tokens)[2])
        again = tf.logical_and(
            tf.equal(each, tokens[:, :, tf.newaxis]), number < number[:, tf.newaxis]
        )
        not_new = tf.logical_or(is_candidate, tf.reduce_any(again, axis=3))
        not_new = tf.logical_or(not_new, is_given)
        more = forbid(log_probs.at(tokens), tokens, forbidden)
        values = tf.concat([values, tf.where(not_new, -np.inf, more)], axis=2)
        ids = tf.concat([ids, tokens], axis=2)

        terms = self.terms[:, tf.newaxis]
        after = FollowedTerms(terms, matched(self.state[:, :, tf.newaxis], ids, terms))
        missing = after.missing()
        fits = tf.logical_or(missing <= left, is_given)
        return tf.where(fits, values, -np.inf), ids, missing, after.states()

    def missing(self) -> Tensor:
        """Returns a number of tokens that can complete all terms, int32 (B, W).

        They complete the term with most met tokens, and then all others from their start. So they
        always suffice, but fewer tokens may be enough.
        """
        met = self._met()
        length = tf.reduce_sum(tf.cast(self.terms != PAD_ID, tf.int32), axis=-1)
        unmet = tf.cast(met < length, tf.int32)
        return tf.reduce_sum(unmet * length, axis=-1) - tf.reduce_max(unmet * met, axis=-1)

    def states(self) -> Tensor:
        """Returns a hash of the met tokens of all terms, int64 (B, W)."""
        factor = tf.pow(tf.constant(31, tf.int64), tf.range(tf.shape(self.terms, tf.int64)[-2]))
        return tf.reduce_sum(tf.cast(self._met(), tf.int64) * factor, axis=-1)

    def _met(self) -> Tensor:
        """Counts the met tokens of each term, int32 (B, W, N)."""
        number = tf.range(1, tf.shape(self.terms)[-1] + 1)
        return tf.reduce_max(number * tf.cast(self.state, tf.int32), axis=-1)

    def _next_tokens(self) -> Tensor:
        """Returns the next token of each term, int32 (B, W, N); 0 for a met term."""
        here = tf.equal(tf.range(tf.shape(self.terms)[-1]), self._met()[..., tf.newaxis])
        return tf.reduce_sum(self.terms * tf.cast(here, tf.int32), axis=-1)


def by_bank(total: Tensor, missing: Tensor, states: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Ranks candidates within their banks, and in an order that takes turns between banks.

    Within a bank the candidates that have met different terms take turns.

    Args:
        total: float32 (B, K), sums of log-probabilities, in descending order.
        missing: int32 (B, K), missing tokens of the terms: the bank of each candidate.
        states: int64 (B, K), the hashes of `FollowedTerms.states`.
        ends: boolean (B, K), whether each candidate ends.

    Returns:
        The number of better candidates in the same bank, int32 (B, K); and the order, float32
        (B, K): higher for earlier candidates, -inf for candidates that end. In each turn the bank
        with fewest missing tokens comes first.
    """
    number = tf.range(tf.shape(total)[1])
    better = number < number[:, tf.newaxis]  # (K, K): the other candidate has a higher total
    in_bank, in_state = (tf.equal(x[:, tf.newaxis], x[:, :, tf.newaxis]) for x in (missing, states))
    place = _count(tf.logical_and(in_bank, better))

    goes_on = tf.logical_and(total > -np.inf, tf.logical_not(ends))
    others = goes_on[:, tf.newaxis]
    turn = _count(others & in_state & better)
    one, other = turn[:, :, tf.newaxis], turn[:, tf.newaxis]
    before = tf.logical_or(other < one, tf.logical_and(tf.equal(other, one), better))
    turn = tf.cast(_count(others & in_bank & before), tf.float32)
    most = tf.reduce_max(tf.pad(tf.reshape(missing, [-1]), [[0, 1]]))  # 0 for an empty batch
    later = turn * tf.cast(most + 1, tf.float32) + tf.cast(missing, tf.float32)
    return place, tf.where(goes_on, -later, -np.inf)


def _count(found: Tensor) -> Tensor:
    """Counts the candidates that were found (B, K, K) for each candidate: (B, K)."""
    return tf.reduce_sum(tf.cast(found, tf.int32), axis=2)
