"""What a model without a search reads: rows of ids and arrays, made of what users have.

A reader turns an item, as `Predictor` lists them, into a `Row`. `ArrayReader` reads arrays; the
readers in `text_rows` read texts and words.

Shapes: `B` rows of a batch.
"""

import json
import math
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.export.artefact.manifest import shown
from keras_transformer.export.runtime.lines import text_of
from keras_transformer.padding import pad_rows


class Passage(NamedTuple):
    """A text with an answer in it.

    Attributes:
        text: str.
        spans: list of pairs of int, the characters of each of its tokens.
        tokens: slice, its tokens in the row.
    """

    text: str
    spans: list[tuple[int, int]]
    tokens: slice


class Row(NamedTuple):
    """One input of a model.

    Attributes:
        inputs: dict from input names to lists of ids, or to arrays without batch axis.
        length: int, tokens of the row that outputs speak of; None for arrays.
        words: tuple of str, where tags are asked for.
        first_pieces: list of int, the token of each word that its tag stands at; or all.
        passage: Passage, where an answer is asked for.
    """

    inputs: dict
    length: int | None = None
    words: tuple[str, ...] = ()
    first_pieces: list[int] | slice = slice(None)
    passage: Passage | None = None


class ArrayReader:
    """Reads arrays, by input names where there are several; a string is JSON.

    Args:
        inputs: list of entries, from `inputs` of a manifest.
        most: int, longest axis of free size.
    """

    def __init__(self, inputs: list[dict], most: int):
        self._inputs, self._most = {value["name"]: value for value in inputs}, most

    def read(self, item):
        """The `Row` of an item; None for an empty string.

        Raises:
            TypeError: it is nothing that this model reads.
            ValueError: it is refused; the message says why.
        """
        if isinstance(item, (str, bytes)):
            text = text_of(item)
            if not text.strip():
                return None
            item = parsed(text)
        if not isinstance(item, dict):
            item = {next(iter(self._inputs)): item} if len(self._inputs) == 1 else {}
        return Row(arrays(item, self._inputs, self._most))


def parsed(text):
    """The value of a line of JSON; raises `ValueError`, also for an infinite number."""
    text = text.removeprefix("\ufeff")  # a file may start with it
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shown(text)} is no finite number")
    return number


def arrays(item: dict, inputs: dict[str, dict], most: int) -> dict[str, np.ndarray]:
    """The arrays of an item as the model takes them.

    Args:
        item: dict from input names to arrays, or to nested lists.
        inputs: dict from input names to their entries in the manifest.
        most: int, longest axis of free size.

    Raises:
        ValueError: other names, shapes, dtypes or lengths, or numbers that the dtype cannot hold.
    """
    if set(item) != set(inputs):
        raise ValueError(
            f"the model reads a dict of {sorted(inputs)}, and got {shown(sorted(map(str, item)))}"
        )
    return {name: _as_array(item[name], value, most) for name, value in inputs.items()}


def _as_array(item: Any, value: dict, most: int) -> np.ndarray:
    """An array without batch axis, of the dtype and the sizes in a manifest's entry."""
    array, (_, *axes), dtype = np.asarray(item), value["axes"], value["dtype"]
    if array.dtype == object and array.size and all(type(number) is int for number in array.flat):
        array = _large_integers(array, value)
    fits = array.ndim == len(axes) and array.size > 0
    fits = fits and all(
        isinstance(axis, str) or axis == size for axis, size in zip(axes, array.shape, strict=True)
    )
    if not (fits and np.can_cast(array.dtype, dtype, "same_kind")):
        raise ValueError(
            f"{value['name']!r} has the shape {shown(array.shape)} and dtype {array.dtype}, where "
            f"the model takes {axes} and {dtype}"
        )
    free = [size for axis, size in zip(axes, array.shape, strict=True) if isinstance(axis, str)]
    if max(free, default=0) > most:
        raise ValueError(
            f"{value['name']!r} has the shape {array.shape}, where this artefact takes lengths up "
            f"to {most}; split the input, or export the model with a larger max_source_length"
        )
    if np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    held = np.isfinite(cast) == np.isfinite(array) if cast.dtype.kind == "f" else cast == array
    if not held.all():
        raise _not_held(array[~held][0].item(), value)
    return cast


def _large_integers(array: np.ndarray, value: dict) -> np.ndarray:
    """Integers of more than 64 bits, which NumPy leaves as objects, as float64."""
    largest = max(array.flat, key=abs)
    if np.dtype(value["dtype"]).kind != "f":
        raise _not_held(largest, value)
    try:
        return array.astype(np.float64)
    except OverflowError as error:
        raise _not_held(largest, value) from error


def _not_held(number: Any, value: dict) -> ValueError:
    return ValueError(
        f"{value['name']!r} holds {shown(number)}, which {value['dtype']} cannot hold"
    )


def stacked(rows, inputs):
    """What `session.run` takes for a list of rows: dict from input names to arrays (B, ...).

    `inputs` is that of the manifest.
    """
    return {
        value["name"]: _stacked([row.inputs[value["name"]] for row in rows], value)
        for value in inputs
    }


def _stacked(parts, value):
    if not isinstance(parts[0], list):
        return np.stack(parts)
    size = value["axes"][1]  # an axis of fixed size is filled with padding
    ids = pad_rows(parts, length=size if isinstance(size, int) else None)
    return ids.astype(value["dtype"], copy=False)


def checked_inputs(inputs):
    """The inputs; raises `TypeError` for one that was passed alone."""
    if isinstance(inputs, (str, bytes, dict)):
        raise TypeError(
            f"`inputs` must be an iterable of inputs, got one {type(inputs).__name__}. "
            "Pass a list: predict([input])."
        )
    return inputs


def read_items(reader, items):
    """Rows of items, and reasons for those that have none: two dicts from places in the list.

    An item without text is in neither.

    Raises:
        TypeError: an item that is no string is nothing that the model reads.
    """
    rows, refused = {}, {}
    for index, item in enumerate(items):
        try:
            row = reader.read(item)
        except (TypeError, ValueError) as error:
            if isinstance(error, TypeError) and not isinstance(item, (str, bytes)):
                raise  # a mistake of the caller; a line only holds the wrong JSON
            refused[index] = str(error)
        else:
            if row is not None:
                rows[index] = row
    return rows, refused


def row_length(row):
    """The length of a row in its batch: the first axis of its longest input."""
    return max(_sizes(part)[0] for part in row.inputs.values())


def row_group(row, padded):
    """The shapes of the inputs without padding, in the order of their names.

    `padded`: whether rows of ids share a batch with padding.
    """
    return tuple(
        _sizes(part)
        for _, part in sorted(row.inputs.items())
        if not (padded and isinstance(part, list))
    )


def _sizes(part):
    """The shape of an input of a row; (1,) for a number."""
    return (len(part),) if isinstance(part, list) else part.shape or (1,)
