"""Pieces, words and alignments of hypotheses, for searches with token scores or alignments.

Shapes: S source tokens, W hypotheses, T target tokens.
"""

from typing import Any

import numpy as np

from keras_transformer.export.artefact.results import Details
from keras_transformer.export.artefact.signature import ALIGNMENTS, SPECIAL_IDS, TOKEN_SCORES
from keras_transformer.special_ids import NUM_SPECIAL
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.words import PieceWords, align_words
from keras_transformer.types import Array, Ids


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
        if (largest := ids.max(initial=0)) >= len(self._target.pieces):
            raise ValueError(
                f"the model wrote the id {largest}, but the tokenizer has "
                f"{len(self._target.pieces)} ids"
            )
        is_text = _is_text(ids)
        numbers = self._target.numbers(ids[is_text])
        count = int(numbers.max(initial=-1)) + 1
        words = [self._decode(ids[is_text][numbers == word]).strip() for word in range(count)]
        found: dict[str, Any] = {
            "pieces": tuple(self._target.pieces[i] for i in ids),
            "words": tuple(words),
        }
        if TOKEN_SCORES in outputs:
            scores = outputs[TOKEN_SCORES][: len(ids)]
            found["token_scores"] = tuple(scores.tolist())
            word_scores = np.bincount(numbers, scores[is_text], count)
            found["word_scores"] = tuple(word_scores.tolist())
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
