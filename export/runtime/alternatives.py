"""Alternatives at a position of a translation: the next words, and how the text goes on after each.

Shapes: N prefixes, W beam width, T generated length.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_transformer.export.artefact.results import Alternative
from keras_transformer.special_ids import END_ID, PAD_ID
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.words import PieceWords
from keras_transformer.types import Array, Ids

# A function of N prefixes, as lists of ids, and of options of the call. It returns ids (N, W, T)
# and scores (N, W).
Search: TypeAlias = Callable[..., tuple[Ids, Array]]


def find_alternatives(
    search: Search, tokenizer: Tokenizer, prefix: str, count: int
) -> list[Alternative]:
    """The most likely next words after a prefix.

    The first call of the search adds one token to the prefix: its hypotheses are the most likely
    next tokens. The second call completes each of them.

    Args:
        search: see `Search`.
        tokenizer: `Tokenizer` of the target.
        prefix: str, the beginning of a translation.
        count: int, the greatest number of alternatives.

    Raises:
        ValueError: the search allows no text with this prefix.
    """
    ids = tokenizer.encode(prefix.rstrip(" "))
    # The shorter search gives the score of the prefix alone.
    lengths = np.array([len(ids) + 1, len(ids)][: 1 + bool(ids)], np.int32)
    plain = {"length_penalty": np.array(0, np.float32), "max_length": lengths}
    found, scores = search([ids] * len(lengths), **plain)
    if scores[0, 0] == -np.inf:
        raise ValueError(f"The search allows no text with the prefix {prefix!r:.100}.")
    log_probs = scores[0] - (scores[1, 0] if ids else 0)
    exists = scores[0] > -np.inf
    if prefix.endswith(" "):  # the next token must begin a word, or end the text
        starts = tokenizer.word_starts[found[0, :, len(ids)]]
        exists &= starts | (found[0, :, len(ids)] == END_ID)
    chosen = np.flatnonzero(exists)[:count]
    if not len(chosen):
        return []
    texts, text_scores = search([[*ids, int(found[0, i, len(ids)])] for i in chosen])
    words = PieceWords(tokenizer)
    return [
        Alternative(
            _word_at(tokenizer, words, best[best != PAD_ID], len(ids)),
            float(log_probs[i]),
            tokenizer.decode(best),
            float(score),
        )
        for i, best, score in zip(chosen, texts[:, 0], text_scores[:, 0], strict=True)
    ]


def _word_at(tokenizer: Tokenizer, words: PieceWords, ids: Sequence[Any] | Ids, place: int) -> str:
    """The word that the token at a place belongs to; empty for the end token."""
    if ids[place] == END_ID:
        return ""
    numbers = words.numbers(ids[ids != END_ID])
    return tokenizer.decode(ids[: len(numbers)][numbers == numbers[place]]).strip()
