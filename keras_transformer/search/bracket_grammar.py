"""The grammar of lines of brackets: a search with it writes trees.

Shapes: B batch, W hypotheses, S source length, V vocabulary.
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.search.sources import SOURCE_IDS
from keras_transformer.special_ids import END_ID, PAD_ID

NEITHER, OPENS, CLOSES, NUMBER, WORD = range(5)  # what a token is


class BracketState(NamedTuple):
    """What has been written of a line of brackets.

    Attributes:
        closers: int32 (B, W, max_depth), the token that closes each open bracket, the outermost
            first.
        depth: int32 (B, W), how many brackets are open.
        words, length: int32 (B, W), how many words are written, and how many tokens.
    """

    closers: tf.Tensor
    depth: tf.Tensor
    words: tf.Tensor
    length: tf.Tensor


class BracketGrammar:
    """Lines of brackets that are one tree, with a word for each word of the source.

    A tree is a bracket around words and trees, at least one. Lines are those of
    `data.sets.trees.to_brackets`: "(NP" opens a bracket, and ")NP" closes it, or ")" where there is
    no ")NP"; a piece of digits is the number of the word that follows it; every other piece is a
    word.

    Args:
        pieces: sequence of V str, the vocabulary that is written: `Tokenizer.pieces` of a tokenizer
            of words. Where "1" is among them, all words have numbers, from 1.
        word_starts: sequence of bool, whether a piece that is read begins a word:
            `Tokenizer.word_starts` of the source's tokenizer. Defaults to `None`: any number of
            words may be written.
        max_depth: int, most brackets that may be open at once. Defaults to 64.
        max_length: int, most tokens of a line, the end token included: so no tree is cut off by the
            search's own `max_length`, which must not be less. Defaults to `None`: any number.

    Raises:
        ValueError: no bracket can be opened and closed, there are no words, or `max_depth` is less
            than 1.

    A sentence of no words, of more than there are numbers, or of more than fit into `max_length`
    gets an empty line.

    Example:

    >>> tokenizer = Tokenizer.train(["(S 1 DT )S"], 300, model_type="word", byte_fallback=False,
    ...                             hard_vocab_limit=False)
    >>> grammar = BracketGrammar(tokenizer.pieces)
    >>> model = Transformer(tokenizer.vocab_size, 1, d_model=16, num_heads=2, d_ff=32)
    >>> result = GreedySearch()(Constrained(model, grammar), np.array([[5, 3]]), max_length=4)
    >>> tokenizer.decode(result.ids[0, 0])[:7]
    '(S 1 DT'
    """

    def __init__(self, pieces, word_starts=None, max_depth=64, max_length=None):
        spelled = [piece.lstrip("\u2581") for piece in pieces]
        places = {piece: place for place, piece in enumerate(spelled)}
        self.max_depth, self.max_length = max_depth, max_length
        self.kind = np.full(len(spelled), NEITHER, np.int32)  # of each token
        self.closer = np.full(len(spelled), PAD_ID, np.int32)  # what closes the bracket it opens
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
        # Before the first word stands number 1; behind the last number there is none.
        self.numbers = np.array([places[str(n + 1)] for n in range(highest)] + [PAD_ID], np.int32)
        self.numbered = highest > 0
        self.per_word = 2 if self.numbered else 1  # tokens
        self.word_starts = None if word_starts is None else np.asarray(word_starts, np.int32)
        if OPENS not in self.kind or WORD not in self.kind or max_depth < 1:
            raise ValueError(
                'The pieces of a line of brackets are such as "(S", ")S" and "XX", and max_depth '
                f"is at least 1; got {len(spelled)} pieces, {spelled[END_ID + 1 :][:5]} the first, "
                f"and {max_depth}. Pass `pieces` of the tokenizer whose lines are written."
            )

    def read(self, source):
        """How many words the source has, (B, 1); `()` where they are not counted."""
        if self.word_starts is None:
            return ()
        ids = source[SOURCE_IDS] if isinstance(source, dict) else source
        words = tf.reduce_sum(tf.gather(self.word_starts, ids), axis=1, keepdims=True)
        if self.numbered:
            words *= tf.cast(words < len(self.numbers), tf.int32)
        if self.max_length is not None:  # a bracket around them, and the end
            words *= tf.cast(self.per_word * words + 3 <= self.max_length, tf.int32)
        return words

    def start(self, batch_size, beam_width):
        """Nothing is written."""
        nothing = tf.zeros([batch_size, beam_width], tf.int32)
        closers = tf.zeros([batch_size, beam_width, self.max_depth], tf.int32)
        return BracketState(closers, nothing, nothing, nothing)

    def step(self, ids, state, known):
        """See `keras_transformer.search.grammar`."""
        kind = tf.gather(self.kind, ids)  # (B, W), as all that follow
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

    def _after(self, ids, kind, state):
        """The state with the token that was written."""
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

    def _at(self, depth):
        """Where a bracket of this depth stands among those that are open, (B, W, max_depth)."""
        return tf.equal(np.arange(self.max_depth, dtype=np.int32), tf.expand_dims(depth, 2))

    def _left(self, state, known):
        """Whether there is a word to write, none any more, room for a bracket, each (B, W)."""
        counted = not isinstance(known, tuple)
        left = known - state.words if counted else tf.zeros_like(state.words)
        more, done = (left > 0, tf.equal(left, 0)) if counted else (left >= 0, state.words > 0)
        if self.numbered and not counted:
            more = state.words < len(self.numbers) - 1
        if self.max_length is None:
            return more, done, left >= 0
        # Beside what must come: the words, what closes all brackets, and the end.
        room = self.max_length - 1 - state.length - state.depth - self.per_word * left
        if counted:
            return more, done, room >= 2
        return more & (room >= self.per_word), done, room >= 2 + self.per_word
