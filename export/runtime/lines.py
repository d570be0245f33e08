"""Lines of text: what a line may be, what is refused, and the token ids of the good ones.

A bad line never stops the others: it gets a reason in the place of ids. The objects that serve
artefacts share these functions, so that they treat odd lines alike.
"""

import functools
import itertools
import sys
from collections.abc import Iterator
from typing import BinaryIO

# The limit of a line without its end. A file without line ends would otherwise fill the memory.
MOST_LINE_BYTES = 2**24


def checked_lines(lines, call="translate([line])"):
    """Iterator over `lines`. Raises `TypeError` for one string, and at an item that is no string.

    `call` shows how to pass one line.
    """
    if isinstance(lines, (str, bytes)):
        raise TypeError(
            f"`lines` must be an iterable of strings, got one {type(lines).__name__}. "
            f"Pass a list: {call}."
        )
    return (_checked_line(number, line) for number, line in enumerate(lines, 1))


def _checked_line(number, line):
    if not isinstance(line, (str, bytes)):
        raise TypeError(
            f"`lines` must hold str or bytes, got {type(line).__name__} as line {number}."
        )
    return line


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a file. `check_length` refuses a line that is too long.

    All lines that are too long share one stand-in, so that they do not fill the memory.
    """
    # Two bytes for the line end.
    for line in iter(functools.partial(file.readline, MOST_LINE_BYTES + 2), b""):
        if len(line) > MOST_LINE_BYTES and _is_too_long(line):
            while line and not line.endswith(b"\n"):
                line = file.readline(2**16)
            line = _too_long_line()
        yield line


@functools.cache
def _too_long_line() -> bytes:
    return bytes(MOST_LINE_BYTES + 1)


def _is_too_long(line: bytes) -> bool:
    return len(line.removesuffix(b"\n").removesuffix(b"\r")) > MOST_LINE_BYTES


def check_length(line: str | bytes) -> None:
    """Raises `ValueError` for a line of more than `MOST_LINE_BYTES`, without the line end.

    A string counts as UTF-8.
    """
    if 4 * len(line) <= MOST_LINE_BYTES:  # a character has at most 4 bytes
        return
    if _is_too_long(line.encode("utf-8", "replace") if isinstance(line, str) else line):
        raise ValueError(f"more than {MOST_LINE_BYTES} bytes in one line; split it")


def windows(lines, size):
    """Yields `lines` as lists of `size`, and reads no line before its list is asked for."""
    size = min(size, sys.maxsize)  # more cannot be counted
    while window := list(itertools.islice(lines, size)):
        yield window


def text_of(line):
    """The text of a line, without its line ending; it ends at a NUL character.

    Raises:
        ValueError: the line is not Unicode text, or too long.
    """
    check_length(line)
    if isinstance(line, bytes):
        try:
            line = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 at byte {error.start + 1} ({error.reason})") from error
    try:
        line.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"half a surrogate pair at character {error.start + 1}") from error
    return line.removesuffix("\n").removesuffix("\r").partition("\0")[0]


def too_long(row, most_tokens):
    """Why a row of more ids than `most_tokens` is refused."""
    return (
        f"{len(row)} tokens, special ones included, where this artefact takes at most "
        f"{most_tokens}; split the line into sentences"
    )


def encode_lines(lines, tokenizer, most_tokens, *, begin=(), end=()):
    """Token ids of lines, and reasons for the lines that have none.

    Args:
        lines: list of str or bytes.
        tokenizer: Tokenizer.
        most_tokens: int, a line with more tokens is refused.
        begin, end: sequences of int, ids that every row starts and ends with.

    Returns:
        Two dicts, both from the index of a line: to its ids, a list of int, and to the reason why
        it is refused, str. A line without text, or with nothing that the tokenizer knows, is in
        neither.
    """
    texts, ids, refused = {}, {}, {}
    for index, line in enumerate(lines):
        try:
            text = text_of(line)
        except ValueError as error:
            refused[index] = str(error)
        else:
            if text.strip():
                texts[index] = text
    encoded = tokenizer.encode(list(texts.values()))  # one call: many lines share threads
    for index, tokens in zip(texts, encoded, strict=True):
        row = [*begin, *tokens, *end]
        if len(row) > most_tokens:
            refused[index] = too_long(row, most_tokens)
        elif tokens:
            ids[index] = row
    return ids, refused
