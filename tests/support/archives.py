"""Input files of an archive job, and what its parts hold, read without the code under test."""

import gzip
import json
import pathlib
import random

from pyarrow import parquet

WORDS = "a man rides a bicycle . two dogs run along the beach ein mann fährt".split()


def lines(count, seed=0):
    """Different lines: each begins with its number."""
    draw = random.Random(seed)
    return [" ".join([str(i), *draw.choices(WORDS, k=draw.randint(0, 8))]) for i in range(count)]


def write_text(path, texts):
    with gzip.open(path, "wb") as file:
        file.write("".join(f"{text}\n" for text in texts).encode())
    return path


def parts(folder):
    """Paths of the parts, in the order of their names."""
    return sorted(folder.glob("part-*"))


def rows(folder):
    """Rows of all parts as dicts, in the order of the parts' names."""
    found = []
    for path in parts(folder):
        if path.suffix == ".parquet":
            found += parquet.read_table(path).to_pylist()
        else:
            found += map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    return found


def workers(pid):
    """Ids of the processes that answer for the job of a process; Linux only."""
    parents, names = {}, {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            names[int(folder.name)] = (folder / "cmdline").read_bytes()
            rest = (folder / "stat").read_text().rpartition(")")[2]
            parents[int(folder.name)] = int(rest.split()[1])
        except OSError:
            continue  # it has ended
    raylets = {child for child, parent in parents.items() if parent == pid}
    answering = [one for one, name in names.items() if name.startswith(b"ray::MapWorker")]
    return [one for one in answering if parents.get(one) in raylets]
