"""Input files: lines of text, JSON lines and Parquet; divided into parts, and read by part.

| name ends with | an item is |
| --- | --- |
| `.parquet` | a row's string in the column |
| `.jsonl`, `.ndjson` | the string under the column's name, in one JSON object per line |
| anything else | a line of text |

Capital letters in the names count as small ones. Text and JSON lines may be packed: `.gz` after the
rest of the name. Only a newline ends a line.
"""

import contextlib
import functools
import gzip
import io
import itertools
import json
import os
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from keras_transformer.export.runtime.lines import iter_lines, without_mark
from keras_transformer.text.lines import check_length
from keras_transformer.types import StrPath


def kind_of(path: StrPath) -> str:
    """Returns the kind of a file by its name: "text", "jsonl" or "parquet"."""
    suffixes = pathlib.Path(os.fspath(path).lower()).suffixes
    suffixes = [suffix for suffix in suffixes if suffix != ".gz"]
    last = suffixes[-1] if suffixes else ""
    return {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}.get(last, "text")


def cut(path: StrPath, part_lines: int, column: str) -> tuple[int, list[int]]:
    """Divides a file into parts of equally many lines; the last may have fewer.

    Args:
        path: of a file.
        part_lines: int.
        column: str, the column that will be read.

    Returns:
        The number of lines, and a list with the place where each part starts: a row of a Parquet
        file, else a byte, counted after unpacking.

    Raises:
        ValueError: the file's format does not match its name, or it lacks the column.
    """
    if kind_of(path) == "parquet":
        lines = _parquet(path, column).metadata.num_rows
        return lines, list(range(0, lines, part_lines))
    lines, starts = 0, []
    with _named(path), _opened(path) as file:
        while True:
            start = file.tell()
            found = sum(1 for _ in itertools.islice(iter_lines(file), part_lines))
            if not found:
                return lines, starts
            starts.append(start)
            lines += found


def read(
    path: StrPath, start: int, lines: int, column: str
) -> tuple[list[str | bytes], dict[int, str]]:
    """Reads the items of a part.

    A packed file stays open, so that a process that reads its parts in order unpacks it once.

    Args:
        path, column: as `cut` takes them.
        start, lines: the place of the part, and its number of lines.

    Returns:
        A list of str or bytes, and a dict from the places of unreadable items to the reasons. The
        list has an empty string there.

    Raises:
        ValueError: the file holds fewer lines.
    """
    kind = kind_of(path)
    if kind == "parquet":
        try:
            found = _rows(_parquet(path, column), start, lines, column)
        except OSError as error:  # PyArrow does not name the file
            raise ValueError(f"{path}, rows from {start} on, cannot be read: {error}") from error
    elif _is_packed(path):
        try:
            with _named(path):
                found = _lines(_kept(path, os.stat(path).st_mtime_ns), start, lines)
        except Exception:  # of any kind: the file that is kept open is not used again
            _kept.cache_clear()
            raise
    else:
        with _opened(path) as file:
            found = _lines(file, start, lines)
    if len(found) < lines:
        raise ValueError(
            f"{path} has {len(found)} lines from {start} on where there were {lines}: it was cut "
            "off or replaced since the job was planned."
        )
    if kind != "parquet" and start == 0:
        found = list(without_mark(found))
    items: list[str | bytes] = []
    refused: dict[int, str] = {}
    for place, line in enumerate(found):
        try:
            if kind != "parquet":
                check_length(line)
            value = _field(line, column) if kind == "jsonl" else line
            if not isinstance(value, (str, bytes)):
                raise ValueError(f"{column!r} holds {type(value).__name__}, not a string")
            items.append(value)
        except ValueError as error:
            items.append("")
            refused[place] = str(error)
    return items, refused


def _is_packed(path: StrPath) -> bool:
    return pathlib.Path(path).suffix.lower() == ".gz"


def _opened(path: StrPath) -> BinaryIO:
    """Opens a file, unpacked, with `tell` and `seek`."""
    if not _is_packed(path):
        with open(path, "rb") as file:
            start = file.read(4)
        for first, ending in ((b"\x1f\x8b", ".gz"), (b"PAR1", ".parquet")):
            if start.startswith(first):
                raise ValueError(f"{path} is no text: rename it, so that it ends with {ending}.")
        return open(path, "rb")
    if not os.path.getsize(path):
        raise ValueError(f"{path} is not a whole gzip file: it has 0 bytes.")
    return io.BufferedReader(gzip.GzipFile(path), 2**18)  # without a buffer it reads lines slowly


@functools.lru_cache(maxsize=1)
def _kept(path: StrPath, modified_ns: int) -> BinaryIO:
    """Keeps the last packed file open, because seeking backwards unpacks it from its start."""
    return _opened(path)


def _lines(file: BinaryIO, start: int, count: int) -> list[bytes]:
    file.seek(start)
    return list(itertools.islice(iter_lines(file), count))


@contextlib.contextmanager
def _named(path: StrPath) -> Iterator[None]:
    """Names a packed file in the errors of its reading."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error


def _parquet(path: StrPath, column: str) -> Any:
    """Opens a Parquet file that has the column."""
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error
    names = file.schema_arrow.names
    if column not in names:
        raise ValueError(f"{path} has the columns {names}, not {column!r}. Pass one as `column`.")
    return file


def _rows(file: Any, start: int, lines: int, column: str) -> list[Any]:
    """Returns values of a column, and reads only the row groups that hold them."""
    values: list[Any] = []
    first = 0
    for group in range(file.num_row_groups):
        after = first + file.metadata.row_group(group).num_rows
        if after > start and first < start + lines:
            read = file.read_row_group(group, columns=[column]).column(0)
            skipped = max(0, start - first)
            values += read.slice(skipped, start + lines - first - skipped).to_pylist()
        first = after
    return values


def _field(line: bytes, column: str) -> Any:
    """Returns the value of a column in a line of JSON."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(row, dict) or column not in row:
        raise ValueError(f"no JSON object with the field {column!r}")
    return row[column]
