"""Rows: inputs as a model reads them, and `ResultMaker`, which turns their outputs into results."""

from typing import Any, NamedTuple, Protocol

from keras_transformer.export.artefact.results import Result
from keras_transformer.types import Array


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
