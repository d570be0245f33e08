"""Shortens values in error messages, and finds the name that was meant."""

import difflib
import reprlib
from collections.abc import Iterable

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100


def shorten(value: object) -> str:
    """Returns the `repr` of a value, cut to 100 characters, for an error message."""
    try:
        return _REPR.repr(value)[:100]
    except ValueError:  # Python does not write an integer of more than 4,300 digits
        return "a number of thousands of digits"


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the question whether the most similar name was meant, or nothing, for an error."""
    close = difflib.get_close_matches(name[:100], list(known), 1)
    return f" Did you mean {close[0]}?" if close else ""
