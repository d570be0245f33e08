"""The engine of a model: one artefact with its sessions, which computes batches in any thread."""

import collections
import contextlib
import dataclasses
import logging
import os
import pathlib
import pickle
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from keras_transformer.export.artefact.options import Option
from keras_transformer.export.artefact.signature import MANIFEST_FILE, SEED
from keras_transformer.export.runtime import ArtefactError, open_runner
from keras_transformer.export.runtime.runner import Work
from keras_transformer.export.serving.line_queue import ByLine
from keras_transformer.export.serving.refusals import FAILED, Invalid, Refusal
from keras_transformer.types import StrPath

logger: logging.Logger = logging.getLogger("keras_transformer.serving")
FOLDER_CHECK_SECONDS = 1.0  # between two checks of the folder for a new artefact
RETRY_SECONDS = 60.0  # until an unchanged folder that cannot be opened is tried again
# Threads that share a session of ONNX Runtime on the CPU wait for each other, because it gives
# memory to one at a time: with a small model a line alone took 8 % longer, and the p95 at 130
# lines/s was 73 ms instead of 64. So each thread has a session if all copies of the weights fit in
# this many bytes.
SESSION_BYTES = 2**30


@dataclasses.dataclass(frozen=True)
class Description:
    """The metadata of an artefact that the protocols need.

    Attributes:
        task: str, of the artefact.
        version: str, the first digits of the manifest's checksum.
        samples: bool, whether results depend on a seed.
        streams: bool, whether `run_stream` works: a language model with the layout "steps".
        hears: bool, whether `run_stream` transcribes sound files: a Whisper model.
        width: int, the number of hypotheses or samples of a line.
        options: dict from the names of the options that a request may set to `Option`.
    """

    task: str
    version: str
    samples: bool
    streams: bool = False
    hears: bool = False
    width: int = 1
    options: dict[str, Option] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class BatchResult:
    """The results of a batch of lines.

    Attributes:
        results: list, one per line: `Translation` or another result of the runtime.
        lengths: list of int, the tokens of each line as the model read it.
        seconds: float, the time that the batch took.
        description: `Description` of the artefact that computed it.
        replica: str, the id of the process that computed it.
        rest: `Work` of a stream that is not at its end, and has no result yet. Defaults to `None`.
    """

    results: list[Any]
    lengths: list[int]
    seconds: float
    description: Description
    replica: str
    rest: "Work | None" = None


class Engine:
    """Computes batches with one artefact, and with an artefact that replaces it.

    A thread looks at the folder every second. If the manifest has changed, the new artefact is
    opened while the old one is still in use. A folder that cannot be opened changes nothing. It is
    tried again when a file in it changes, or after `RETRY_SECONDS` seconds.

    Args:
        folder: path of an artefact.
        providers: as in `Translator`.
        threads: int, threads of a batch.
        workers: int, batches that may be computed at the same time. On the CPU each has its own
            session, within `SESSION_BYTES`.
        batch_tokens: int, the tokens of a batch by the queue's estimate. A batch of more than twice
            as many is split.
    """

    def __init__(
        self,
        folder: StrPath,
        *,
        providers: list[str] | None = None,
        threads: int | None = None,
        workers: int = 1,
        batch_tokens: int = 512,
    ) -> None:
        self._folder = pathlib.Path(folder)
        self._options = {"providers": providers, "threads": threads}
        self._workers, self._most_tokens = workers, 2 * batch_tokens
        self._loaded = self._files().get(MANIFEST_FILE)
        self._failed: dict[str, tuple[int, int, int]] | None = None
        self._failed_at = -RETRY_SECONDS
        self._current = self._open()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def describe(self) -> Description:
        """Returns the `Description` of the artefact in use."""
        return self._current[0]

    def run_batch(
        self, items: Sequence[str | bytes], options: Mapping[str, Any] | None = None
    ) -> BatchResult:
        """Computes a batch in the calling thread.

        Args:
            items: lines.
            options: options of the search, and `seed` of an artefact that samples. Without it,
                equal lines get different samples, because they may come from several requests. A
                `ByLine` has a value for each line.

        Raises:
            Invalid: the model does not read such lines.
            Refusal: the computation failed; the log has the reason.
        """
        with self._runner() as (description, runner):
            start = time.perf_counter()
            # Results hold no lengths. The metrics need them, so the lines are tokenised twice.
            lengths = runner.lengths(items)
            sizes = {"tokens_per_batch": self._most_tokens, "read_ahead": max(1, len(items))}
            options, calls = options or {}, [list(range(len(items)))]
            if description.samples and SEED not in options:
                calls = _without_equal_lines(items)
            results: list[Any] = [None] * len(items)
            for call in calls:
                call_options = {
                    name: [value[i] for i in call] if isinstance(value, ByLine) else value
                    for name, value in options.items()
                }
                found = runner.results([items[i] for i in call], **sizes, **call_options)
                for i, result in zip(call, found, strict=True):
                    results[i] = result
            seconds = time.perf_counter() - start
        return BatchResult(results, lengths, seconds, description, str(os.getpid()))

    def run_stream(
        self,
        prompt: str | bytes | Work,
        options: Mapping[str, Any] | None,
        emit: Callable[[Any], bool],
    ) -> BatchResult:
        """Continues a prompt or transcribes sound, in the calling thread.

        Args:
            prompt: line, or bytes of a sound file for a model that `hears`; or the `rest` of an
                earlier call.
            options: as in `run_batch`; for sound, as `Transcriber.work` takes them.
            emit: function that gets each part of the runner's `work`. `False` ends the call.

        Returns:
            `BatchResult` with the result of the `work`; or without a result,
            and with the `rest` of the work, if `emit` has ended the call.

        Raises:
            Invalid, Refusal: as in `run_batch`.
        """
        with self._runner() as (description, runner):
            start, results, lengths, rest = time.perf_counter(), [], [], None
            is_rest = isinstance(prompt, Generator)
            work = prompt if is_rest else runner.work(prompt, **(options or {}))
            try:
                while emit(next(work)):
                    pass
                rest = work
            except StopIteration as end:
                results, lengths = ([value] for value in end.value)
            seconds = time.perf_counter() - start
        return BatchResult(results, lengths, seconds, description, str(os.getpid()), rest)

    @contextlib.contextmanager
    def _runner(self) -> Iterator[tuple[Description, Any]]:
        """Yields the description and an idle runner; turns errors into refusals."""
        description, idle = self._current
        runner = idle.get()
        try:
            yield description, runner
        except ValueError as error:
            raise Invalid(f"The model refuses the request: {error}") from error
        except Exception as error:  # of any kind: clients do not get its text
            logger.exception("a batch has failed")
            raise Refusal(FAILED) from error
        finally:
            idle.put(runner)

    def reload(self) -> None:
        """Loads the artefact in the folder if it is a new one."""
        files = self._files()
        found = files.get(MANIFEST_FILE)
        if found is None or found == self._loaded:
            return
        if files == self._failed and time.monotonic() < self._failed_at + RETRY_SECONDS:
            return
        try:
            self._current = self._open()
        except Exception as error:  # of any kind: the old artefact stays in use
            if files != self._failed:
                reason = f"{type(error).__name__}: {error}"
                logger.warning("%s was replaced, and is not served: %s", self._folder, reason)
            self._failed, self._failed_at = files, time.monotonic()
        else:
            self._loaded = found  # If it was replaced meanwhile, the next check notices.
            logger.info("%s was replaced: version %s", self._folder, self.describe().version)

    def _open(self) -> tuple[Description, queue.SimpleQueue[Any]]:
        """Opens the artefact; returns its description, and a queue of runners for the workers."""
        runners = [open_runner(self._folder, **self._options)]
        manifest = runners[0].manifest
        if runners[0].provider == "CPUExecutionProvider":
            size = sum(file["bytes"] for file in manifest["files"].values())
            count = min(self._workers, SESSION_BYTES // max(1, size))
            runners += [open_runner(self._folder, **self._options) for _ in range(count - 1)]
        if len({runner.manifest["checksum"] for runner in runners}) > 1:
            raise ArtefactError(f"{self._folder} was replaced while it was opened.")
        idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for number in range(self._workers):
            idle.put(runners[number % len(runners)])
        return _description(runners[0]), idle

    def _files(self) -> dict[str, tuple[int, int, int]]:
        """Returns values that change with the folder's files, by name; none without a folder."""
        try:
            found = {file.name: file.stat() for file in os.scandir(self._folder)}
        except OSError:
            return {}
        return {name: (stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in found.items()}

    def close(self) -> None:
        """Ends the thread that looks at the folder."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(FOLDER_CHECK_SECONDS):
            self.reload()


def _description(runner: Any) -> Description:
    manifest = runner.manifest
    task, config = manifest["task"], (manifest.get("search") or {}).get("config", {})
    return Description(
        task,
        manifest["checksum"][:12],
        runner.samples,
        runner.streams and task == "generate",
        runner.hears,
        config.get("beam_width", config.get("num_samples", 1)),
        runner.options,
    )


def _without_equal_lines(items: Sequence[str | bytes]) -> list[list[int]]:
    """Returns groups of indices. They cover all items, and no group has two equal items."""
    groups: list[list[int]] = []
    seen: collections.Counter[bytes] = collections.Counter()
    for index, item in enumerate(items):
        content = pickle.dumps(item)  # items may be arrays
        if seen[content] == len(groups):
            groups.append([])
        groups[seen[content]].append(index)
        seen[content] += 1
    return groups
