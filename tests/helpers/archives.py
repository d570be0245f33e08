"""Input, a worker without Ray, and readers of parts for the tests of archive jobs."""

import gzip
import json
import random

from pyarrow import parquet

from keras_transformer.export.archive import plan
from keras_transformer.export.archive.worker import Worker
from keras_transformer.export.artefact.reader import read_artefact

WORDS = "a man rides a bicycle . two dogs run along the beach ein mann fährt".split()
# Lines of the tests without Ray. The fourth is too long.
LINES = ["a man rides", "", "two dogs run .", "the red hat " * 30, "a child\tjumps"]
# Options of a plan.
OPTIONS = {
    "artefact": "0" * 64,
    "format": "parquet",
    "column": "text",
    "with_source": True,
    "part_lines": 2,
    "batch_tokens": 2048,
    "seed": None,
}


def options_of(artefact, **options):
    """Returns options of a plan for an artefact."""
    return OPTIONS | {"artefact": read_artefact(artefact).manifest["checksum"]} | options


def lines(count, seed=0):
    """Returns different lines. Each begins with its number."""
    draw = random.Random(seed)
    return [" ".join([str(i), *draw.choices(WORDS, k=draw.randint(0, 8))]) for i in range(count)]


def write_text(path, texts):
    with gzip.open(path, "wb") as file:
        file.write("".join(f"{text}\n" for text in texts).encode())
    return path


def parts(folder):
    """Returns the paths of the parts, sorted by name."""
    return sorted(folder.glob("part-*"))


def rows(folder):
    """Returns the rows of all parts as dicts, parts sorted by name."""
    found = []
    for path in parts(folder):
        if path.suffix == ".parquet":
            found += parquet.read_table(path).to_pylist()
        else:
            found += map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    return found


class Job:
    """A job without Ray, whose parts one worker computes.

    Args:
        folder: folder to fill.
        artefact: folder of the artefact.
        paths: the input files.
        providers: as in `Worker`.
        options: of the plan.

    Attributes:
        plan, parts, worker: of the job.
    """

    def __init__(self, folder, artefact, paths, providers=None, **options):
        folder.mkdir(exist_ok=True)
        self.plan = plan.make_plan(options_of(artefact, **options), paths)
        self.parts = self.plan.parts()
        self.worker = Worker(artefact, folder, self.plan.options, providers, 1)

    def answer(self, *parts):
        """Computes parts as Ray asks for them. Returns the lines done, and the failure."""
        done = self.worker({"parts": [part._asdict() for part in parts]})
        return done["lines"], done["failure"]


def answer(folder, artefact, paths, together=1, **options):
    """Runs all parts of a job, `together` at a time. Returns the plan."""
    job = Job(folder, artefact, paths, **options)
    for begin in range(0, len(job.parts), together):
        group = job.parts[begin : begin + together]
        assert job.answer(*group) == (sum(part.lines for part in group), None)
    return job.plan
