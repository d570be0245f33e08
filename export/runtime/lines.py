"""Reads and checks lines of text, and writes results.

All commands and services use these functions, so they treat unusual lines alike.
"""

import codecs
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from keras_transformer.export.artefact.results import Translation, as_json, fields
from keras_transformer.export.runtime.batching import explained
from keras_transformer.text.lines import MOST_LINE_BYTES, is_too_long


def iter_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a file. `check_length` refuses a line that is too long.

    All lines that are too long share one replacement, so that they do not fill the memory.
    """
    # Two bytes for the line end.
    for line in iter(functools.partial(file.readline, MOST_LINE_BYTES + 2), b""):
        if len(line) > MOST_LINE_BYTES and is_too_long(line):
            while line and not line.endswith(b"\n"):
                line = file.readline(2**16)
            line = _too_long_line()
        yield line


@functools.cache
def _too_long_line() -> bytes:
    return bytes(MOST_LINE_BYTES + 1)


def without_mark(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the lines of a file, without the byte order mark with which Windows begins it."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix(codecs.BOM_UTF8)


class Format(NamedTuple):
    """The options of the command line for writing results."""

    json: bool = False
    n_best: int | None = None
    with_prompt: bool = False
    alignments: bool = False


def format_result(number: int, result: Any, options: Format) -> bytes:
    """Returns the output for one line of input: one line, or one per hypothesis.

    Args:
        number: int, number of the line, from 1.
        result: of any class in `export.artefact.results`.
        options: a `Format`.
    """
    if options.with_prompt and not options.json:
        result = result.with_prompt()
    if options.json:
        found = fields(result)
        if not found.get("details", True):  # written only if the search has them
            del found["details"]
        rows = [as_json(found)]
    elif options.n_best is None:
        rows = [result.line()]
    else:
        pairs = list(result.ranked())[: options.n_best]
        rows = [f"{number}\t{score:.4f}\t{text}" for score, text in pairs]
    if options.alignments and not options.json:
        # A line without text, or with an error, has no details.
        found = [details.pharaoh for details in result.details] or [""] * len(rows)
        rows = [f"{row}\t{pairs}" for row, pairs in zip(rows, found, strict=False)]
    return "".join(in_one_line(row) + "\n" for row in rows).encode("utf-8")


def stream_line(
    runner: Any, line: bytes, target: BinaryIO, options: Mapping[str, Any]
) -> Translation:
    """Writes the text of a line, part by part, without a newline at its end.

    Args:
        runner: `Translator` or `Generator`.
        line: the input.
        target: binary file.
        options: dict, options of `runner.stream`.

    Returns:
        A `Translation` with the text or the error.
    """
    text = ""
    try:
        for part in runner.stream(line, **options):
            target.write(in_one_line(text + part).removeprefix(in_one_line(text)).encode())
            target.flush()
            text += part
    except ValueError as error:
        return Translation(error=str(error))
    except KeyboardInterrupt:
        target.write(b"\n")
        target.flush()
        raise
    except Exception as error:  # onnxruntime's errors have no common base below Exception
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        return Translation(error=explained(error))
    return Translation((text,))


def in_one_line(text: str) -> str:
    """Replaces newlines, which a byte-level model can write, because they would shift lines."""
    return re.sub(r"[\r\n]+", " ", text)
