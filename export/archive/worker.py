"""Answers parts, one after the other, in a process of its own that Ray starts."""

import contextlib
import pathlib

from keras_transformer.export.archive import outputs
from keras_transformer.export.archive.inputs import read
from keras_transformer.export.archive.plan import ArchiveError, Part, check_source
from keras_transformer.export.runtime import answers, open_runner

# Ray begins a part again when its worker dies, for ever. One that kills them all ends the job.
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
        """Does one part. Raises nothing: what Ray makes of an error nobody can read.

        Args:
            row: dict of the fields of a `Part`.

        Returns:
            Dict with `lines`, those that are done, `errors`, how many of them have no answer, and
            `failure`, why the part could not be done, or None.
        """
        try:
            lines, errors = self.answer(Part(**row))
        except Exception as error:  # onnxruntime's errors have no common base below Exception
            return {"lines": 0, "errors": 0, "failure": f"{type(error).__name__}: {error}"}
        return {"lines": lines, "errors": errors, "failure": None}

    def answer(self, part):
        """Answers a `Part` and writes its file; returns how many lines and errors it has."""
        target = self._folder / part.name
        if target.exists():  # Ray asks again where a process has died: it was done by then
            return part.lines, 0
        check_source(part)
        with _counted(self._folder / f".{part.name}{TRIES_ENDING}", part):
            if self._runner is None:
                options = {"threads": self._threads, "spinning": False}
                self._runner = open_runner(self._artefact, self._providers, **options)
            rows = self._rows(part)
            per_token = len(self._runner.manifest["outputs"][0]["axes"]) > 2
            outputs.write(target, rows, self._options["format"], per_token)
        return part.lines, sum(row["error"] is not None for row in rows)

    def _rows(self, part):
        options, path = self._options, part.path
        items, refused = read(path, part.start, part.lines, options["column"])
        sizes = options["batch_tokens"], len(items)  # all lines of a part are sorted by length
        results = answers(self._runner, items, options["seed"], *sizes)
        rows = []
        for place, (item, result) in enumerate(zip(items, results, strict=True)):
            if place in refused:
                result = result._replace(error=refused[place])
            source = _shown(item) if options["with_source"] else None
            rows.append(outputs.row(path, part.first + place + 1, source, result))
        return rows


@contextlib.contextmanager
def _counted(path, part):
    """Counts in a file how often a part was begun and never ended; raises where it is too often."""
    with open(path, "ab") as file:
        file.write(b"x")
        tries = file.tell()
    if tries > MOST_TRIES:
        raise ArchiveError(
            f"{MOST_TRIES} workers have died at lines {part.first + 1} to "
            f"{part.first + part.lines} of {part.path}. If the machine was out of memory, pass "
            "fewer workers or less for `batch_tokens`."
        )
    yield
    path.unlink()


def _shown(item):
    """An item as text without its line ending."""
    text = item.decode("utf-8", "replace") if isinstance(item, bytes) else item
    return text.removesuffix("\n").removesuffix("\r")
