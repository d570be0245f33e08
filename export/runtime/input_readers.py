"""Turns arrays into rows of a model, and rows into batches. `text_readers` reads text.

A reader turns a list of items into `Row`s, and returns a reason for each refused item.

Shapes: `B` rows of a batch.
"""

import json
import math
from typing import Any, Protocol

import numpy as np

from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.artefact.results import Row
from keras_transformer.padding import pad_rows
from keras_transformer.text.lines import text_of
from keras_transformer.types import Array


class InputReader(Protocol):
    """Reads the items that users pass.

    Attributes:
        alone: types of an item that is one input and not a list of inputs.
    """

    alone: tuple[type, ...]

    def read(self, items: list[Any]) -> tuple[dict[int, Row], dict[int, str]]:
        """Returns two dicts from places in `items`: to rows, and to reasons for a refusal.

        An item without text is in neither.

        Raises:
            TypeError: an item is of a type that the model does not read.
        """


class ItemReader:
    """The base of readers that read one item after the other.

    A subclass defines `read_item(item)`, which returns a `Row`, or `None` for an item without text.
    It raises `TypeError` for a type that this model does not read, and `ValueError`, with the
    reason, for an item that is refused.

    Args:
        padded: bool, whether rows of ids share a batch with padding.
    """

    alone: tuple[type, ...] = (str, bytes, dict)

    def __init__(self, padded: bool):
        self._padded = padded

    def read(self, items: list[Any]) -> tuple[dict[int, Row], dict[int, str]]:
        rows, refused = {}, {}
        for index, item in enumerate(items):
            try:
                row = self.read_item(item)
            except (TypeError, ValueError) as error:
                if isinstance(error, TypeError) and not isinstance(item, (str, bytes)):
                    raise  # the caller's mistake; a line only has the wrong JSON
                refused[index] = str(error)
            else:
                if row is not None:
                    rows[index] = row
        return rows, refused

    def read_item(self, item: Any) -> Row | None:
        raise NotImplementedError

    def _row(self, inputs: dict[str, Any], length: int | None = None, **fields: Any) -> Row:
        """Returns the `Row` of inputs by name; `fields` are its other attributes."""
        shapes = {name: _shape(part) for name, part in inputs.items()}
        size = max(shape[0] for shape in shapes.values())
        group = tuple(
            shape
            for name, shape in sorted(shapes.items())
            if not (self._padded and isinstance(inputs[name], list))
        )
        return Row(inputs, size, group, length, **fields)


def _shape(part: list[int] | Array) -> tuple[int, ...]:
    """Returns the shape of a row's input; (1,) for a number."""
    return (len(part),) if isinstance(part, list) else part.shape or (1,)


class ArrayReader(ItemReader):
    """Reads an array, or a dict of arrays by input name. A string is JSON.

    Args:
        inputs: list of entries, from `inputs` of a manifest.
        most: int, longest axis of free size.
    """

    def __init__(self, inputs: list[dict[str, Any]], most: int):
        super().__init__(padded=False)
        self._inputs, self._most = {value["name"]: value for value in inputs}, most

    def read_item(self, item: Any) -> Row | None:
        if isinstance(item, (str, bytes)):
            text = text_of(item)
            if not text.strip():
                return None
            item = parse_json(text)
        if not isinstance(item, dict):
            item = {next(iter(self._inputs)): item} if len(self._inputs) == 1 else {}
        return self._row(arrays(item, self._inputs, self._most))


def parse_json(text: str) -> Any:
    """Parses a line of JSON; raises `ValueError` for errors and infinite numbers."""
    text = text.removeprefix("\ufeff")  # a file may start with it
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shorten(text)} is not a finite number")
    return number


def arrays(item: dict[str, Any], inputs: dict[str, dict[str, Any]], most: int) -> dict[str, Array]:
    """Converts an item to the arrays that the model takes.

    Args:
        item: dict from input names to arrays, or to nested lists.
        inputs: dict from input names to their entries in the manifest.
        most: int, longest axis of free size.

    Raises:
        ValueError: wrong names, shapes, dtypes or lengths, or numbers that the dtype cannot hold.
    """
    check_names(item, list(inputs))
    return {name: _as_array(item[name], value, most) for name, value in inputs.items()}


def check_names(item: dict[str, Any], names: list[str]) -> None:
    """Raises `ValueError` unless a dict has exactly these names."""
    if set(item) != set(names):
        raise ValueError(
            f"the model reads a dict of {sorted(names)}, and got {shorten(sorted(map(str, item)))}"
        )


def _as_array(item: Any, value: dict[str, Any], most: int) -> Array:
    """Returns an array without batch axis, with the dtype and sizes of a manifest's entry."""
    array, (_, *axes), dtype = np.asarray(item), value["axes"], value["dtype"]
    if array.dtype == object and array.size and all(type(number) is int for number in array.flat):
        array = _large_integers(array, value)
    free = [size for axis, size in zip(axes, array.shape, strict=False) if isinstance(axis, str)]
    fixed = [size for axis, size in zip(axes, array.shape, strict=False) if axis == size]
    fits = array.size and len(axes) == array.ndim == len(free) + len(fixed)
    if not (fits and np.can_cast(array.dtype, dtype, "same_kind")):
        raise ValueError(
            f"{value['name']!r} has the shape {shorten(array.shape)} and dtype {array.dtype}, "
            f"where the model takes {axes} and {dtype}"
        )
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


def _large_integers(array: Array, value: dict[str, Any]) -> Array:
    """Converts integers of more than 64 bits, which NumPy keeps as objects, to float64."""
    largest = max(array.flat, key=abs)
    if np.dtype(value["dtype"]).kind != "f":
        raise _not_held(largest, value)
    try:
        return array.astype(np.float64)
    except OverflowError as error:
        raise _not_held(largest, value) from error


def _not_held(number: Any, value: dict[str, Any]) -> ValueError:
    return ValueError(
        f"{value['name']!r} holds {shorten(number)}, which {value['dtype']} cannot hold"
    )


def stack_rows(rows: list[Row], inputs: list[dict[str, Any]]) -> dict[str, Array]:
    """Returns a batch, a dict from input names to arrays (B, ...).

    Args:
        rows: list of rows.
        inputs: list of entries, from `inputs` of a manifest.
    """
    batch = {}
    for value in inputs:
        parts = [row.inputs[value["name"]] for row in rows]
        if isinstance(parts[0], list):
            size = value["axes"][1]  # padding fills an axis of fixed size
            ids = pad_rows(parts, length=size if isinstance(size, int) else None)
            batch[value["name"]] = ids.astype(value["dtype"], copy=False)
        else:
            batch[value["name"]] = np.stack(parts)
    return batch
