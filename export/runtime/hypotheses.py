"""Details of hypotheses, alternatives to a word, and text that grows while a search runs.

Shapes: N prefixes, S source tokens, W hypotheses, T target tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_transformer.export.artefact.results import Alternative, Details
from keras_transformer.export.artefact.signature import (
    ALIGNMENTS,
    REPLACEMENT,
    SPECIAL_IDS,
    TOKEN_SCORES,
)
from keras_transformer.special_ids import END_ID, NUM_SPECIAL, PAD_ID
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.words import PieceWords, align_words
from keras_transformer.types import Array, Ids

_TOO_LONG = (
    "The prefix has {} tokens, but the search writes fewer than {}. Pass a shorter prefix, or "
    "export with a larger max_length."
)


class DetailsMaker:
    """Makes the `Details` of hypotheses.

    Args:
        source, target: tokenizers of source and target.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer):
        self._source, self._target = PieceWords(source), PieceWords(target)
        self._decode = target.decode

    def details(self, source_ids: Any, ids: Ids, outputs: dict[str, Array]) -> Details:
        """Returns the details of one hypothesis.

        Args:
            source_ids: integers (S,), the ids of a source text; empty for other sources.
            ids: (T,), ids of the hypothesis, padded with 0.
            outputs: token scores (T,) and alignments (T, S) of the hypothesis, padded, if the model
                has these outputs.
        """
        ids, source_ids = ids[ids != SPECIAL_IDS["pad"]], np.asarray(source_ids, int)
        is_text = _is_text(ids)
        numbers = self._target.numbers(ids[is_text])
        count = int(numbers.max(initial=-1)) + 1
        words = (self._decode(ids[is_text][numbers == word]).strip() for word in range(count))
        pieces = tuple(self._target.pieces[i] for i in ids)
        found: dict[str, Any] = {"pieces": pieces, "words": tuple(words)}
        if TOKEN_SCORES in outputs:
            scores = outputs[TOKEN_SCORES][: len(ids)]
            found["token_scores"] = tuple(scores.tolist())
            found["word_scores"] = tuple(np.bincount(numbers, scores[is_text], count).tolist())
        if ALIGNMENTS in outputs:
            weights = found["weights"] = outputs[ALIGNMENTS][: len(ids)]
            if len(source_ids):
                weights = found["weights"] = weights[:, : len(source_ids)]
                found["source_pieces"] = tuple(self._source.pieces[i] for i in source_ids)
                is_source = _is_text(source_ids)
                source_numbers = self._source.numbers(source_ids[is_source])
                weights = weights[is_text][:, is_source]
                has_letters = self._target.has_letters[ids[is_text]]
                found["alignment"] = align_words(weights, source_numbers, numbers, has_letters)
        return Details(**found)


def _is_text(ids: Ids) -> Array:
    """Returns whether each token is part of the text, not a begin or end token."""
    return (ids >= NUM_SPECIAL) | (ids == SPECIAL_IDS["unknown"])


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
            raise ValueError(_TOO_LONG.format(len(ids), len(one)))
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
    if exists.any() and found.shape[2] <= len(ids):
        raise ValueError(_TOO_LONG.format(len(ids), len(ids) + 1))
    if not exists.any():
        return []
    log_probs = scores[0, exists] - (scores[1, 0] if ids else 0)
    return list(zip(log_probs.tolist(), found[0, exists, len(ids)].tolist(), strict=True))


def _word_at(tokenizer: Tokenizer, words: PieceWords, ids: Sequence[Any] | Ids, place: int) -> str:
    """Returns the word of the token at a place; empty for the end token."""
    if ids[place] == END_ID:
        return ""
    numbers = words.numbers(ids[ids != END_ID])
    return tokenizer.decode(ids[: len(numbers)][numbers == numbers[place]]).strip()


class GrowingText:
    """The text of a growing sequence of ids.

    All ids are decoded after each step, because the tokenizer adds spaces and joins bytes to
    characters. U+FFFD at the end is held back: it may be the first bytes of a character.

    Args:
        decode: function from ids to text.

    Attributes:
        text: str, the text so far.

    Example:

    >>> text = GrowingText(lambda ids: bytes(ids).decode("utf-8", "replace"))
    >>> [text.grow([*"é!".encode()][:n]) for n in (1, 2, 3)]
    ['', 'é', '!']
    """

    def __init__(self, decode: Callable[[list[int] | Ids], str]) -> None:
        self._decode = decode
        self.text: str = ""

    def grow(self, ids: list[int] | Ids) -> str:
        """Returns the text that `ids` add; they begin with the ids of the last call."""
        return self.finish(self._decode(ids).rstrip(REPLACEMENT))

    def finish(self, text: str) -> str:
        """Returns the part of `text` after the text so far, and appends it to the text so far."""
        more = text[len(self.text) :]
        self.text += more
        return more
