"""What `Predictor` returns for an input: one class for each kind of head, and one without.

Each has an `error`: why there is no result, or None. An input without text has an empty result and
no error. Shapes: `S` tokens of a text, `D` size of a vector.
"""

from typing import NamedTuple

import numpy as np


class Labels(NamedTuple):
    """The classes of an input, likeliest first.

    Attributes:
        labels: tuple of str, all labels.
        probabilities: tuple of float, one for each.
        error: str or None.
    """

    labels: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    error: str | None = None

    @property
    def label(self):
        """The likeliest label, or an empty string."""
        return self.labels[0] if self.labels else ""

    @property
    def probability(self):
        """The probability of the likeliest label, or 0."""
        return self.probabilities[0] if self.probabilities else 0.0


class Tags(NamedTuple):
    """The likeliest tag of each word.

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


class Answer(NamedTuple):
    """The part of a passage that answers a question.

    Attributes:
        text: str, `passage[start:end]`, without white space at its ends.
        start, end: int, places in the passage, in characters.
        score: float, the probability of the first token times that of the last one.
        error: str or None.
    """

    text: str = ""
    start: int = 0
    end: int = 0
    score: float = 0.0
    error: str | None = None


class Vector(NamedTuple):
    """What a model makes of an input.

    Attributes:
        vector: float32 array (D,), or (S, D), one for each token, the end token included. None for
            an input without text, or with an error.
        error: str or None.
    """

    vector: np.ndarray | None = None
    error: str | None = None


class Outputs(NamedTuple):
    """The outputs of a model without a head.

    Attributes:
        arrays: dict from output names to arrays, without batch axis. Empty for an input without
            text, or with an error.
        error: str or None.
    """

    arrays: dict[str, np.ndarray] = {}
    error: str | None = None
