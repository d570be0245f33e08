"""Examples of any kind: columns of rows, labels, and the function that batches them.

Shapes: N examples of the data set, B batch.
"""

import functools
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias

import numpy as np

from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID
from keras_transformer.types import AnyTokenizer, Array, Ids

PADDING_LABEL = -1  # label of rows and positions that losses and metrics leave out

_CHUNK = 65536  # lines tokenised together: bounds the memory of Python's lists of ids


@dataclass(frozen=True, eq=False)
class Rows:
    """N rows of ids or of vectors, of different length, as parts of one array.

    Args:
        values: array that contains all rows.
        starts: ints (N,), where the rows begin in `values`.
        lengths: ints (N,).
        texts: the N texts that the rows were made from, for `draw`.
        draw: function from texts and a `numpy.random.Generator` to other rows of the same texts. If
            given, the rows differ from epoch to epoch.
    """

    values: Array
    starts: Ids
    lengths: Ids
    texts: Sequence[Any] = ()
    draw: Callable[[Sequence[Any], np.random.Generator], list[Array]] | None = None

    @classmethod
    def of(cls, rows: Sequence[Array], **options: Any) -> Self:
        """Joins a list of arrays that agree in all axes but the first."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.concatenate(rows) if rows else np.zeros(0, np.int32)
        return cls(values, np.cumsum(lengths) - lengths, lengths, **options)

    def take(self, indices: Ids) -> list[Array]:
        """Returns some of the rows."""
        places = zip(self.starts[indices], self.lengths[indices], strict=True)
        return [self.values[start : start + length] for start, length in places]

    def keep(self, indices: Ids) -> Self:
        """Returns these rows only."""
        texts = [self.texts[i] for i in indices] if self.texts else ()
        places = {"starts": self.starts[indices], "lengths": self.lengths[indices]}
        return replace(self, texts=texts, **places)

    def drawn(self, rng: np.random.Generator, longest: int) -> "Rows":
        """Returns the rows of an epoch. The usual row replaces a drawn one that is too long."""
        if self.draw is None:
            return self
        drawn = self.draw(self.texts, rng)
        usual = self.take(np.arange(len(drawn)))
        pairs = zip(drawn, usual, strict=True)
        return Rows.of([row if len(row) <= longest else other for row, other in pairs])


@dataclass(frozen=True, eq=False)
class Examples:
    """N examples: a row of each column, and perhaps a label.

    Args:
        unit: what one example is called in messages, such as "pair".
        columns: dictionary from a name, such as "source", to `Rows`.
        empty: bools (N,), whether an example is empty and must be left out.
        inputs: the field that is the model's input, or a dictionary from names to fields.
        targets: the same of the labels.
        labels: array (N, ...) for fields, or `None`.
        limits: greatest lengths of single columns, by name. Defaults to none.
    """

    unit: str
    columns: dict[str, Rows]
    empty: Array
    inputs: "Fields"
    targets: "Fields"
    labels: Array | None = None
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def lengths(self) -> Ids:
        """Greatest lengths of the rows of each example, ints (N,)."""
        return np.max([column.lengths for column in self.columns.values()], axis=0)

    @property
    def duplicates(self) -> int:
        """Number of examples that are equal to an earlier one."""
        parts = self.take(np.arange(len(self.empty)))
        if self.labels is not None:
            parts.append(list(self.labels))
        hashes = [[hash(value.tobytes()) for value in part] for part in parts]
        return len(self.empty) - len(set(zip(*hashes, strict=True)))

    def fitting(self, longest: int) -> Ids:
        """Returns the indices of the examples that are neither empty nor too long."""
        fits = ~self.empty & (self.lengths <= longest)
        for name, limit in self.limits.items():
            fits &= self.columns[name].lengths <= limit
        return np.flatnonzero(fits)

    def keep(self, indices: Ids) -> Self:
        """Returns these examples only."""
        columns = {name: column.keep(indices) for name, column in self.columns.items()}
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, columns=columns, empty=self.empty[indices], labels=labels)

    def drawn(self, seed: int, epoch: int, longest: int) -> Self:
        """Returns the examples of an epoch, each of at most the length `longest`."""
        rng = np.random.default_rng([seed, epoch, 1])  # another one draws the order of the epoch
        columns = {name: column.drawn(rng, longest) for name, column in self.columns.items()}
        return replace(self, columns=columns)

    def take(self, indices: Ids) -> list[list[Array]]:
        """Returns the rows of some examples, column by column."""
        return [column.take(indices) for column in self.columns.values()]

    def batch(self, indices: Ids, size: int, length: int | None) -> Any:
        """Makes a batch of some examples: all kinds of batches are made here.

        Args:
            indices: at most B indices.
            size: B. Missing rows consist of padding.
            length: length of the rows. `None` takes the length of the longest row.

        Returns:
            Inputs and labels, as NumPy arrays.
        """
        return tuple(
            {name: make(self, indices, size, length) for name, make in fields.items()}
            if isinstance(fields, dict)
            else fields(self, indices, size, length)
            for fields in (self.inputs, self.targets)
        )


# A field of a batch: it makes an array from examples and the arguments of `Examples.batch`.
Field: TypeAlias = Callable[[Examples, Ids, int, int | None], Array]
Fields: TypeAlias = Field | dict[str, Field]


@dataclass(frozen=True)
class Padded:
    """A field with the rows of a column, padded on the right: ids (B, S), or vectors (B, S, F).

    Args:
        column: name of the column.
        part: function from a row of the column to the row of the field. Defaults to `None`: the
            row itself.
        fill: the value of padding. Defaults to the padding id, 0.
        may_be_shorter: whether a static length is bounded by the longest row of the column.
            Defaults to `False`.
    """

    column: str
    part: Callable[[Array], Array] | None = None
    fill: int = PAD_ID
    may_be_shorter: bool = False

    def __call__(self, examples: Examples, indices: Ids, size: int, length: int | None) -> Array:
        column = examples.columns[self.column]
        rows = column.take(indices)
        if self.part is not None:
            rows = [self.part(row) for row in rows]
        if self.may_be_shorter and length is not None:
            length = min(length, int(column.lengths.max()))
        return pad_rows(rows, size, length, self.fill)


def begun(row: Ids) -> Ids:
    """Replaces the end token of a row by a begin token before it: the input of a decoder.

    Position i of the input then predicts token i + 1 of the row (teacher forcing).
    """
    return np.concatenate([[BEGIN_ID], row[:-1]])


def row_labels(examples: Examples, indices: Ids, size: int, length: int | None) -> Ids:
    """A field with the label of each row, int32 (B,); -1 for rows of padding."""
    return pad_labels(examples.labels[indices], size)


def text_rows(tokenizer: AnyTokenizer, lines: list[str], sampling_alpha: float | None) -> Rows:
    """Makes rows of ids that end with the end token.

    Args:
        tokenizer: `Tokenizer`.
        lines: list of N strings.
        sampling_alpha: float or `None`. If given, each epoch draws other segmentations.
    """
    rows = encode_rows(tokenizer, lines)
    if sampling_alpha is None:
        return Rows.of(rows)
    draw = functools.partial(encode_rows, tokenizer, alpha=sampling_alpha)
    return Rows.of(rows, texts=lines, draw=draw)


def encode_rows(
    tokenizer: AnyTokenizer,
    lines: Sequence[str],
    rng: np.random.Generator | None = None,
    alpha: float | None = None,
) -> list[Ids]:
    """Encodes lines to arrays of ids, each with the end token.

    Args:
        tokenizer: `Tokenizer`.
        lines: sequence of N strings.
        rng: generator of the seeds of sampled segmentations; `None` takes the best ones.
        alpha: see `Tokenizer.encode`; with `rng` only.
    """
    rows = []
    for begin in range(0, len(lines), _CHUNK):
        options = {}
        if rng is not None:
            options = {"sample": True, "alpha": alpha, "seed": int(rng.integers(2**32))}
        for row in tokenizer.encode(lines[begin : begin + _CHUNK], **options):
            row.append(END_ID)
            rows.append(np.array(row, np.int32))
    return rows


def are_blank(lines: Sequence[str]) -> Array:
    """Returns whether lines hold no text, bools (N,)."""
    return np.array([not line.strip() for line in lines], bool)


def refuse_without(needed: str, **values: Any) -> None:
    """Raises `ValueError` for a value that is not `None`: it has no effect without `needed`."""
    for name, value in values.items():
        if value is not None:
            raise ValueError(
                f"{name}={value!r} has no effect without {needed}. Pass both, or neither."
            )


def label_ids(
    labels: Sequence[Any], label_names: Sequence[Any] | None = None
) -> tuple[Ids, list[str]]:
    """Turns labels into class ids.

    Args:
        labels: sequence of N labels, all str or all int.
        label_names: sequence of str, the names in the order of their ids. Defaults to `None`: the
            names that occur, sorted; for ints "0", "1", ... up to the largest.

    Returns:
        int32 (N,), and the list of names.

    Raises:
        TypeError: a label is neither str nor int, or both occur.
        ValueError: a label is unknown, or a name occurs twice.
    """
    labels = list(labels)
    names = None if label_names is None else [str(name) for name in label_names]
    if names is not None and len(set(names)) < len(names):
        raise ValueError(f"label_names must differ, got {names}.")
    kind = str if labels and isinstance(labels[0], str) else int | np.integer
    for number, label in enumerate(labels):
        if not isinstance(label, kind):
            raise TypeError(
                f"labels must be all names (str) or all class numbers (int), got {label!r} of type "
                f"{type(label).__name__} as label {number}."
            )
    if names is None:
        numbers = range(max(labels, default=-1) + 1) if kind is not str else sorted(set(labels))
        names = [str(name) for name in numbers]
    known = {name: i for i, name in enumerate(names)} if kind is str else range(len(names))
    for number, label in enumerate(labels):
        if label not in known:
            raise ValueError(
                f"label {number} is {label!r}, but the labels are {names}. Pass label_names= with "
                "all of them, the same for training and validation."
            )
    return np.array([known[label] for label in labels], np.int32), names


def pad_labels(labels: Array, size: int) -> Ids:
    """Pads one label per row to int32 (B,) with `PADDING_LABEL`."""
    padded = np.full(size, PADDING_LABEL, np.int32)
    padded[: len(labels)] = labels
    return padded


def check_counts_agree(**lists: Sized) -> None:
    """Raises `ValueError` unless lists that belong together have the same length."""
    counts = {name: len(values) for name, values in lists.items()}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"There must be equal numbers of each, but there are {found}.")
