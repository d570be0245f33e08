"""Lines and words of text: read from files, checked, encoded word by word."""

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from keras_transformer.special_ids import BEGIN_ID, UNKNOWN_ID
from keras_transformer.types import AnyTokenizer, StrPath

# Lines that are checked for names of files: a longer list is text.
FEW_FILES = 16


def read_lines(path: StrPath, undo_bpe: bool = False) -> list[str]:
    """Reads a UTF-8 text file, plain or gzip (recognised by its first bytes), as a list of lines.

    Lines end at "\\n" or "\\r\\n" only. `str.splitlines` also cuts at U+2028 and U+0085, which
    would misalign parallel files. A byte order mark at the start is dropped.

    Args:
        path: str or path-like.
        undo_bpe: bool, whether to join the pieces of subword-nmt (`"@@ "`).

    Returns:
        List of str, without line ends.

    Raises:
        ValueError: the text is not UTF-8 (the message has file and line), or the gzip file is
            broken.
        FileNotFoundError: the file does not exist.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            error.errno, f"There is no such text file in {os.getcwd()}", path
        ) from error
    if content.startswith(b"\x1f\x8b"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: broken gzip file ({error}). Fetch it again.") from error
    rows = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if rows[-1] == b"":
        rows.pop()  # the end of the last line, not another line
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


def read_parallel(
    source: StrPath | Iterable[str], target: StrPath | Iterable[str], undo_bpe: bool = False
) -> tuple[list[str], list[str]]:
    """Reads two files whose lines correspond, for training, validation or BLEU.

    Args:
        source, target: str or path-like; or iterables of strings, which are only checked.
        undo_bpe: bool, whether to join the pieces of subword-nmt (`"@@ "`).

    Returns:
        Two lists of str of the same length, empty lines included.

    Raises:
        TypeError: an iterable does not hold strings.
        ValueError: the line counts differ, or see `read_lines`.
    """
    names, sides = [], []
    for name, side in (("source", source), ("target", target)):
        if isinstance(side, str | os.PathLike):
            names.append(os.fspath(side))
            sides.append(read_lines(side, undo_bpe))
            continue
        names.append(name)
        lines = list(side)
        refuse_paths(lines, name)
        for number, line in enumerate(lines, 1):
            if not isinstance(line, str):
                raise TypeError(
                    f"`{name}` must be a path or a sequence of strings, got {type(line).__name__} "
                    f"as line {number}."
                )
        sides.append([without_bpe(line) for line in lines] if undo_bpe else lines)
    counts = [len(side) for side in sides]
    if counts[0] != counts[1]:
        raise ValueError(
            f"line counts differ: {names[0]} has {counts[0]}, {names[1]} has {counts[1]}. "
            f"Line {min(counts) + 1} of {names[counts[0] < counts[1]]} has no counterpart; the "
            "files fell out of step there or before."
        )
    return sides[0], sides[1]


def refuse_paths(lines: Sequence[Any], name: str) -> None:
    """Raises `ValueError` if the lines of a training text are the names of existing files."""
    if 0 < len(lines) <= FEW_FILES and all(
        isinstance(line, str | os.PathLike) and os.path.isfile(line) for line in lines
    ):
        raise ValueError(
            f"`{name}` must hold text, but {os.fspath(lines[0])!r} is the name of a file. Read it "
            "with keras_transformer.read_lines(path)."
        )


def without_bpe(line: str) -> str:
    """Joins the pieces of subword-nmt: `"a gir@@ affe"` becomes `"a giraffe"`."""
    return re.sub("@@( |$)", "", line)


def checked_strings(lines: Iterable[str], name: str) -> list[str]:
    """Checks `lines`, an argument called `name`, and returns them as a list.

    Raises:
        TypeError: `lines` is one string, or holds something that is not a string.
        ValueError: a string holds half a surrogate pair, which has no UTF-8 form.
    """
    if isinstance(lines, str | bytes):
        raise TypeError(
            f"`{name}` must be an iterable of strings, got one {type(lines).__name__}. Pass a list "
            "of sentences; `keras_transformer.read_lines(path)` reads them from a file."
        )
    lines = list(lines)
    for number, line in enumerate(lines):
        if not isinstance(line, str):
            raise TypeError(
                f"`{name}` must hold strings, got {type(line).__name__} as item {number}. "
                "Decode bytes with `.decode('utf-8')`."
            )
        try:
            line.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"item {number} of `{name}` holds half a surrogate pair at character "
                f"{error.start}, which has no UTF-8 form. Read files with "
                "`keras_transformer.read_lines`, which decodes strictly."
            ) from error
    return lines


def encode_words(tokenizer: AnyTokenizer, words: Iterable[str]) -> tuple[list[int], list[int]]:
    """Encodes each word of a sentence separately, for training and serving of tags.

    Args:
        tokenizer: `Tokenizer`.
        words: list of str.

    Returns:
        ids: list of int, the pieces of all words in order, without end token. A word without pieces
            (an empty one) has the unknown id. A begin token, which BERT's tokenizer puts before
            each text, stands before the first word only.
        first: list of int, for each word the index of its first piece in `ids`. The word's tag
            belongs to this piece.

    Raises:
        TypeError: `words` is one string, or holds something that is not a string.

    Example:

    >>> tokenizer = Tokenizer.train(["a red hat"], 300, hard_vocab_limit=False)
    >>> ids, first = encode_words(tokenizer, ["a", "", "hat"])
    >>> [tokenizer.decode(ids[i:j]) for i, j in zip(first, [*first[1:], len(ids)])]
    ['a', ' ⁇ ', 'hat']
    """
    return join_words(tokenizer.encode(checked_strings(words, "words")))


def join_words(pieces: Iterable[list[int]]) -> tuple[list[int], list[int]]:
    """Joins the ids of words to a sentence. The result is as in `encode_words`."""
    ids, first = [], []
    for word in pieces:
        if word[:1] == [BEGIN_ID]:
            ids, word = ids or [BEGIN_ID], word[1:]
        first.append(len(ids))
        ids += word or [UNKNOWN_ID]
    return ids, first
