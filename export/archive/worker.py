"""Computes parts, several at a time, in a process that Ray starts."""

import itertools
import pathlib
from collections.abc import Iterable
from typing import Any

from keras_transformer.export.archive import outputs
from keras_transformer.export.archive.inputs import read
from keras_transformer.export.archive.plan import ArchiveError, JobPart, check_source
from keras_transformer.export.runtime import open_runner
from keras_transformer.types import StrPath

# Ray endlessly repeats the parts of a worker that dies. A part that kills this many workers ends
# the job.
MOST_TRIES = 5
TRIES_ENDING = ".tries"


class Worker:
    """Reads parts, computes the results of their lines, and writes them.

    Args:
        artefact: folder that `export_onnx` wrote.
        folder: folder that the job fills.
        options: dict, as in the plan.
        providers, threads: as in `Translator`.
    """

    def __init__(
        self,
        artefact: StrPath,
        folder: StrPath,
        options: dict[str, Any],
        providers: list[str] | None,
        threads: int,
    ) -> None:
        self._artefact, self._providers, self._threads = artefact, providers, threads
        self._folder, self._options = pathlib.Path(folder), options
        self._runner: Any = None  # opened at the first part, so that an error can be reported

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Computes parts. Returns errors, because Ray makes raised ones unreadable.

        Args:
            row: dict with `parts`, a list of dicts of the fields of a `JobPart`.

        Returns:
            Dict with `lines`, the number done; `errors`, the number without a result; and
            `failure`, why the parts could not be computed, or None.
        """
        try:
            lines, errors = self.compute([JobPart(**part) for part in row["parts"]])
        except Exception as error:  # ONNX Runtime's errors have no common base below it
            return {"lines": 0, "errors": 0, "failure": f"{type(error).__name__}: {error}"}
        return {"lines": lines, "errors": errors, "failure": None}

    def compute(self, parts: list[JobPart]) -> tuple[int, int]:
        """Computes parts and writes their files; returns the numbers of lines and of errors."""
        # Ray repeats the parts of a process that has died: some may be finished.
        missing = [part for part in parts if not (self._folder / part.name).exists()]
        groups = [missing]
        if any(self._tries(part).exists() for part in missing):
            groups = [[part] for part in missing]  # so only the part that kills a worker fails
        errors = sum(self._compute_together(group) for group in groups if group)
        return sum(part.lines for part in parts), errors

    def _compute_together(self, parts: list[JobPart]) -> int:
        """Computes parts, with lines sorted by length together; returns the number of errors."""
        for part in parts:
            check_source(part)
            _count(self._tries(part), part)
        if self._runner is None:
            self._runner = open_runner(self._artefact, self._providers, threads=self._threads)
            if self._runner.manifest["checksum"] != self._options["artefact"]:
                raise ArchiveError(
                    f"{self._artefact} was replaced since the job was planned. Restore it, or "
                    "start in another folder"
                )
            self._runner.raises_machine_errors = True  # its parts stay missing
        per_token = len(self._runner.manifest["outputs"][0]["axes"]) > 2
        found = [read(p.path, p.start, p.lines, self._options["column"]) for p in parts]
        lines = [item for items, _ in found for item in items]
        sizes = self._options["batch_tokens"], len(lines)
        results, errors = self._runner.results(lines, self._options["seed"], *sizes), 0
        for part, (items, refused) in zip(parts, found, strict=True):
            rows = self._rows(part, items, refused, itertools.islice(results, part.lines))
            outputs.write(self._folder / part.name, rows, self._options["format"], per_token)
            self._tries(part).unlink()
            errors += sum(row["error"] is not None for row in rows)
        return errors

    def _rows(
        self,
        part: JobPart,
        items: list[str | bytes],
        refused: dict[int, str],
        results: Iterable[Any],
    ) -> list[outputs.Row]:
        rows = []
        for place, (item, result) in enumerate(zip(items, results, strict=True)):
            if place in refused:
                result = result._replace(error=refused[place])
            source = None
            if self._options["with_source"]:
                text = item.decode("utf-8", "replace") if isinstance(item, bytes) else item
                source = text.removesuffix("\n").removesuffix("\r")
            rows.append(outputs.row(part.path, part.first + place + 1, source, result))
        return rows

    def _tries(self, part: JobPart) -> pathlib.Path:
        return self._folder / f".{part.name}{TRIES_ENDING}"


def _count(path: pathlib.Path, part: JobPart) -> None:
    """Counts the unfinished attempts at a part in a file; raises `ArchiveError` after too many."""
    with open(path, "ab") as file:
        file.write(b"x")
        tries = file.tell()
    if tries > MOST_TRIES:
        raise ArchiveError(
            f"{MOST_TRIES} workers have died at lines {part.first + 1} to "
            f"{part.first + part.lines} of {part.path}. If the machine was out of memory, pass "
            "fewer workers or a smaller `batch_tokens`."
        )
