"""A constraint for lines of brackets: every output is a tree.

Shapes: B batch, W hypotheses, S source length, V vocabulary.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.search import Constraint, Past, forbid_tokens
from keras_transformer.special_ids import END_ID, PAD_ID
from keras_transformer.types import Array, Tensor

NEITHER, OPENS, CLOSES, NUMBER, WORD = range(5)  # kinds of tokens


class BracketState(NamedTuple):
    """An unfinished line of brackets.

    Attributes:
        closers: int32 (B, W, max_depth), the token that closes each open bracket, the outermost
            first.
        depth: int32 (B, W), the number of open brackets.
        words, length: int32 (B, W), the numbers of words and of tokens so far.
    """

    closers: Tensor
    depth: Tensor
    words: Tensor
    length: Tensor


class BracketGrammar(Constraint):
    """A grammar of trees with one word for each word of the source.

    A tree is a bracket around one or more words and trees. The piece "(NP" opens a bracket, and
    ")NP" closes it, or ")" if the vocabulary has no ")NP". A piece of digits is the number of the
    word that follows it. Every other piece is a word.

    A sentence gets an empty line if it has no words, more words than there are numbers, or more
    than fit into `max_length`.

    Args:
        pieces: sequence of V str, the target vocabulary: `Tokenizer.pieces` of a tokenizer of
            words. If "1" is one of them, all words have numbers, from 1.
        word_starts: sequence of bool, whether each piece of the source begins a word:
            `Tokenizer.word_starts` of the source's tokenizer. Defaults to `None`: a tree may have
            any number of words.
        max_depth: int, the greatest number of open brackets. Defaults to 64.
        max_length: int, the greatest number of tokens of a line, end token included. Pass at most
            the `max_length` of the search, which then never cuts off a tree. Defaults to `None`:
            no limit.

    Raises:
        ValueError: if no bracket can be opened and closed, if there are no words, or if `max_depth`
            is below 1.

    Example:

    >>> pieces = ["<pad>", "<unk>", "<s>", "</s>", "(S", ")S", "XX"]
    >>> search = kt.BeamSearch(4, constraints=[BracketGrammar(pieces, max_length=120)])
    """

    def __init__(
        self,
        pieces: Sequence[str],
        word_starts: Sequence[bool] | None = None,
        max_depth: int = 64,
        max_length: int | None = None,
    ) -> None:
        spelled = [piece.lstrip("\u2581") for piece in pieces]
        places = {piece: place for place, piece in enumerate(spelled)}
        self.max_depth: int = max_depth
        self.max_length: int | None = max_length
        # For each token its kind, and the token that closes the bracket it opens.
        self.kind: Array = np.full(len(spelled), NEITHER, np.int32)
        self.closer: Array = np.full(len(spelled), PAD_ID, np.int32)
        for place, piece in enumerate(spelled[END_ID + 1 :], END_ID + 1):
            closer = places.get(f"){piece[1:]}", places.get(")"))
            if piece.startswith("(") and closer is not None:
                self.kind[place], self.closer[place] = OPENS, closer
            elif piece.isdigit():
                self.kind[place] = NUMBER
            elif piece and piece[0] not in "()":
                self.kind[place] = WORD
        self.kind[self.closer[self.closer != PAD_ID]] = CLOSES
        highest = next(n for n in range(len(spelled) + 1) if str(n + 1) not in places)
        # The tokens of numbers 1, 2, ...; padding after the last number.
        numbers = [places[str(n + 1)] for n in range(highest)]
        self.numbers: Array = np.array([*numbers, PAD_ID], np.int32)
        self.numbered: bool = highest > 0
        self.per_word = 2 if self.numbered else 1  # tokens
        self.word_starts: Array | None = None
        if word_starts is not None:
            self.word_starts = np.asarray(word_starts, np.int32)
        if OPENS not in self.kind or WORD not in self.kind or max_depth < 1:
            raise ValueError(
                'BracketGrammar needs pieces such as "(S", ")S" and "XX" and a max_depth above 0; '
                f"got {len(spelled)} pieces, first {spelled[END_ID + 1 :][:5]}, and {max_depth}. "
                "Pass `pieces` of the target's tokenizer."
            )
        shortest = 3 + self.per_word  # a bracket around a word, and the end
        if word_starts is None and max_length is not None and max_length < shortest:
            raise ValueError(
                f"max_length must be at least {shortest}, the tokens of the shortest tree, but "
                f"{max_length} was passed."
            )

    def read(self, source: Any, inputs: Mapping[str, Tensor]) -> Tensor | tuple[()]:
        """Counts the words of the source, (B, 1); returns `()` without `word_starts`."""
        if self.word_starts is None:
            return ()
        ids = source["source_ids"] if isinstance(source, dict) else source
        words = tf.reduce_sum(tf.gather(self.word_starts, ids), axis=1, keepdims=True)
        if self.numbered:
            words *= tf.cast(words < len(self.numbers), tf.int32)
        if self.max_length is not None:  # a bracket around them, and the end
            words *= tf.cast(self.per_word * words + 3 <= self.max_length, tf.int32)
        return words

    def start(self, known: Any, batch_size: Tensor, width: int) -> BracketState:
        """Returns the state of empty lines."""
        zeros = tf.zeros([batch_size, width], tf.int32)
        closers = tf.zeros([batch_size, width, self.max_depth], tf.int32)
        return BracketState(closers, zeros, zeros, zeros)

    def step(
        self, logits: Tensor, past: Past, state: BracketState, known: Tensor | tuple[()]
    ) -> tuple[Tensor, BracketState]:
        """Forbids every token that cannot continue a tree. See `Constraint`."""
        allowed, state = self.allowed(past.ids, state, known)
        return forbid_tokens(logits, tf.logical_not(allowed)), state

    def allowed(
        self, ids: Tensor, state: BracketState, known: Tensor | tuple[()]
    ) -> tuple[Tensor, BracketState]:
        """Returns the allowed next tokens, boolean (B, W, V), and the state after `ids` (B, W)."""
        kind = tf.gather(self.kind, ids)  # (B, W), as are all conditions below
        state = self._after(ids, kind, state)
        inside = state.depth > 0
        more, done, room = self._left(state, known)
        word_is_due = tf.equal(kind, NUMBER)
        free = more & ~word_is_due
        innermost = self._at(state.depth - 1)  # (B, W, max_depth)
        closer = tf.reduce_sum(tf.where(innermost, state.closers, 0), axis=-1)
        number = tf.gather(self.numbers, tf.minimum(state.words, len(self.numbers) - 1))

        opens = free & (inside | tf.equal(state.words, 0)) & (state.depth < self.max_depth) & room
        closes = inside & tf.not_equal(kind, OPENS) & ~word_is_due & (done | (state.depth > 1))
        ends = done & ~inside
        every = np.arange(len(self.kind), dtype=np.int32)  # (V,)
        next_number = tf.equal(every, tf.expand_dims(number, 2))  # (B, W, V)
        rules = [
            (opens, self.kind == OPENS),
            (inside & free, next_number if self.numbered else self.kind == WORD),
            (word_is_due, self.kind == WORD),
            (closes, tf.equal(every, tf.expand_dims(closer, 2))),
            (ends, every == END_ID),
        ]
        allowed = [tf.expand_dims(when, 2) & tokens for when, tokens in rules]
        return functools.reduce(tf.logical_or, allowed), state

    def _after(self, ids: Tensor, kind: Tensor, state: BracketState) -> BracketState:
        """Returns the state after these tokens."""
        opened, closed, word = (
            tf.cast(tf.equal(kind, which), tf.int32) for which in (OPENS, CLOSES, WORD)
        )
        here = self._at(state.depth) & tf.expand_dims(opened > 0, 2)
        return BracketState(
            tf.where(here, tf.expand_dims(tf.gather(self.closer, ids), 2), state.closers),
            state.depth + opened - closed,
            state.words + word,
            state.length + tf.cast(tf.not_equal(kind, NEITHER), tf.int32),
        )

    def _at(self, depth: Tensor) -> Tensor:
        """Returns a one-hot vector of each depth, boolean (B, W, max_depth)."""
        return tf.equal(np.arange(self.max_depth, dtype=np.int32), tf.expand_dims(depth, 2))

    def _left(
        self, state: BracketState, known: Tensor | tuple[()]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns whether a word may follow, no word is left and a bracket fits, each (B, W)."""
        counted = not isinstance(known, tuple)
        left = known - state.words if counted else tf.zeros_like(state.words)
        more, done = (left > 0, tf.equal(left, 0)) if counted else (left >= 0, state.words > 0)
        if self.numbered and not counted:
            more = state.words < len(self.numbers) - 1
        if self.max_length is None:
            return more, done, left >= 0
        # The room that the remaining words, all closing brackets and the end leave.
        room = self.max_length - 1 - state.length - state.depth - self.per_word * left
        if counted:
            return more, done, room >= 2
        return more & (room >= self.per_word), done, room >= 2 + self.per_word
