"""Input files are cut into parts, and the parts together are the file."""

import gzip
import itertools
import json
import os
import random
import tracemalloc

import numpy as np
import pyarrow
import pytest
from helpers import archives
from pyarrow import parquet

from keras_transformer.export.archive.inputs import cut, kind_of, read
from keras_transformer.export.runtime import lines
from keras_transformer.text import lines as text_lines
from keras_transformer.text.lines import MOST_LINE_BYTES

TEXTS = archives.lines(23)


def write(folder, kind, texts=TEXTS):
    """Writes a file whose name ends with `kind`."""
    path = folder / f"in.2{kind}"
    if kind == ".parquet":
        table = pyarrow.table({"other": list(range(len(texts))), "text": texts})
        parquet.write_table(table, path, row_group_size=5)
        return path
    as_json = "json" in kind or "nd" in kind
    made = "".join((json.dumps({"text": t}) if as_json else t) + "\n" for t in texts).encode()
    path.write_bytes(gzip.compress(made) if kind.endswith(".gz") else made)
    return path


def shown(items):
    return [item.decode().rstrip("\n") if isinstance(item, bytes) else item for item in items]


@pytest.mark.parametrize("kind", [".txt", ".txt.gz", ".gz", ".jsonl", ".ndjson.gz", ".parquet"])
@pytest.mark.parametrize(("count", "part_lines"), [(23, 1), (23, 7), (23, 23), (23, 100), (0, 7)])
def test_the_parts_of_a_file_are_the_file(kind, count, part_lines, tmp_path):
    path = write(tmp_path, kind, TEXTS[:count])
    lines, starts = cut(path, part_lines, "text")
    assert lines == count and len(starts) == -(-count // part_lines)
    found = []
    for index, start in enumerate(starts):
        size = min(part_lines, count - index * part_lines)
        items, refused = read(path, start, size, "text")
        assert len(items) == size and not refused
        found += shown(items)
    assert found == TEXTS[:count]


def test_lines_end_with_a_newline_and_nothing_else(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes("a\r\nb\x0bc\u2028d\n\nlast".encode())
    assert cut(path, 2, "text") == (4, [0, 11])
    assert read(path, 11, 2, "text") == ([b"\n", b"last"], {})


def test_names_in_capitals_and_byte_order_marks(tmp_path):
    write(tmp_path, ".jsonl").rename(tmp_path / "IN.JSONL")
    assert read(tmp_path / "IN.JSONL", 0, 1, "text") == (TEXTS[:1], {})
    write(tmp_path, ".txt.gz").rename(tmp_path / "IN.TXT.GZ")
    assert shown(read(tmp_path / "IN.TXT.GZ", 0, 1, "text")[0]) == TEXTS[:1]
    path = tmp_path / "in.txt"
    path.write_bytes(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")  # only the first one is no text
    assert cut(path, 1, "text") == (2, [0, 5])
    assert read(path, 0, 2, "text")[0] == [b"a\n", b"\xef\xbb\xbfb\n"]


def test_a_damaged_page_names_its_file(tmp_path):
    path = write(tmp_path, ".parquet", [f"{i} and more text" for i in range(999)])
    content = bytearray(path.read_bytes())
    content[200:3000] = bytes(2800)
    path.write_bytes(content)
    assert cut(path, 500, "text")[0] == 999
    with pytest.raises(ValueError, match="in.2.parquet, rows from 0 on, cannot be read"):
        read(path, 0, 999, "text")


def test_rows_that_hold_no_string_are_refused_one_by_one(tmp_path):
    path = tmp_path / "in.jsonl"
    rows = ['{"text": "a"}', "{", '{"other": "b"}', '{"text": 3}', "[" * 100000, '{"text": "c"}']
    path.write_text("\n".join(rows))
    items, refused = read(path, 0, 6, "text")
    assert items == ["a", "", "", "", "", "c"] and list(refused) == [1, 2, 3, 4]
    assert refused[1].startswith("not JSON") and refused[4].startswith("not JSON")
    assert refused[2] == "no JSON object with the field 'text'"
    assert refused[3] == "'text' holds int, not a string"
    parquet.write_table(pyarrow.table({"text": ["a", None]}), tmp_path / "in.parquet")
    items, refused = read(tmp_path / "in.parquet", 0, 2, "text")
    assert items == ["a", ""] and refused == {1: "'text' holds NoneType, not a string"}


PACKED = gzip.compress(b"a line\n" * 1000)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.parquet", b"no such thing", "in.parquet is not a Parquet file"),
        ("in.gz", b"no such thing", "in.gz is not a whole gzip file"),
        ("in.gz", b"", "in.gz is not a whole gzip file: it has 0 bytes"),
        ("in.gz", PACKED[:-9], "in.gz is not a whole gzip file"),
        ("in.txt", PACKED, "in.txt is no text: .* ends with .gz"),
        ("in.txt", b"PAR1", "in.txt is no text: .* ends with .parquet"),
    ],
)
def test_files_that_contradict_their_names_are_refused(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        cut(tmp_path / name, 7, "text")


def test_a_missing_column_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has the columns \['other', 'text'\], not 'words'"):
        cut(write(tmp_path, ".parquet"), 7, "words")


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="needs /proc/self/io")
def test_parts_in_order_unpack_a_file_once(tmp_path):
    noise = np.random.default_rng(7).integers(97, 123, (211, 5003), np.uint8)
    data = b"".join(row.tobytes() + b"\n" for row in noise)
    path = tmp_path / "in.txt.gz"
    path.write_bytes(gzip.compress(data))
    lines, starts = cut(path, 3, "text")
    before = bytes_read()
    found = [read(path, start, min(3, lines - 3 * i), "text")[0] for i, start in enumerate(starts)]
    assert b"".join(itertools.chain(*found)) == data
    assert bytes_read() - before < 1.5 * path.stat().st_size
    assert read(path, starts[5], 3, "text")[0] == found[5]  # backwards, too
    path.write_bytes(gzip.compress(data[::-1]))
    assert read(path, 0, 1, "text")[0] != found[0][:1]  # and another file of the same name


def bytes_read():
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


@pytest.mark.full(".txt.gz", ".jsonl")
@pytest.mark.parametrize("kind", [".txt", ".txt.gz", ".jsonl"])
def test_a_huge_line_is_refused_and_does_not_fill_memory(kind, tmp_path):
    path = tmp_path / f"in{kind}"
    good = b'{"text": "a"}' if kind == ".jsonl" else b"a"
    pieces = [good, b"\n", *[b"x" * 2**20] * (6 * MOST_LINE_BYTES // 2**20), b"\n", good, b"\n"]
    with gzip.open(path, "wb", 1) if kind.endswith(".gz") else open(path, "wb") as file:
        file.writelines(pieces)
    tracemalloc.start()
    try:
        assert cut(path, 2, "text")[0] == 3
        items, refused = read(path, 0, 3, "text")
        assert tracemalloc.get_traced_memory()[1] < 3.5 * MOST_LINE_BYTES
    finally:
        tracemalloc.stop()
    assert shown(items) == ["a", "", "a"]
    assert refused == {1: f"more than {MOST_LINE_BYTES} bytes in one line; split it"}


def test_lines_that_are_too_long_share_one_placeholder(tmp_path, monkeypatch):
    for module in (lines, text_lines):
        monkeypatch.setattr(module, "MOST_LINE_BYTES", 11)
    path = tmp_path / "in.txt"
    whole = [b"x" * 11 + b"\n", b"x" * 11 + b"\r\n", b"x" * 11]
    longer = [b"y" * 12 + b"\n", b"y" * 12 + b"\r\n", b"y" * 11 + b"\rz\n", b"y" * 100_003 + b"\n"]
    path.write_bytes(b"".join([*longer, *whole]))
    with open(path, "rb") as file:
        found = list(lines.iter_lines(file))
    assert len(set(map(id, found[:4]))) == 1 and found[4:] == whole
    for line in (*whole, *map(bytes.decode, whole), "ä" * 5 + "a\r\n"):
        text_lines.check_length(line)
    for line in (*found[:4], "ä" * 6):
        with pytest.raises(ValueError, match="more than 11 bytes in one line"):
            text_lines.check_length(line)


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_a_gzip_file_damaged_later_is_named_at_every_read(tmp_path, damage):
    draw = random.Random(7)
    path = tmp_path / "in.txt.gz"
    path.write_bytes(gzip.compress(b"".join(b"%x\n" % draw.getrandbits(997) for _ in range(9973))))
    whole, count = path.read_bytes(), 1009
    _, starts = cut(path, count, "text")
    half = len(whole) // 2
    path.write_bytes(whole[:half] + (b"" if damage == "cut" else b"\xff" * (len(whole) - half)))
    for start in (starts[7], starts[7], starts[8]):
        with pytest.raises(ValueError, match="in.txt.gz is not a whole gzip file"):
            read(path, start, count, "text")
    assert len(read(path, starts[0], count, "text")[0]) == count


def test_a_file_that_became_shorter_is_noticed(tmp_path):
    path = write(tmp_path, ".txt")
    with pytest.raises(ValueError, match="has 23 lines from 0 on where there were 24"):
        read(path, 0, 24, "text")


def test_the_name_of_a_file_decides_its_kind():
    assert kind_of("a.parquet.txt") == "text" and kind_of("a") == "text"
    assert kind_of("2024.01.jsonl.gz") == "jsonl" and kind_of("in/b.parquet") == "parquet"
