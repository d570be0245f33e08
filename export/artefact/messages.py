"""Error messages: short values, the name that was meant, a command's options for arguments."""

import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping

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
    close = difflib.get_close_matches(name[:100], list(known), 1, 0.7)
    return f" Did you mean {close[0]}?" if close else ""


# An argument in a message: `name`, name=value, a bare name of several words, or a name that "must
# be" something.
_VALUE = r"\w+\([^)]*\)|\[[^\]]*\]|\"[^\"]*\"|'[^']*'|[\w.-]*\w"
_BARE = r"[a-z]+(?:_[a-z]+)+|^[a-z]+(?= must be )"
_ARGUMENT = re.compile(rf"`(\w+)`|(?<![\w.`-])(\w+)=({_VALUE})|(?<![\w.`/-])({_BARE})\b")
_MARKS = re.compile(r"[\[\],'\"]")  # around the values of lists and strings
# Arguments that a message may advise, and that a command may lack.
_ADVISED = ("head", "samples", "search", "shortlist", "target_tokenizer", "tokenizer")


def flags_of(values: Iterable[str], **others: str) -> dict[str, str]:
    """Returns the flags of parsed values, and of arguments with another name, for `in_shell`."""
    return {name: f"--{name}".replace("_", "-") for name in values} | others


def in_shell(message: str, flags: Mapping[str, str]) -> str:
    """Returns an error message with a command's options instead of Python's arguments.

    A last sentence lists the arguments that the command lacks.

    Args:
        message: str, of a Python function.
        flags: dict from the name of an argument to the command's flag.

    Example:

    >>> in_shell("Pass a larger `tolerance`, or samples=[x].", {"tolerance": "--tolerance"})
    'Pass a larger --tolerance, or samples=[x]. In Python only: samples.'
    """
    lacking = []

    def option(match: re.Match[str]) -> str:
        quoted, assigned, value, bare = match.groups()
        name = quoted or assigned or bare
        if name not in flags or "(" in (value or ""):
            if name in _ADVISED:
                lacking.append(name)
            return match[0]
        if value in (None, "True") or flags[name].startswith("--no-"):
            return flags[name]
        if value == "False":
            return f"no {flags[name]}"
        return f"{flags[name]} {re.sub(_MARKS, '', value)}"

    changed = _ARGUMENT.sub(option, message)
    return f"{changed} In Python only: {', '.join(dict.fromkeys(lacking))}." if lacking else changed
