"""The result of one input: one class for each kind of task.

Every class has an `error`, which says why there is no result, or is `None`. An input without text
has an empty result and no error. Results that have a text also share these methods:

- `line()`: the best result as one line of text; empty if there is none;
- `ranked()`: pairs of score and text, best first, if there can be several;
- `columns()`: the best result in the columns of a table.

Shapes: `S` tokens of a text, `D` size of a vector.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np


class Translation(NamedTuple):
    """The result of one line, or of one input of a `Transcriber`.

    Attributes:
        texts: tuple of str, hypotheses, best first. One empty text for a line without text; none
            for a line with an error.
        scores: tuple of float, one for each text: sum of log-probabilities / length penalty. 0 for
            a line without text.
        error: str, why the line has no translation, or None.
    """

    texts: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    error: str | None = None

    @property
    def text(self) -> str:
        """The best hypothesis, or an empty string."""
        return self.texts[0] if self.texts else ""

    def line(self) -> str:
        """The best hypothesis, or an empty string."""
        return self.text

    def ranked(self) -> Iterable[tuple[float, str]]:
        """Pairs of score and text, best first."""
        return zip(self.scores, self.texts, strict=True)

    def columns(self) -> dict[str, Any]:
        """`text` and `score` of the best hypothesis."""
        return _columns(self, self.text, self.scores[0] if self.scores else None)


class Generation(NamedTuple):
    """The result of one prompt.

    Attributes:
        texts: tuple of str, continuations, best first, without the prompt. One empty text for a
            prompt without text; none for a prompt with an error.
        scores: tuple of float, one for each text: sum of log-probabilities / length penalty. 0 for
            a prompt without text.
        error: str, why the prompt has no continuation, or None.
        full_texts: tuple of str, prompt and continuation, one for each text. Their tokens are
            decoded together, so that spaces between them are right.
    """

    texts: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    error: str | None = None
    full_texts: tuple[str, ...] = ()

    @property
    def full_text(self) -> str:
        """The prompt with its best continuation, or an empty string."""
        return self.full_texts[0] if self.full_texts else ""

    def with_prompt(self) -> "Generation":
        """The same result, with the prompt in front of each text."""
        return self._replace(texts=self.full_texts)

    @property
    def text(self) -> str:
        """The best continuation, or an empty string."""
        return self.texts[0] if self.texts else ""

    def line(self) -> str:
        """The best continuation, or an empty string."""
        return self.text

    def ranked(self) -> Iterable[tuple[float, str]]:
        """Pairs of score and text, best first."""
        return zip(self.scores, self.texts, strict=True)

    def columns(self) -> dict[str, Any]:
        """`text` and `score` of the best continuation."""
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
        """The most likely label, TAB, its probability; or an empty string."""
        return f"{self.label}\t{self.probability:.4f}" if self.labels else ""

    def ranked(self) -> Iterable[tuple[float, str]]:
        """Pairs of probability and label, best first."""
        return zip(self.probabilities, self.labels, strict=True)

    def columns(self) -> dict[str, Any]:
        """`text`, the most likely label, and `score`, its probability."""
        return _columns(self, self.label, self.probability)


class Tags(NamedTuple):
    """The most likely tag of each word.

    Attributes:
        words: tuple of str, as they were passed, or split at white space.
        tags: tuple of str, one for each word.
        probabilities: tuple of float, one for each tag.
        error: str or None.
    """

    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    error: str | None = None

    def line(self) -> str:
        """Words and tags, as `word/tag word/tag`."""
        return " ".join(map("/".join, zip(self.words, self.tags, strict=True)))

    def columns(self) -> dict[str, Any]:
        """`text`, words and tags as in a line, without a `score`."""
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
        """The text of the answer."""
        return self.text

    def columns(self) -> dict[str, Any]:
        """`text` and `score` of the answer."""
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
        """The vector as JSON, or an empty string."""
        return "" if self.vector is None else as_json(self.vector)

    def columns(self) -> dict[str, Any]:
        """`vector`, a list of numbers, or of lists of numbers."""
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
        """The arrays as JSON, or an empty string."""
        return as_json(self.arrays) if self.arrays else ""


Result: TypeAlias = Translation | Generation | Labels | Tags | Answer | Vector | Outputs


def as_json(value: Any) -> str:
    """`value` as one line of JSON; arrays become lists."""
    return json.dumps(value, ensure_ascii=False, default=np.ndarray.tolist)


def _columns(result: Result, text: str, score: float | None) -> dict[str, Any]:
    if result.error is not None:
        return {"text": None, "score": None}
    return {"text": text, "score": score}
