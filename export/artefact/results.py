"""The result of one input: one class for each kind of task.

Every class has an `error`, which says why there is no result, or is `None`. An input without text
has an empty result and no error. Results that have a text also share these methods:

- `line()`: the best result as one line of text; empty if there is none;
- `ranked()`: pairs of score and text, best first, if there can be several;
- `columns()`: the best result in the columns of a table.

A `Row` is an input as a model reads it. A `ResultMaker` turns the outputs of a model into results.

Shapes: `S` tokens of a text, `D` size of a vector.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from keras_transformer.types import Array


@dataclass(frozen=True)
class Details:
    """The pieces and words of one hypothesis of a search with token scores or alignments.

    Spaces separate words. A word has one or several pieces of the tokenizer. The end token is a
    piece, but not part of a word.

    Attributes:
        pieces: tuple of T str, the pieces of the hypothesis, with the end token if it has one.
        words: tuple of str, the words of the text.
        token_scores: tuple of T float, the log-probability of each piece. Empty unless the search
            has `token_scores`.
        word_scores: tuple of float, one for each word: the sum of its pieces.
        alignment: tuple of pairs of int, each a word of the source and a word of the text, from 0.
            Each word of the text is aligned with the word that its pieces attend to most. Empty
            unless the search has `alignments` and reads text.
        source_pieces: tuple of S str, the pieces of the source, with special tokens.
        weights: float32 array (T, S), the attention of each piece to each piece of the source, or
            `None`.
    """

    pieces: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    token_scores: tuple[float, ...] = ()
    word_scores: tuple[float, ...] = ()
    alignment: tuple[tuple[int, int], ...] = ()
    source_pieces: tuple[str, ...] = ()
    weights: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def pharaoh(self) -> str:
        """The alignment in Pharaoh format, such as `0-0 1-2`: source word, target word."""
        return " ".join(f"{source}-{target}" for source, target in self.alignment)

    def columns(self) -> dict[str, Any]:
        """Returns pieces, words, their scores and the alignment as plain values."""
        names = ("pieces", "token_scores", "words", "word_scores")
        return {**{name: list(getattr(self, name)) for name in names}, "alignment": self.pharaoh}


class Translation(NamedTuple):
    """The result of one line, or of one input of a `Transcriber`.

    Attributes:
        texts: tuple of str, hypotheses, best first. One empty text for a line without text; none
            for a line with an error.
        scores: tuple of float, one for each text: sum of log-probabilities / length divisor. 0 for
            a line without text.
        error: str, why the line has no translation, or None.
        details: tuple of `Details`, one for each text. Empty unless the search has `token_scores`
            or `alignments`.
    """

    texts: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    error: str | None = None
    details: tuple[Details, ...] = ()

    @property
    def text(self) -> str:
        """The best hypothesis, or an empty string."""
        return self.texts[0] if self.texts else ""

    def line(self) -> str:
        """Returns the best hypothesis, or an empty string."""
        return self.text

    def ranked(self) -> Iterable[tuple[float, str]]:
        """Returns pairs of score and text, best first."""
        return zip(self.scores, self.texts, strict=True)

    def columns(self) -> dict[str, Any]:
        """Returns `text` and `score` of the best hypothesis."""
        return _columns(self, self.text, self.scores[0] if self.scores else None)


class Alternative(NamedTuple):
    """One continuation of the beginning of a translation.

    Attributes:
        word: str, the next word, or the completed last word of the beginning. Empty if the text
            ends here.
        score: float, the log-probability of the next token.
        text: str, the whole translation, beginning included.
        text_score: float, the score of the text, as in `Translation`.
    """

    word: str
    score: float
    text: str
    text_score: float


class Generation(NamedTuple):
    """The result of one prompt.

    Attributes:
        texts: tuple of str, continuations, best first, without the prompt. One empty text for a
            prompt without text; none for a prompt with an error.
        scores: tuple of float, one for each text: sum of log-probabilities / length divisor. 0 for
            a prompt without text.
        error: str, why the prompt has no continuation, or None.
        full_texts: tuple of str, prompt and continuation, one for each text. Their tokens are
            decoded together, so that spaces between them are right.
        details: tuple of `Details`, one for each text, as in `Translation`.
        prompt_text: str, the prompt as the model has read it; the full texts begin with it.
        token_ids: tuple of tuples of int, the new tokens of each text, with the end token if it
            has one.
    """

    texts: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    error: str | None = None
    full_texts: tuple[str, ...] = ()
    details: tuple[Details, ...] = ()
    prompt_text: str = ""
    token_ids: tuple[tuple[int, ...], ...] = ()

    @property
    def full_text(self) -> str:
        """The prompt with its best continuation, or an empty string."""
        return self.full_texts[0] if self.full_texts else ""

    def with_prompt(self) -> "Generation":
        """Returns the same result, with the prompt before each text."""
        return self._replace(texts=self.full_texts)

    @property
    def text(self) -> str:
        """The best continuation, or an empty string."""
        return self.texts[0] if self.texts else ""

    def line(self) -> str:
        """Returns the best continuation, or an empty string."""
        return self.text

    def ranked(self) -> Iterable[tuple[float, str]]:
        """Returns pairs of score and text, best first."""
        return zip(self.scores, self.texts, strict=True)

    def columns(self) -> dict[str, Any]:
        """Returns `text` and `score` of the best continuation."""
        return _columns(self, self.text, self.scores[0] if self.scores else None)


class Labels(NamedTuple):
    """The classes of an input, most likely first.

    Attributes:
        labels: tuple of str, all labels.
        probabilities: tuple of float, one for each.
        error: str or None.
    """

    labels: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    error: str | None = None

    @property
    def label(self) -> str:
        """The most likely label, or an empty string."""
        return self.labels[0] if self.labels else ""

    @property
    def probability(self) -> float:
        """The probability of the most likely label, or 0."""
        return self.probabilities[0] if self.probabilities else 0.0

    def line(self) -> str:
        """Returns the most likely label, TAB, its probability; or an empty string."""
        return f"{self.label}\t{self.probability:.4f}" if self.labels else ""

    def ranked(self) -> Iterable[tuple[float, str]]:
        """Returns pairs of probability and label, best first."""
        return zip(self.probabilities, self.labels, strict=True)

    def columns(self) -> dict[str, Any]:
        """Returns `text`, the most likely label, and `score`, its probability."""
        return _columns(self, self.label, self.probability)


class Tags(NamedTuple):
    """The most likely tag of each word.

    Attributes:
        words: tuple of str, as they were passed, or split at white space; empty for a model that
            reads arrays.
        tags: tuple of str, one for each word or step.
        probabilities: tuple of float, one for each tag.
        error: str or None.
    """

    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    error: str | None = None

    def line(self) -> str:
        """Returns words and tags, as `word/tag word/tag`; tags alone if there are no words."""
        if not self.words:
            return " ".join(self.tags)
        return " ".join(map("/".join, zip(self.words, self.tags, strict=True)))

    def columns(self) -> dict[str, Any]:
        """Returns `text`, words and tags as in a line, without a `score`."""
        return _columns(self, self.line(), None)


class Answer(NamedTuple):
    """The part of a passage that answers a question.

    Attributes:
        text: str, `passage[start:end]`, without white space at its ends.
        start, end: int, places in the passage, in characters.
        score: float, the probability of the first token times the probability of the last one.
        error: str or None.
    """

    text: str = ""
    start: int = 0
    end: int = 0
    score: float = 0.0
    error: str | None = None

    def line(self) -> str:
        """Returns the text of the answer."""
        return self.text

    def columns(self) -> dict[str, Any]:
        """Returns `text` and `score` of the answer."""
        return _columns(self, self.text, self.score)


class Vector(NamedTuple):
    """The vector of an input.

    Attributes:
        vector: float32 array (D,), or (S, D), one for each token, the end token included. None for
            an input without text, or with an error.
        error: str or None.
    """

    vector: np.ndarray | None = None
    error: str | None = None

    def line(self) -> str:
        """Returns the vector as JSON, or an empty string."""
        return "" if self.vector is None else as_json(self.vector)

    def columns(self) -> dict[str, Any]:
        """Returns `vector`, a list of numbers, or of lists of numbers."""
        return {"vector": None if self.vector is None else self.vector.tolist()}


class Outputs(NamedTuple):
    """The outputs of a model without a head.

    Attributes:
        arrays: dict from output names to arrays, without batch axis. Empty for an input without
            text, or with an error.
        error: str or None.
    """

    arrays: dict[str, np.ndarray] = {}
    error: str | None = None

    def line(self) -> str:
        """Returns the arrays as JSON, or an empty string."""
        return as_json(self.arrays) if self.arrays else ""


class Results(NamedTuple):
    """The results of a model with several heads.

    Attributes:
        results: dict from a head's name to its result, such as `Labels` or `Tags`. Empty for an
            input without text, or with an error.
        error: str or None.
    """

    results: dict[str, Any] = {}
    error: str | None = None

    def line(self) -> str:
        """Returns the line of each result by name, as JSON; or an empty string."""
        return as_json({k: v.line() for k, v in self.results.items()}) if self.results else ""

    def columns(self) -> dict[str, Any]:
        """Returns `text`, the results as in a line, without a `score`."""
        return _columns(self, self.line(), None)


Result: TypeAlias = Translation | Generation | Labels | Tags | Answer | Vector | Outputs | Results


def as_json(value: Any) -> str:
    """Returns `value` as one line of JSON; arrays become lists, and `Details` objects.

    Numbers of arrays that are not finite become `null`, because JSON has none.
    """
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: np.ndarray | Details) -> Any:
    if isinstance(value, Details):
        return value.columns()
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        value = np.where(np.isfinite(value), value, None)
    return value.tolist()


def fields(result: Any) -> dict[str, Any]:
    """Returns all fields of a result by name, for `as_json`; several heads give a dict each."""
    found = result._asdict()
    if isinstance(result, Results):
        found["results"] = {
            name: {key: value for key, value in part._asdict().items() if key != "error"}
            for name, part in result.results.items()
        }
    return found


def _columns(result: Result, text: str, score: float | None) -> dict[str, Any]:
    if result.error is not None:
        return {"text": None, "score": None}
    return {"text": text, "score": score}


class Passage(NamedTuple):
    """A text that contains an answer.

    Attributes:
        text: str.
        spans: list of pairs of int, the characters of each of its tokens.
        tokens: slice, its tokens in the row.
    """

    text: str
    spans: list[tuple[int, int]]
    tokens: slice


class Row(NamedTuple):
    """One input as the model reads it.

    Attributes:
        inputs: dict from input names to lists of ids, or to arrays without batch axis.
        size: int, the length that counts in a batch: the first axis of its longest input.
        group: tuple, shapes of the inputs that are not padded. Only rows of equal groups share a
            batch.
        length: int, tokens of the row that the outputs cover; None for arrays.
        words: tuple of str, if the head tags words.
        first_pieces: list of int, the place of each word's first token; or all.
        passage: Passage, if the head marks an answer.
    """

    inputs: dict[str, Any]
    size: int
    group: tuple[tuple[int, ...], ...] = ()
    length: int | None = None
    words: tuple[str, ...] = ()
    first_pieces: list[int] | slice = slice(None)
    passage: Passage | None = None


class ResultMaker(Protocol):
    """Makes results of one class from the outputs of a model."""

    @property
    def empty(self) -> Any:
        """The result of an input without text."""

    def result(self, row: Row, outputs: dict[str, Array]) -> Result:
        """Returns the result of a row, from its part of the outputs, or raises `ValueError`."""
