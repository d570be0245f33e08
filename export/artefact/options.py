"""The options of an artefact: entries of its manifest, with the bounds of their values.

Every reader of options checks them with these bounds: the runtime, its command line, the service,
and the package for browsers.
"""

import math
import numbers
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.call_options import MOST_SEED, check_number
from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.artefact.signature import SEED
from keras_transformer.types import Array


class Option(NamedTuple):
    """An option of a call.

    Attributes:
        name: str.
        dtype: str, of the input. "object" for a dict of texts.
        rank: int. 0: one number for all lines. 1: one number for each line, or for all. 2: a text
            of each line. 3: texts of each line.
        default: the exported value.
        lowest, highest: float, the range of its numbers.
    """

    name: str
    dtype: str
    rank: int
    default: Any = None
    lowest: float = -math.inf
    highest: float = math.inf

    def check(self, value: Any) -> None:
        """Raises `TypeError` or `ValueError` unless a value fits a line.

        A number must be in the range; a text must be a str; texts must be str, or a list of str.

        Example:

        >>> Option("max_length", "int32", 1, lowest=1, highest=99).check(0)
        Traceback (most recent call last):
        ValueError: max_length must be at least 1 and at most 99, got 0.
        """
        if self.rank < 2:
            kind = numbers.Integral if self.dtype.startswith("int") else numbers.Real
            check_number(value, self.name, kind, self.lowest, self.highest)
            return
        is_list = self.rank > 2 and isinstance(value, (list, tuple, set, np.ndarray))
        if not all(isinstance(text, str) for text in (value if is_list else [value])):
            kind = "a text" if self.rank == 2 else "a list of texts"
            raise TypeError(f"{self.name} must be {kind}, got {shorten(value)}.")

    def differs(self, values: Any) -> bool:
        """Returns whether values are one for each line, not one for all lines."""
        return self.rank > 0 and _depth(values) > max(self.rank - 2, 0)


def _depth(value: Any) -> float:
    """Returns the depth of nested lists: 0 for a number or text, the maximum for an iterator."""
    if isinstance(value, Iterator):
        return math.inf
    depth = 0
    while isinstance(value, (list, tuple, np.ndarray)) and getattr(value, "shape", True):
        depth += 1
        value = value[0] if len(value) else None
    return depth


SEED_OPTION = Option(SEED, "int32", 0, None, 0, MOST_SEED)


def exported_seed(manifest: Mapping[str, Any]) -> int | None:
    """Returns the seed of an exported search; `None` if each call draws one."""
    return ((manifest.get("search") or {}).get("config") or {}).get("seed")


def options_of(manifest: Mapping[str, Any]) -> dict[str, Option]:
    """Returns the options of a manifest by name."""
    return {entry["name"]: _option(entry) for entry in manifest.get("options", [])}


def default_inputs(manifest: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the inputs of the model for the options that a call leaves out."""
    found = {}
    for entry in manifest.get("options", []):
        array = np.array(entry["default"], entry["dtype"])
        missing = len(entry["axes"]) - array.ndim  # lists end at an axis of size 0
        found[entry["name"]] = array.reshape((*array.shape, *[0] * missing))
    return found


def _option(entry: Mapping[str, Any]) -> Option:
    lowest, highest = entry["lowest"], entry["highest"]
    return Option(
        entry["name"],
        entry["dtype"],
        len(entry["axes"]),
        entry["default"],
        -math.inf if lowest is None else lowest,
        math.inf if highest is None else highest,
    )
