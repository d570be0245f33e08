"""Output files: one a part, with a row for each line of input.

| column | value |
| --- | --- |
| `file` | the input file, as the plan names it |
| `line` | number in that file, from 1 |
| `source` | what was read; only where asked for |
| `text` | the best text, label, answer, or words with their tags; null with an error |
| `score` | of the text, as the runtime gives it; null where there is none |
| `vector` | list of numbers, in place of `text` and `score`, where the task is "embed" |
| `error` | why there is no answer, or null |

The format "text" has the texts alone, one a line, an empty one for an error; errors stand beside
it, in a file that ends with `.errors.tsv`.
"""

import gzip
import json
import os
import re

from keras_transformer.files import whole_file

# How the name of a part ends, by its format.
ENDINGS = {"parquet": ".parquet", "jsonl": ".jsonl.gz", "text": ".txt.gz"}
ERRORS_ENDING = ".errors.tsv"


def row(file, line, source, result):
    """One row, a dict from columns to values.

    Args:
        file: str; line: int.
        source: str, or None to leave the column out.
        result: of any kind that the runtime has for texts.
    """
    made = {"file": _unicode(file), "line": line}
    if source is not None:
        made["source"] = _unicode(source)
    return {**made, **result.columns(), "error": result.error}


def _unicode(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which no format can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def write(path, rows, format, per_token=False):
    """Writes the rows of a part: whole, or not at all.

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


def _text(row):
    if "vector" in row:
        return ("" if row["vector"] is None else json.dumps(row["vector"])) + "\n"
    return _one_line(row["text"] or "") + "\n"


def _json(row):
    return json.dumps(row, ensure_ascii=False) + "\n"


def _one_line(text):
    """A model that knows bytes can write a newline, which would shift all the lines after it."""
    return re.sub(r"[\r\n]+", " ", text)


def _write_errors(path, rows):
    """The errors of a part in a file beside it, which is there first: a part is done at once."""
    lines = [
        f"{row['file']}\t{row['line']}\t{_one_line(row['error'])}\n"
        for row in rows
        if row["error"] is not None
    ]
    if lines:
        name = path.name.removesuffix(ENDINGS["text"]) + ERRORS_ENDING
        with whole_file(path.with_name(name), sync=True) as aside:
            aside.write_text("".join(lines), "utf-8", newline="\n")


def _write_parquet(path, rows, per_token):
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
