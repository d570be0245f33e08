"""Output files: one for each part, with a row for each line of input.

| column | value |
| --- | --- |
| `file` | the input file, as the plan names it |
| `line` | number in that file, from 1 |
| `source` | the source text; only with `with_source` |
| `text` | the best text, label, answer, or words with their tags; null with an error |
| `score` | of the text, as the runtime gives it; null if there is none |
| `vector` | list of numbers, instead of `text` and `score`, if the task is "embed" |
| `error` | why there is no result, or null |

The format "text" has only the texts, one per line, an empty one for an error. The errors are in
another file, whose name ends with `.errors.tsv`.
"""

import gzip
import json
import os
import pathlib
import re
from typing import Any, TypeAlias

from keras_transformer.files import whole_file

# Ending of a part's name, by its format.
ENDINGS = {"parquet": ".parquet", "jsonl": ".jsonl.gz", "text": ".txt.gz"}
ERRORS_ENDING = ".errors.tsv"
Row: TypeAlias = dict[str, Any]


def row(file: str, line: int, source: str | None, result: Any) -> Row:
    """Returns a row, a dict from columns to values.

    Args:
        file: str; line: int.
        source: str, or None to leave the column out.
        result: of any class of the runtime for texts.
    """
    made = {"file": _unicode(file), "line": line}
    if source is not None:
        made["source"] = _unicode(source)
    return {**made, **result.columns(), "error": result.error}


def _unicode(text: str) -> str:
    """Replaces each half of a surrogate pair, which no format can hold, by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def write(path: pathlib.Path, rows: list[Row], format: str, per_token: bool = False) -> None:
    """Writes the rows of a part: all of them, or none.

    Args:
        path: pathlib.Path, whose name ends as `ENDINGS` says.
        rows: list of dicts, from `row`.
        format: "parquet", "jsonl" or "text".
        per_token: bool, whether a vector is a list of vectors, one for each token.
    """
    if format == "text":
        _write_errors(path, rows)
    with whole_file(path, sync=True) as aside:
        if format == "parquet":
            _write_parquet(aside, rows, per_token)
        else:
            lines = map(_text if format == "text" else _json, rows)
            with gzip.GzipFile(aside, "wb", 6, mtime=0) as file:  # the same bytes at each run
                file.write("".join(lines).encode("utf-8"))


def _text(row: Row) -> str:
    if "vector" in row:
        return ("" if row["vector"] is None else json.dumps(row["vector"])) + "\n"
    return _one_line(row["text"] or "") + "\n"


def _json(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _one_line(text: str) -> str:
    """Replaces newlines, which a model with byte tokens can write, by spaces."""
    return re.sub(r"[\r\n]+", " ", text)


def _write_errors(path: pathlib.Path, rows: list[Row]) -> None:
    """Writes the errors of a part to another file, before the part itself."""
    lines = [
        f"{row['file']}\t{row['line']}\t{_one_line(row['error'])}\n"
        for row in rows
        if row["error"] is not None
    ]
    if lines:
        name = path.name.removesuffix(ENDINGS["text"]) + ERRORS_ENDING
        with whole_file(path.with_name(name), sync=True) as aside:
            aside.write_text("".join(lines), "utf-8", newline="\n")


def _write_parquet(path: pathlib.Path, rows: list[Row], per_token: bool) -> None:
    import pyarrow
    from pyarrow import parquet

    numbers = pyarrow.list_(pyarrow.float32())
    types = {
        "file": pyarrow.string(),
        "line": pyarrow.int64(),
        "source": pyarrow.string(),
        "text": pyarrow.string(),
        "score": pyarrow.float32(),
        "vector": pyarrow.list_(numbers) if per_token else numbers,
        "error": pyarrow.string(),
    }
    schema = pyarrow.schema([(name, types[name]) for name in rows[0]])
    table = pyarrow.Table.from_pylist(rows, schema)
    parquet.write_table(table, os.fspath(path), compression="zstd")
