"""Answers parts, some of them together, in a process of its own that Ray starts."""

import itertools
import pathlib

from keras_transformer.export.archive import outputs
from keras_transformer.export.archive.inputs import read
from keras_transformer.export.archive.plan import ArchiveError, Part, check_source
from keras_transformer.export.runtime import open_runner

# Ray begins parts again when their worker dies, for ever. One that kills them all ends the job.
MOST_TRIES = 5
TRIES_ENDING = ".tries"


class Worker:
    """Reads, answers and writes parts.

    Args:
        artefact: folder that `export_onnx` wrote.
        folder: folder that the job fills.
        options: dict, those of the plan.
        providers, threads: as `Translator` takes them.
    """

    def __init__(self, artefact, folder, options, providers, threads):
        self._artefact, self._providers, self._threads = artefact, providers, threads
        self._folder, self._options = pathlib.Path(folder), options
        self._runner = None  # opened at the first part, so that it can be told why it is not

    def __call__(self, row):
        """Does some parts. Raises nothing: what Ray makes of an error nobody can read.

        Args:
            row: dict with `parts`, a list of dicts of the fields of a `Part`.

        Returns:
            Dict with `lines`, those that are done, `errors`, how many of them have no answer, and
            `failure`, why the parts could not be done, or None.
        """
        try:
            lines, errors = self.answer([Part(**part) for part in row["parts"]])
        except Exception as error:  # ONNX Runtime's errors have no common base below it
            return {"lines": 0, "errors": 0, "failure": f"{type(error).__name__}: {error}"}
        return {"lines": lines, "errors": errors, "failure": None}

    def answer(self, parts):
        """Answers a list of `Part` and writes their files; returns how many lines and errors."""
        # Ray asks again where a process has died: by then some parts may be there.
        missing = [part for part in parts if not (self._folder / part.name).exists()]
        groups = [missing]
        if any(self._tries(part).exists() for part in missing):
            groups = [[part] for part in missing]  # all are done but the one at which workers die
        errors = sum(self._answer_together(group) for group in groups if group)
        return sum(part.lines for part in parts), errors

    def _answer_together(self, parts):
        """Answers parts whose lines are sorted by length together; returns how many errors."""
        for part in parts:
            check_source(part)
            _count(self._tries(part), part)
        if self._runner is None:
            options = {"threads": self._threads, "spinning": False}
            self._runner = open_runner(self._artefact, self._providers, **options)
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

    def _rows(self, part, items, refused, results):
        rows = []
        for place, (item, result) in enumerate(zip(items, results, strict=True)):
            if place in refused:
                result = result._replace(error=refused[place])
            source = _shown(item) if self._options["with_source"] else None
            rows.append(outputs.row(part.path, part.first + place + 1, source, result))
        return rows

    def _tries(self, part):
        return self._folder / f".{part.name}{TRIES_ENDING}"


def _count(path, part):
    """Counts in a file how often a part was begun and not ended; raises where it is too often."""
    with open(path, "ab") as file:
        file.write(b"x")
        tries = file.tell()
    if tries > MOST_TRIES:
        raise ArchiveError(
            f"{MOST_TRIES} workers have died at lines {part.first + 1} to "
            f"{part.first + part.lines} of {part.path}. If the machine was out of memory, pass "
            "fewer workers or less for `batch_tokens`."
        )


def _shown(item):
    """An item as text without its line ending."""
    text = item.decode("utf-8", "replace") if isinstance(item, bytes) else item
    return text.removesuffix("\n").removesuffix("\r")
