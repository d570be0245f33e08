"""`Runner`, the base of the classes that serve an artefact.

An `InputReader` turns items into rows, and a `ResultMaker` turns outputs into results.
`Translator`, `Generator`, `Transcriber` and `Predictor` choose both. `Runner` does everything else,
so that unusual inputs, faults, threads and streams behave alike in all of them.

The order of a call: `results` checks the arguments, `_results` reads a window of items,
`in_batches` sorts its rows into batches, `_run_batch` runs one of them through `run_rows`, which
isolates faults, and the `ResultMaker` makes a result of each row.

Shapes: `B` rows of a batch.
"""

import functools
import itertools
import logging
import os
import secrets
import sys
from collections.abc import Generator, Iterable, Iterator, Sized
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.hub import download
from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.artefact.options import SEED_OPTION, Option, exported_seed
from keras_transformer.export.artefact.reader import Artefact, ArtefactError, read_artefact
from keras_transformer.export.artefact.results import ResultMaker, Row
from keras_transformer.export.runtime.batching import (
    MachineError,
    explained,
    in_batches,
    run_rows,
)
from keras_transformer.export.runtime.engine import CPU, Session, check_threads, is_small_search
from keras_transformer.export.runtime.input_readers import InputReader, stack_rows
from keras_transformer.export.runtime.options import CallInputs, OptionReader
from keras_transformer.export.runtime.sessions import open_session
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array, StrPath

logger: logging.Logger = logging.getLogger("keras_transformer.export")
# A value of `read_ahead`: all items are sorted by length together.
ALL = sys.maxsize
# Yields the parts of a long result, and returns the result and the length of its input.
Work: TypeAlias = Generator[Any, None, tuple[Any, int]]


class Runner:
    """Serves an artefact. Threads can share it.

    A subclass defines `_reader_and_result_maker(artefact)`, which returns an `InputReader` and a
    `ResultMaker`. It raises `ArtefactError` for an artefact that the subclass does not serve.

    The arguments are the same as in `Translator`. `pickle` stores the arguments of a runner, with
    the absolute path of the folder, and opens the folder again. `copy.copy` shares the session.
    """

    # Past participle of the task, for messages: a line was not `done`.
    done: ClassVar[str] = "answered"
    # Whether `work` yields parts of a text, and whether its input is a sound.
    streams: bool = False
    hears: bool = False
    # Whether a failure of the machine is raised, or becomes the error of each input.
    raises_machine_errors = False

    def __init__(
        self,
        folder: StrPath,
        providers: list[Any] | None = None,
        *,
        threads: int | None = None,
        workers: int | None = None,
        arena: bool = True,
        spinning: bool = True,
    ):
        check_threads("workers", workers)
        artefact = read_artefact(folder)
        self._arguments = {
            "folder": str(artefact.folder),
            "providers": providers,
            "threads": threads,
            "workers": workers,
            "arena": arena,
            "spinning": spinning,
        }
        self.manifest: dict[str, Any] = artefact.manifest
        self.tokenizer: Tokenizer | None = artefact.tokenizer
        self.target_tokenizer: Tokenizer | None = artefact.target_tokenizer
        inputs = self.manifest["inputs"]
        self._inputs = [value for value in inputs if value["name"] != signature.SEED]
        # Whether results depend on a seed.
        self.samples: bool = len(self._inputs) < len(inputs)
        self._outputs = [value["name"] for value in self.manifest["outputs"]]
        for value in self._inputs:
            if not value["axes"]:
                raise ArtefactError(
                    f"{artefact.folder} has the input {shorten(value['name'])} without a batch "
                    f"axis, and {type(self).__name__} runs batches. Export a model whose inputs "
                    "have one."
                )
        self._options = OptionReader(artefact)
        self._reader, self._result_maker = self._reader_and_result_maker(artefact)
        self.session: Session = open_session(
            artefact,
            providers,
            threads=1 if threads is None and (workers or 1) > 1 else threads,
            arena=arena,
            spinning=spinning,
        )
        self.provider: str = self.session.get_providers()[0]
        # Whether each core computes a part of every batch, instead of a part of every operation.
        self._divides = threads is None and workers is None and self.provider == CPU
        self._divides &= is_small_search(self.manifest)
        self._workers = (os.cpu_count() or 1) if self._divides else workers or 1
        precision = self.manifest["precision"]
        logger.info("%s runs on %s, precision %s", artefact.folder, self.provider, precision)

    @classmethod
    def from_hub(cls, name: str, revision: str | None = None, **options: Any) -> Self:
        """Opens an artefact of the Hugging Face hub, loaded into its cache if necessary.

        Args:
            name: "user/name", or path of a folder.
            revision: branch, tag or commit. Defaults to `None`: the newest commit.
            **options: further arguments of the class.

        Raises:
            ArtefactError: the hub has no such artefact, or cannot be reached.
            ImportError: the package `huggingface_hub` is missing.
        """
        return cls(download(name, revision), **options)

    def _reader_and_result_maker(self, artefact: Artefact) -> tuple[InputReader, ResultMaker]:
        raise NotImplementedError

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), **self._arguments), ()

    @property
    def options(self) -> dict[str, Option]:
        """The options of a call by name, with their bounds."""
        return self._options.known | ({signature.SEED: SEED_OPTION} if self.samples else {})

    def lengths(self, items: Iterable[Any]) -> list[int]:
        """Returns the length of each item for the model, in tokens or by its first axis.

        The length of a refused or blank item is 0.
        """
        items = list(items)
        rows, _ = self._reader.read(items)
        return [rows[i].size if i in rows else 0 for i in range(len(items))]

    def results(
        self,
        items: Iterable[Any],
        seed: int | None = None,
        tokens_per_batch: int = 2048,
        read_ahead: int = 1024,
        **options: Any,
    ) -> Iterator[Any]:
        """Returns an iterator over the results of items, for every task.

        Args:
            items: iterable of inputs, as the runner's other methods take them.
            seed: int from 0 to 2^31 - 2, if the artefact samples. Defaults to `None`: the
                seed of the exported search, or a random one.
            tokens_per_batch: int, maximum number of tokens of a batch, padding included.
            read_ahead: int, maximum number of items that are read beyond the last result. They are
                sorted by length together.
            **options: options of the search, as in `Translator.translate`.

        Raises:
            TypeError: `items` is one item, `seed` is not an integer, or an option has another type.
            ValueError: `tokens_per_batch` or `read_ahead` is less than 1, `seed` or an option is
                out of range, or the artefact does not take it.

        Example:

        >>> runner = open_runner("out/onnx")  # doctest: +SKIP
        >>> [result.error for result in runner.results(["A man.", b"\\xff"])]  # doctest: +SKIP
        [None, 'not UTF-8 at byte 1 (invalid start byte)']
        """
        if isinstance(items, self._reader.alone):
            raise TypeError(
                f"`inputs` must be an iterable of inputs, got one {type(items).__name__}. Pass a "
                "list: [input]."
            )
        for name, value in {"tokens_per_batch": tokens_per_batch, "read_ahead": read_ahead}.items():
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}.")
        call = self._read_options(options)
        for name in call.by_line:
            sizes = [len(one) for one in (options.get(name), items) if isinstance(one, Sized)]
            if len(set(sizes)) == 2:
                raise ValueError(f"`{name}` has {sizes[0]} values, but there are {sizes[1]} lines.")
        call.fixed.update(self._seed_input(seed))
        return self._results(iter(items), call, tokens_per_batch, read_ahead)

    def texts(
        self,
        items: Iterable[Any],
        seed: int | None = None,
        tokens_per_batch: int = 2048,
        read_ahead: int = 1024,
        **options: Any,
    ) -> Iterator[str]:
        """Returns an iterator over the best text of each item. Logs a warning for each error.

        Arguments and errors are the same as in `results`.

        Example:

        >>> runner = open_runner("out/onnx")  # doctest: +SKIP
        >>> list(runner.texts(["A man rides."]))  # doctest: +SKIP
        ['Ein Mann fährt.']
        """
        results = self.results(items, seed, tokens_per_batch, read_ahead, **options)
        return map(self._text, itertools.count(1), results)

    def _text(self, number: int, result: Any) -> str:
        if result.error is not None:
            logger.warning("line %d is not %s: %s", number, self.done, result.error)
        return result.text

    def _read_options(self, options: dict[str, Any]) -> CallInputs:
        return self._options.read(options)

    def _results(
        self, items: Iterator[Any], call: CallInputs, tokens_per_batch: int, read_ahead: int
    ) -> Iterator[Any]:
        count = min(read_ahead, ALL)  # islice refuses larger numbers
        while window := list(itertools.islice(items, count)):
            rows, refused = self._reader.read(window)
            self._add_options(rows, call, len(window))
            results = {index: self._failure(reason) for index, reason in refused.items()}
            results |= self._run_rows(rows, window, call, tokens_per_batch)
            for index in range(len(window)):
                yield results.get(index, self._result_maker.empty)

    def _add_options(self, rows: dict[int, Row], call: CallInputs, count: int) -> None:
        """Adds the next values of options that differ by line to the inputs of the rows."""
        for name, values in call.by_line.items():
            taken = list(itertools.islice(values, count))
            if len(taken) < count:
                raise ValueError(f"`{name}` has fewer values than there are lines.")
            for index, row in rows.items():
                row.inputs[name] = self._options.value(name, taken[index])
        if call.by_line.keys() & {"min_length", "max_length"}:
            for row in rows.values():
                self._options.check_lengths({**call.fixed, **row.inputs})

    def _run_rows(
        self, rows: dict[int, Row], items: list[Any], call: CallInputs, tokens_per_batch: int
    ) -> dict[int, Any]:
        """Returns the results of rows by their numbers; `items` are their inputs."""
        run_batch = functools.partial(self._run_batch, fixed=call.fixed)
        return in_batches(run_batch, rows, tokens_per_batch, self._workers, self._divides)

    def _run_batch(self, rows: list[Row], fixed: dict[str, Array]) -> list[Any]:
        """Returns the results of a batch of rows; `fixed` are inputs that all rows share."""

        def run_session(rows: list[Row]) -> list[Array]:
            return self.session.run(self._outputs, self._inputs_of(rows, fixed))

        try:
            found = run_rows(run_session, rows)
        except MachineError as error:
            if self.raises_machine_errors:
                raise
            found = [error] * len(rows)
        return [self._result(row, outputs) for row, outputs in zip(rows, found, strict=True)]

    def _inputs_of(self, rows: list[Row], fixed: dict[str, Array]) -> dict[str, Array]:
        """Returns the model's inputs for a batch of rows."""
        inputs = {**stack_rows(rows, self._inputs), **fixed}
        for name in rows[0].inputs.keys() - inputs.keys():
            inputs[name] = self._options.stack(name, [row.inputs[name] for row in rows])
        return inputs

    def _result(self, row: Row, outputs: Any) -> Any:
        if isinstance(outputs, Exception):
            return self._failure(explained(outputs))
        try:
            return self._result_maker.result(row, dict(zip(self._outputs, outputs, strict=True)))
        except ValueError as error:
            return self._failure(error)

    def _failure(self, reason: object) -> Any:
        return type(self._result_maker.empty)(error=str(reason))

    def _seed_input(self, seed: int | None) -> dict[str, Array]:
        """Returns a dict with the model's input `seed`, if it has one."""
        if not self.samples:
            if seed is not None:
                raise ValueError(
                    f"`seed` was passed, but the task {self.manifest['task']!r} of this artefact "
                    "draws no random numbers. Leave it out, or export the model with Sampling."
                )
            return {}
        if seed is None:
            seed = exported_seed(self.manifest)
        if seed is None:
            seed = secrets.randbelow(signature.MOST_SEED + 1)
        SEED_OPTION.check(seed)
        return {signature.SEED: np.array(seed, np.int32)}
