"""The text of a line, as training, the searches of text and the runtime read it. No framework."""

# The limit of a line without its end. A file without line ends would otherwise fill the memory.
MOST_LINE_BYTES = 2**24


def is_too_long(line: bytes) -> bool:
    """Returns whether a line has more than `MOST_LINE_BYTES`, without the line end."""
    return len(line.removesuffix(b"\n").removesuffix(b"\r")) > MOST_LINE_BYTES


def check_length(line: str | bytes) -> None:
    """Raises `ValueError` for a line of more than `MOST_LINE_BYTES`, without the line end.

    A string counts as UTF-8.
    """
    if 4 * len(line) <= MOST_LINE_BYTES:  # a character has at most 4 bytes
        return
    if is_too_long(line.encode("utf-8", "replace") if isinstance(line, str) else line):
        raise ValueError(f"more than {MOST_LINE_BYTES} bytes in one line; split it")


def text_of(line: str | bytes) -> str:
    """Returns the text of a line, without its line end. The text ends at a NUL character.

    Raises:
        TypeError: the line is neither str nor bytes.
        ValueError: the line is not Unicode text, or too long.
    """
    if not isinstance(line, (str, bytes)):
        raise TypeError(f"A line must be str or bytes, got {type(line).__name__}: {line!r:.100}.")
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
