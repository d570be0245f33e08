"""Words of pieces, word alignments in Pharaoh format, and scripts without spaces between words.

Words are separated by spaces only: a tab or a no-break space is part of a word. The Pharaoh format
writes the alignment of a pair of sentences as `0-0 1-2`: pairs of a source word and a target word,
counted from 0.
"""

import os
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from keras_transformer.call_options import check_pieces
from keras_transformer.text.corpora import read_lines
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import AnyTokenizer, Array, Ids, StrPath

# Pairs of a source word and a target word.
Alignment: TypeAlias = tuple[tuple[int, int], ...]

# SentencePiece's space.
SPACE = "\u2581"
# The weight of a punctuation mark in a word: it decides only if the word has no letter.
MARK = 1e-3
# A piece is searched in this many characters after the piece before it.
FAR = 32
# Thai, Lao, Burmese and Khmer, which have spaces between sentences.
_SPACES_BETWEEN_SENTENCES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
# Chinese and Japanese with their marks and wide forms, which have none.
_WIDE = "\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff65\U00020000-\U0003ffff"
# For classes of characters in patterns.
NO_SPACES = _SPACES_BETWEEN_SENTENCES + _WIDE
_WORDS_AND_MARKS = re.compile(r"\w+|[^\w\s]")
_HAS_NO_SPACES, _IS_WIDE = re.compile(f"[{NO_SPACES}]"), re.compile(f"[{_WIDE}]")


def has_no_spaces(text: str) -> bool:
    """Returns whether a text has characters of a script without spaces between words.

    >>> has_no_spaces("ข้าว"), has_no_spaces("한국어 rice")
    (True, False)
    """
    return _HAS_NO_SPACES.search(text) is not None


def is_wide(text: str) -> bool:
    """Returns whether a text has characters of Chinese or Japanese, their marks included."""
    return _IS_WIDE.search(text) is not None


def bleu_tokens(references: Sequence[str]) -> str:
    """Returns the tokeniser for sacreBLEU: "13a", which splits at spaces and marks, or "char".

    BLEU counts up to four words in a row. So it is 0 for any translation if no reference has four
    words, as in scripts without spaces between words. Characters are counted there.

    Args:
        references: list of N strings.

    >>> bleu_tokens(["Ein Mann fährt Rad."]), bleu_tokens(["elf", "zwölf"]), bleu_tokens(["三十五"])
    ('13a', 'char', 'char')
    """
    most = max((len(_WORDS_AND_MARKS.findall(text)) for text in references), default=0)
    without = sum(map(has_no_spaces, references))
    return "char" if most < 4 or 2 * without > len(references) else "13a"


class PieceWords:
    """Maps the pieces of a tokenizer to words.

    A piece with a space in front begins a word. A piece of spaces alone belongs to the word after
    it, or at the end of a text to the last word. Spaces alone count as one word.

    Args:
        tokenizer: `Tokenizer`.

    Attributes:
        pieces: list of V str.
        has_letters: bool (V,), whether each piece has a letter or a digit.

    Raises:
        TypeError: the tokenizer is of another kind, whose pieces do not mark spaces.

    Example:

    >>> tokenizer = Tokenizer.train(["a bicycle ."], 300, model_type="char", hard_vocab_limit=False)
    >>> PieceWords(tokenizer).numbers(tokenizer.encode("a bi")).tolist()
    [0, 0, 1, 1, 1]
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer, Tokenizer):
            raise TypeError(
                "Words are found by the spaces in SentencePiece's pieces: pass a Tokenizer, not a "
                f"{type(tokenizer).__name__}."
            )
        self.pieces: list[str] = tokenizer.pieces
        self.has_letters: Array = np.array([any(map(str.isalnum, each)) for each in self.pieces])
        self._starts = tokenizer.word_starts
        self._blank = np.array([not piece.strip(SPACE) for piece in self.pieces])

    def numbers(self, ids: Sequence[int] | Ids) -> Ids:
        """Returns the number of each piece's word, from 0.

        Args:
            ids: integers (T,), without special tokens.
        """
        ids = np.asarray(ids, int)
        blank = self._blank[ids]
        starts = self._starts[ids] | np.r_[True, blank[:-1]][: len(ids)]
        words = np.cumsum(starts & ~blank)
        return np.minimum(words - 1 + blank, max(0, words.max(initial=0) - 1))

    def counts(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """Returns the number of words of each of several rows of ids."""
        return [1 + self.numbers(ids).max(initial=-1) for ids in rows]


class OptionWords:
    """Turns words of an option, such as `terms`, into the ids that outputs have for them.

    A tokenizer writes a space before a word. In a script without spaces between words, a word
    within a text has none. There a term is written without it, and a forbidden word is forbidden
    with and without it.

    Args:
        tokenizer: tokenizer of the target.

    Example:

    >>> tokenizer = Tokenizer.train(["猫と犬"], 300, model_type="char", hard_vocab_limit=False)
    >>> words = OptionWords(tokenizer)
    >>> [[tokenizer.pieces[i] for i in ids] for ids in words("forbidden_words", "犬")]
    [['▁', '犬'], ['犬']]
    """

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        self._encode = tokenizer.encode
        self._pieces: list[str] = tokenizer.pieces
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}

    def __call__(self, name: str, word: str) -> list[list[int]]:
        """Returns the ids of a word, in one form or more.

        Args:
            name: name of the option.
            word: str.

        Raises:
            ValueError: outputs cannot have the word.
        """
        ids = self._encode(word)
        check_pieces(name, word, ids)
        within = self._within_text(ids) if has_no_spaces(word) else []
        if name == "terms":
            return [within or ids]
        return [ids, within] if within not in ([], ids) else [ids]

    def _within_text(self, ids: list[int]) -> list[int]:
        """Returns the ids of a word without the space before it; empty if it cannot be left out."""
        first, *rest = ids
        piece = self._pieces[first].removeprefix(SPACE)
        if not piece:
            return rest
        return [self._ids[piece], *rest] if piece in self._ids else []


def piece_spans(text: str, pieces: Sequence[str]) -> list[tuple[int, int] | None]:
    """Returns the start and end of each piece in a text, in characters.

    Args:
        text: str.
        pieces: sequence of str, as in `Tokenizer.pieces`.

    Returns:
        List with a pair for each piece; `None` for a special token, a space, and a piece that the
        tokenizer writes otherwise than the text.

    Example:

    >>> piece_spans("A bike.", ["▁A", "▁bi", "ke", ".", "</s>"])
    [(0, 1), (2, 4), (4, 6), (6, 7), None]
    """
    spans: list[tuple[int, int] | None] = []
    end = 0
    for piece in pieces:
        piece = piece.replace(SPACE, " ").strip()
        start = text.find(piece, end, end + len(piece) + FAR) if piece else -1
        spans.append((start, start + len(piece)) if start >= 0 else None)
        end = start + len(piece) if start >= 0 else end
    return spans


def parse_alignment(line: str) -> Alignment:
    """Reads one line in Pharaoh format, such as `0-0 1-2`.

    Raises:
        ValueError: the line holds something else.
    """
    pairs = [re.fullmatch(r"(\d+)-(\d+)", pair, re.ASCII) for pair in line.split()]
    if None in pairs:
        raise ValueError(
            f"an alignment has pairs of source and target word such as '0-0 1-2', got {line!r:.100}"
        )
    return tuple((int(pair[1]), int(pair[2])) for pair in pairs)


def read_alignments(alignments: StrPath | Iterable[str]) -> list[Alignment]:
    """Reads a file in Pharaoh format, one line for each pair of sentences.

    Args:
        alignments: str or path-like, or an iterable of lines.

    Raises:
        ValueError: a line holds something else; the message has its number.
    """
    is_path = isinstance(alignments, str | os.PathLike)
    lines, parsed = read_lines(alignments) if is_path else list(alignments), []
    for number, line in enumerate(lines, 1):
        try:
            parsed.append(parse_alignment(line))
        except ValueError as error:
            where = os.fspath(alignments) if is_path else "alignments"
            raise ValueError(f"{where}, line {number}: {error}") from error
    return parsed


def align_words(
    weights: Array, source_words: Ids, target_words: Ids, has_letters: Array
) -> Alignment:
    """Aligns each target word with the source word that its pieces attend to most.

    A punctuation mark behind a word does not count.

    Args:
        weights: (T, S), the attention of target pieces to source pieces.
        source_words: (S,), the word of each source piece, as from `PieceWords`.
        target_words: (T,), the word of each target piece.
        has_letters: bool (T,), whether each target piece has a letter or a digit.

    Returns:
        One pair for each target word; none if the source has no word.

    Example:

    >>> align_words(np.array([[0.1, 0.6, 0.3]]), [0, 1, 1], [0], np.array([True]))
    ((1, 0),)
    """
    if not weights.size:
        return ()
    weights = weights * np.where(has_letters, 1.0, MARK)[:, np.newaxis]
    by_word = _sums(_sums(weights, target_words).T, source_words)  # (source words, target words)
    return tuple((int(source), target) for target, source in enumerate(by_word.argmax(axis=0)))


def piece_weights(pairs: Alignment, source_words: Ids, target_words: Ids) -> Array:
    """Converts an alignment of words to an alignment of pieces, float32 (T, S).

    A target piece is aligned equally with all pieces of all source words of its word. Its row sums
    to 1, or is 0 if the word has no alignment.

    Args:
        pairs: alignment of words. Pairs with a word without pieces are ignored.
        source_words: (S,), the word of each source piece.
        target_words: (T,), the word of each target piece.

    Example:

    >>> piece_weights([(1, 0)], source_words=[0, 1, 1], target_words=[0, 0])
    array([[0. , 0.5, 0.5],
           [0. , 0.5, 0.5]], dtype=float32)
    """
    weights = np.zeros((len(target_words), len(source_words)), np.float32)
    for source, target in pairs:
        weights[np.ix_(np.equal(target_words, target), np.equal(source_words, source))] = 1
    return weights / np.maximum(weights.sum(axis=1, keepdims=True), 1)


def _sums(values: Array, words: Ids) -> Array:
    """Sums the rows (N, ...) of each word."""
    sums = np.zeros((max(words) + 1, *values.shape[1:]))
    np.add.at(sums, words, values)
    return sums
