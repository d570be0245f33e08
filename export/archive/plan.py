"""The plan of a job: its parts and options, written once into the folder that it fills.

It names the input files with their sizes, the places where they are cut into parts, the artefact by
its checksum, and all options that affect the output. A later run continues with the plan. It is
refused if its arguments differ or a file has changed.
"""

import dataclasses
import glob
import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from keras_transformer.export.archive.inputs import cut
from keras_transformer.export.archive.outputs import ENDINGS
from keras_transformer.export.artefact.manifest import checksum
from keras_transformer.files import whole_file
from keras_transformer.types import StrPath

PLAN_FILE = "_plan.json"  # readers of a folder as one Parquet table skip such names
FORMAT = "keras-transformer-archive"
FORMAT_VERSION = 1
# Maximum parts and lines that are sorted by length together, so that their batches hold less
# padding. A killed worker loses this work.
PARTS_TOGETHER, LINES_TOGETHER = 5, 10_000


class ArchiveError(ValueError):
    """A job cannot start or continue; the message says why, and how to correct it."""


class Source(NamedTuple):
    """An input file as it was when the job was planned.

    Attributes:
        path: str, absolute.
        bytes, modified_ns: int, its size and the time of its last change.
        lines: int.
        starts: list of int, the place where each of its parts starts, as `inputs.cut` gives them.
    """

    path: str
    bytes: int
    modified_ns: int
    lines: int
    starts: list[int]


class JobPart(NamedTuple):
    """Some lines of an input file that become one output file.

    Attributes:
        name: str, of the output file. Sorted, names are in the order of the lines.
        path, bytes, modified_ns: of the input file, as in `Source`.
        start: int, where the part starts in that file, as `inputs.cut` gives it.
        first: int, lines of the file before it.
        lines: int.
    """

    name: str
    path: str
    bytes: int
    modified_ns: int
    start: int
    first: int
    lines: int


@dataclasses.dataclass(frozen=True)
class JobPlan:
    """The work of a job.

    Attributes:
        options: dict, everything besides the input that affects the output.
        sources: list of `Source`, in the order of the lines.
    """

    options: dict[str, Any]
    sources: list[Source]

    @property
    def lines(self) -> int:
        """Lines of all input files."""
        return sum(source.lines for source in self.sources)

    def parts(self) -> list[JobPart]:
        """Returns all parts, in order."""
        size = self.options["part_lines"]
        parts: list[JobPart] = []
        count = sum(len(source.starts) for source in self.sources)
        for path, of_bytes, modified_ns, lines, starts in self.sources:
            for first, start in zip(range(0, lines, size), starts, strict=True):
                name = part_name(len(parts), count, self.options["format"])
                rest = min(size, lines - first)
                parts.append(JobPart(name, path, of_bytes, modified_ns, start, first, rest))
        return parts


def part_name(number: int, count: int, format: str) -> str:
    """Returns the name of a part's file. Sorted, names are in the order of numbers."""
    return f"part-{number:0{max(6, len(str(count)))}d}{ENDINGS[format]}"


def groups(parts: list[JobPart], workers: int) -> list[list[JobPart]]:
    """Divides parts into groups of neighbours, each of which a worker computes together.

    Groups become shorter towards the end, down to one part, so that no worker is left alone with a
    long one.
    """
    most = min(PARTS_TOGETHER, LINES_TOGETHER // max(part.lines for part in parts))
    found, begin = [], 0
    while begin < len(parts):
        size = max(1, min(most, (len(parts) - begin) // (2 * workers)))
        found.append(parts[begin : begin + size])
        begin += size
    return found


def find_inputs(patterns: Iterable[StrPath]) -> list[str]:
    """Returns the absolute paths of the files that patterns such as "in/*.txt.gz" match.

    The files of a pattern are sorted by name; a file that two patterns match is taken once.

    Raises:
        ArchiveError: a pattern matches no file.
    """
    paths: dict[str, None] = {}
    for pattern in map(os.fspath, patterns):
        found = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern, recursive=True))
        files = [os.path.abspath(path) for path in found if os.path.isfile(path)]
        if not files:
            raise ArchiveError(
                f"No file matches {pattern}. Pass files, or patterns like 'in/*.gz'."
            )
        paths.update(dict.fromkeys(files))
    return list(paths)


def make_plan(options: Mapping[str, Any], paths: list[str]) -> JobPlan:
    """Makes a plan for input files, and reads several of them at a time."""

    def source(path: str) -> Source:
        try:
            before = os.stat(path)
            lines, starts = cut(path, options["part_lines"], options["column"])
        except OSError as error:
            raise ArchiveError(f"{path} cannot be read: {error.strerror or error}.") from error
        except ValueError as error:
            raise ArchiveError(str(error)) from error
        return Source(path, before.st_size, before.st_mtime_ns, lines, starts)

    with ThreadPoolExecutor(min(32, 2 * (os.cpu_count() or 1))) as pool:
        return JobPlan(dict(options), list(pool.map(source, paths)))


def write_plan(plan: JobPlan, folder: StrPath) -> None:
    """Writes a plan to the folder of its job."""
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "options": plan.options,
        "sources": [source._asdict() for source in plan.sources],
    }
    content["checksum"] = checksum(content)
    with whole_file(pathlib.Path(folder) / PLAN_FILE, sync=True) as aside:
        aside.write_text(json.dumps(content) + "\n", "utf-8")


def read_plan(folder: StrPath) -> JobPlan | None:
    """Reads the plan in a folder; None if there is none.

    Raises:
        ArchiveError: it is damaged, of another release, or the folder holds something else.
    """
    folder = pathlib.Path(folder)
    path = folder / PLAN_FILE
    if not path.exists():
        others = [item.name for item in folder.iterdir() if not item.name.startswith(".")]
        if others:
            raise ArchiveError(
                f"{folder} holds no {PLAN_FILE}, but {others[0]}: not an archive job. "
                "Choose an empty folder, or a new one."
            )
        return None
    try:
        content = json.loads(path.read_bytes())
        if content["checksum"] != checksum(content):
            raise ValueError("its checksum differs")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArchiveError(
            f"{path} is damaged ({error!r}). Choose another folder: without its plan the parts "
            "in this one cannot be identified."
        ) from error
    if (content["format"], content["format_version"]) != (FORMAT, FORMAT_VERSION):
        raise ArchiveError(
            f"{path} has the format {content['format']} {content['format_version']}, but this "
            f"release continues {FORMAT} {FORMAT_VERSION}. Use the release that began the job."
        )
    return JobPlan(content["options"], [Source(**source) for source in content["sources"]])


def check_same(
    plan: JobPlan, options: Mapping[str, Any], paths: list[str], folder: StrPath
) -> None:
    """Raises `ArchiveError` unless a plan is for these options and for these files, unchanged."""
    for name, value in options.items():
        if plan.options[name] != value:
            raise ArchiveError(
                f"{folder} was begun with {name} {plan.options[name]!r}, and this run has "
                f"{value!r}. Pass the same, or choose another folder."
            )
    planned = [source.path for source in plan.sources]
    if planned != paths:
        odd = sorted(set(planned) ^ set(paths)) or ["their order"]
        raise ArchiveError(
            f"{folder} was begun for {len(planned)} input files, and this run has {len(paths)}; "
            f"the first difference is {odd[0]}. Pass the same files, or choose another folder."
        )
    for source in plan.sources:
        check_source(source)


def check_source(source: Source | JobPart) -> None:
    """Raises `ArchiveError` if the file has changed since the job was planned."""
    try:
        now = os.stat(source.path)
    except OSError as error:
        raise ArchiveError(f"{source.path} cannot be read any more: {error.strerror}.") from error
    if (now.st_size, now.st_mtime_ns) != (source.bytes, source.modified_ns):
        raise ArchiveError(
            f"{source.path} has changed since the job was planned: {source.bytes:,} bytes then, "
            f"{now.st_size:,} now, and another time of its last change. Parts of both versions "
            "would be mixed: begin again in another folder."
        )
