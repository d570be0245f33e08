"""What serves an artefact: its arguments, its batches and its streams, for every kind of answer.

`Translator`, `Generator` and `Predictor` say what they read and what they make of the outputs; all
else is here, so that odd inputs, faults, threads and streams are the same everywhere.

Shapes: `B` rows of a batch.
"""

import functools
import logging
from typing import Self

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import shown
from keras_transformer.export.artefact.reader import ArtefactError, read_artefact
from keras_transformer.export.runtime.batching import MachineError, in_batches, run_rows
from keras_transformer.export.runtime.lines import windows
from keras_transformer.export.runtime.session import check_threads, open_session

logger = logging.getLogger("keras_transformer.export")


class Runner:
    """The base of what serves an artefact. Threads can share it.

    A subclass defines

    - `_check(artefact)`: raises `ArtefactError` for what it does not serve;
    - `_read(items)`: dict from places in a list of items to rows, and one from places to reasons
      why they are refused; an item in neither has the result `_empty`;
    - `_stack(rows)`: inputs of the model by name for a list of rows;
    - `_result(row, outputs)`: the result of a row, from its part of the outputs `_outputs`; raises
      `ValueError` where it cannot be had;
    - `_failed(reason)`: the result of an item that has none;
    - `_length(row)` and `_group(row)`, as `batches` takes them.

    Arguments are those of `Translator`. `pickle` stores the arguments of a runner, with the path of
    the folder resolved, and opens the folder again. `copy.copy` shares the session.
    """

    # Whether a failure of the machine is raised, or becomes the error of each input.
    raises_machine_errors = False
    _outputs = None  # all
    _length = staticmethod(len)
    _group = staticmethod(lambda row: ())

    def __init__(
        self, folder, providers=None, *, threads=None, workers=1, arena=True, spinning=True
    ):
        check_threads("workers", workers)
        artefact = read_artefact(folder)
        self._arguments = {"folder": str(artefact.folder), "providers": providers}
        self._arguments |= {"threads": threads, "workers": workers}
        self._arguments |= {"arena": arena, "spinning": spinning}
        if threads is None and workers > 1:
            threads = 1
        self.manifest = artefact.manifest
        for value in self.manifest["inputs"]:
            if not value["axes"] and value["name"] != signature.SEED:
                raise ArtefactError(
                    f"{artefact.folder} has the input {shown(value['name'])} without a batch axis, "
                    f"and {type(self).__name__} runs batches. Export a model whose inputs have one."
                )
        self.tokenizer = artefact.tokenizer
        self._check(artefact)
        self.session = open_session(
            artefact, providers, threads=threads, arena=arena, spinning=spinning
        )
        self.provider = self.session.get_providers()[0]
        self._workers = workers
        logger.info(
            "%s runs on %s, precision %s",
            artefact.folder,
            self.provider,
            self.manifest["precision"],
        )

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce__(self) -> tuple:
        return functools.partial(type(self), **self._arguments), ()

    def lengths(self, items):
        """How long each item is as the model reads it, in tokens, or by its first axis; a list.

        0 for an item that is refused, or that the model never sees because it is blank.
        """
        items = list(items)
        rows, _ = self._read(items)
        return [self._length(rows[i]) if i in rows else 0 for i in range(len(items))]

    def _list(self, items, batch_tokens, fixed=None):
        """The results of a list of items."""
        return list(self._stream(iter(items), batch_tokens, max(1, len(items)), fixed))

    def _stream(self, items, batch_tokens, read_ahead, fixed=None):
        """Iterator over the results of an iterator, of which `read_ahead` items are read at once.

        Args:
            fixed: dict of inputs that are the same for all, such as a seed.

        Raises:
            ValueError: `batch_tokens` or `read_ahead` is less than 1; at the call.
        """
        for name, value in {"batch_tokens": batch_tokens, "read_ahead": read_ahead}.items():
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}.")
        return self._results(windows(items, read_ahead), batch_tokens, fixed or {})

    def _results(self, windows, batch_tokens, fixed):
        answer = functools.partial(self._answer, fixed=fixed)
        for items in windows:
            rows, refused = self._read(items)
            results = in_batches(
                answer, rows, batch_tokens, self._workers, length=self._length, group=self._group
            )
            results.update((index, self._failed(reason)) for index, reason in refused.items())
            yield from (results.get(index, self._empty) for index in range(len(items)))

    def _answer(self, rows, fixed):
        """List of results for a list of rows."""

        def run(inputs):
            return self.session.run(self._outputs, {**inputs, **fixed})

        try:
            found = run_rows(run, rows, self._stack)
        except MachineError as error:
            if self.raises_machine_errors:
                raise
            found = [error] * len(rows)
        return [self._finished(row, outputs) for row, outputs in zip(rows, found, strict=True)]

    def _finished(self, row, outputs):
        if isinstance(outputs, Exception):
            return self._failed(f"onnxruntime failed: {outputs}")
        try:
            return self._result(row, outputs)
        except ValueError as error:
            return self._failed(error)


def with_warnings(results, what):
    """Yields `results`, and logs a warning with number and reason for each that has an error."""
    for number, result in enumerate(results, 1):
        if result.error is not None:
            logger.warning("line %d is not %s: %s", number, what, result.error)
        yield result
