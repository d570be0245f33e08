"""Shortens values in error messages."""

import reprlib

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100


def shorten(value: object) -> str:
    """Returns the `repr` of a value, cut to 100 characters, for an error message."""
    try:
        return _REPR.repr(value)[:100]
    except ValueError:  # Python does not write an integer of more than 4,300 digits
        return "a number of thousands of digits"
