"""Finds alternative next words of a translation, and the most likely text after each.

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
    """Returns the most likely next words after a prefix.

    A search that adds one token to the prefix gives the most likely next tokens. In some
    vocabularies a word may begin with a token for the space alone. The search is then repeated
    after this token. Another search completes each text. Of several texts with the same next word,
    the most likely one is kept.

    Args:
        search: see `Search`.
        tokenizer: `Tokenizer` of the target.
        prefix: str, the beginning of a translation.
        count: int, the maximum number of alternatives.

    Raises:
        ValueError: the search allows no text with this prefix, or none that is so long.
    """
    ids = tokenizer.encode(prefix.rstrip(" "))
    found = _next_tokens(search, ids)
    if not found:
        raise ValueError(f"The search allows no text with the prefix {prefix!r:.100}.")
    if prefix.endswith(" "):  # the next token must begin a word, or end the text
        found = [one for one in found if one[1] == END_ID or tokenizer.word_starts[one[1]]]
    begun = []
    for log_prob, token in found:
        if token != END_ID and tokenizer.word_starts[token] and not tokenizer.decode([token]):
            more = [one for one in _next_tokens(search, [*ids, token]) if one[1] != END_ID]
            begun += [(log_prob + further, [*ids, token, last]) for further, last in more]
        else:
            begun.append((log_prob, [*ids, token]))
    if not begun:
        return []
    begun.sort(key=lambda one: -one[0])
    texts, text_scores = search([one for _, one in begun])
    words, alternatives = PieceWords(tokenizer), {}
    for (log_prob, one), best, score in zip(begun, texts[:, 0], text_scores[:, 0], strict=True):
        if np.count_nonzero(best != PAD_ID) < len(one):
            raise ValueError(
                f"The prefix has {len(ids)} tokens, but the search writes fewer than {len(one)}. "
                "Pass a shorter prefix, or export with a larger max_length."
            )
        word = _word_at(tokenizer, words, best[best != PAD_ID], len(one) - 1)
        alternative = Alternative(word, log_prob, tokenizer.decode(best), float(score))
        alternatives.setdefault(word, alternative)
    return list(alternatives.values())[:count]


def _next_tokens(search: Search, ids: list[int]) -> list[tuple[float, int]]:
    """Returns log-probabilities and ids of the most likely next tokens, up to the beam width."""
    # The shorter search gives the score of the prefix alone.
    lengths = np.array([len(ids) + 1, len(ids)][: 1 + bool(ids)], np.int32)
    plain = {"length_penalty": np.array(0, np.float32), "max_length": lengths}
    found, scores = search([ids] * len(lengths), **plain)
    exists = scores[0] > -np.inf
    log_probs = scores[0, exists] - (scores[1, 0] if ids else 0)
    tokens = found[0, exists, len(ids)]
    return list(zip(log_probs.tolist(), tokens.tolist(), strict=True))


def _word_at(tokenizer: Tokenizer, words: PieceWords, ids: Sequence[Any] | Ids, place: int) -> str:
    """Returns the word of the token at a place; empty for the end token."""
    if ids[place] == END_ID:
        return ""
    numbers = words.numbers(ids[ids != END_ID])
    return tokenizer.decode(ids[: len(numbers)][numbers == numbers[place]]).strip()
