"""The options of an artefact: entries of its manifest, with the bounds of their values.

Every reader of options checks them with these bounds: the runtime, its command line, the service,
and the package for browsers.
"""

import math
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple

from keras_transformer.call_options import MOST_SEED, check_number
from keras_transformer.export.artefact.signature import SEED


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
        """Raises `TypeError` or `ValueError` unless a value is a number in the range.

        Example:

        >>> Option("max_length", "int32", 1, lowest=1, highest=99).check(0)
        Traceback (most recent call last):
        ValueError: max_length must be at least 1 and at most 99, got 0.
        """
        kind = numbers.Integral if self.dtype.startswith("int") else numbers.Real
        check_number(value, self.name, kind, self.lowest, self.highest)


SEED_OPTION = Option(SEED, "int32", 0, None, 0, MOST_SEED)


def options_of(manifest: Mapping[str, Any]) -> dict[str, Option]:
    """Returns the options of a manifest by name."""
    return {entry["name"]: _option(entry) for entry in manifest.get("options", [])}


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
