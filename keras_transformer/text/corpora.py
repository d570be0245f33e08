"""Lines of text files, and parallel text, checked."""

import gzip
import os
import re
import zlib


def read_lines(path, undo_bpe=False):
    """Reads a UTF-8 text file, plain or gzip (told by its first bytes), as a list of lines.

    Lines end at "\\n" or "\\r\\n" and nowhere else: characters such as U+2028 or U+0085, at which
    `str.splitlines` also cuts, stay within their line, or parallel files would fall out of step. A
    byte order mark at the start is left out.

    Args:
        path: str or path-like.
        undo_bpe: bool, join pieces that subword-nmt has cut (`"@@ "`).

    Returns:
        List of str, without line ends.

    Raises:
        ValueError: for text that is not UTF-8, with its file and line, and for broken gzip files.
        FileNotFoundError: if there is no such file.
    """
    path = os.fspath(path)
    with open(path, "rb") as file:
        content = file.read()
    if content.startswith(b"\x1f\x8b"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: broken gzip file ({error}). Fetch it again.") from error
    content = content.removeprefix(b"\xef\xbb\xbf")
    rows = content.split(b"\n")
    if rows[-1] == b"":
        rows.pop()  # the last line's end is no further line
    lines = []
    for number, row in enumerate(rows, 1):
        try:
            line = row.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, line {number}: not UTF-8 at byte {error.start} of the line "
                f"({error.reason}). Convert the file, for example with `iconv -f latin1 -t utf-8`."
            ) from error
        lines.append(without_bpe(line) if undo_bpe else line)
    return lines


def read_parallel(source, target, undo_bpe=False):
    """Reads two files whose lines belong together, for training, validation or BLEU.

    Args:
        source, target: str or path-like; or sequences of strings, which are checked only.
        undo_bpe: bool, join pieces that subword-nmt has cut (`"@@ "`).

    Returns:
        Two lists of str of one length, empty lines included.

    Raises:
        TypeError: if a sequence is no sequence of strings.
        ValueError: if the line counts differ, or as `read_lines` does.
    """
    names, sides = [], []
    for name, side in (("source", source), ("target", target)):
        if isinstance(side, (str, os.PathLike)):
            names.append(os.fspath(side))
            sides.append(read_lines(side, undo_bpe))
            continue
        names.append(name)
        sides.append([without_bpe(line) if undo_bpe else line for line in side])
        for number, line in enumerate(sides[-1], 1):
            if not isinstance(line, str):
                raise TypeError(
                    f"`{name}` must be a path or a sequence of strings, got {type(line).__name__} "
                    f"as line {number}."
                )
    lengths = [len(side) for side in sides]
    if lengths[0] != lengths[1]:
        shorter, longer = (0, 1) if lengths[0] < lengths[1] else (1, 0)
        raise ValueError(
            f"line counts differ: {names[0]} has {lengths[0]}, {names[1]} has {lengths[1]}. "
            f"Line {lengths[shorter] + 1} of {names[longer]} has no counterpart; the files fell "
            "out of step there or before."
        )
    return sides[0], sides[1]


def without_bpe(line):
    """Joins what subword-nmt has cut: `"a gir@@ affe"` becomes `"a giraffe"`."""
    return re.sub("@@( |$)", "", line)
