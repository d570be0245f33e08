"""Runs a whole job: plans it, computes the missing parts with Ray Data, and shows progress."""

import contextlib
import logging
import os
import pathlib
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from keras_transformer.export.archive.outputs import ENDINGS
from keras_transformer.export.archive.plan import (
    ArchiveError,
    JobPart,
    JobPlan,
    check_same,
    find_inputs,
    groups,
    make_plan,
    read_plan,
    write_plan,
)
from keras_transformer.export.archive.worker import TRIES_ENDING, Worker
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.options import exported_seed
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.ray_cluster import RayError, ray_settings, running_ray
from keras_transformer.export.runtime.console import tell
from keras_transformer.files import checked_path
from keras_transformer.types import StrPath

PART_LINES = 2000
LOCK_FILE = ".lock"
GO_ON = " Finished parts stay: correct the problem, and run the same command again."


def run_archive(
    artefact: StrPath,
    inputs: Sequence[StrPath],
    folder: StrPath,
    *,
    format: str = "parquet",
    column: str = "text",
    with_source: bool = False,
    part_lines: int = PART_LINES,
    batch_tokens: int = 2048,
    seed: int | None = None,
    address: str = "local",
    workers: int | None = None,
    threads: int = 1,
    gpus: float = 0,
    providers: list[str] | None = None,
    quiet: bool = False,
) -> dict[str, int]:
    """Computes the results of all lines of the input files, and writes them to a folder, in order.

    A job that was stopped or killed continues in its folder: finished parts stay as they are.
    Several machines must see artefact, inputs and folder under the same paths.

    Args:
        artefact: folder that `export_onnx` wrote. Its task must give one result for each line.
        inputs: list of files, or of patterns such as ``"in/*.txt.gz"``: text, JSON lines or
            Parquet, by their names. The order of the list is kept; the files of a pattern are
            sorted by name.
        folder: folder to fill: a new one, an empty one, or one of the same job.
        format: "parquet", "jsonl" (a JSON object per line) or "text" (a text per line, errors in
            files beside it). The last two are packed by gzip. Defaults to "parquet".
        column: str, the column to read in Parquet and JSON lines. Defaults to "text".
        with_source: bool, whether the source text is written, too, in its own column.
        part_lines: int, lines of a part. Up to five parts, of 10,000 lines at most, are computed
            together; a killed worker loses these. Defaults to 2,000. For jobs of many millions of
            lines, take more to get fewer files.
        batch_tokens: int, most tokens of a batch, padding included.
        seed: int, of artefacts that sample. Defaults to `None`: the seed of the exported search;
            without one, the whole job draws one.
        address: of a Ray cluster, such as "auto". Defaults to "local", this machine alone. Ray
            then listens on 127.0.0.1 only, unless the program has imported Ray before. If Ray
            already runs in this process, it is used.
        workers: int, processes. Defaults to `None`: all that the cluster has room for when the
            job begins.
        threads: int, cores of a worker. Defaults to 1, which is fastest for many lines.
        gpus: int or float, GPUs of a worker. Defaults to 0.
        providers: list of ONNX Runtime's execution providers, as `Translator` takes it.
        quiet: bool, print no progress on stderr.

    Returns:
        Dict: `parts` and `lines` of the whole job; `answered` and `errors`: lines of this run, and
        the number without a result.

    Raises:
        ArchiveError: the folder is of another job or in use, an input file has changed or cannot be
            read, or a worker failed; the message says how to continue.
        ArtefactError: the artefact is damaged, or none.
        ValueError: an argument is wrong.
        ImportError: Ray or PyArrow is missing.

    Example:

    >>> run_archive("out/onnx", ["in/*.txt.gz"], "out/archive")  # doctest: +SKIP
    {'parts': 50, 'lines': 100000, 'answered': 100000, 'errors': 3}
    """
    sizes = {"part_lines": part_lines, "batch_tokens": batch_tokens, "threads": threads}
    _check_arguments(format, workers, **sizes)
    if gpus < 0:
        raise ValueError(f"`gpus` must not be negative, got {gpus}.")
    with ray_settings(address):
        _check_installed()
    artefact, folder = pathlib.Path(artefact).absolute(), checked_path(folder).absolute()
    manifest = read_artefact(artefact).manifest
    _check_task(manifest, seed)
    options = {
        "artefact": manifest["checksum"],
        "format": format,
        "column": column,
        "with_source": with_source,
        "part_lines": part_lines,
        "batch_tokens": batch_tokens,
        "seed": exported_seed(manifest) if seed is None else seed,
    }
    paths = find_inputs(inputs)
    folder.mkdir(parents=True, exist_ok=True)
    read_plan(folder)  # raises before a lock file is written into a foreign folder
    with _locked(folder):
        plan = _planned(folder, options, paths, _samples(manifest))
        parts, there = plan.parts(), set(os.listdir(folder))
        missing = [part for part in parts if part.name not in there]
        left, errors = sum(part.lines for part in missing), 0
        progress = JobProgress(plan.lines, plan.lines - left, quiet)
        progress.print()
        if missing:
            arguments = str(artefact), str(folder), plan.options, providers, threads
            cores = max(os.cpu_count() or 1, (workers or 1) * threads)
            with _ray_errors(), running_ray(address, num_cpus=cores):
                for done in _compute(missing, arguments, workers, threads, gpus):
                    errors += done["errors"]
                    progress.add(done["lines"])
            progress.print()
    return {"parts": len(parts), "lines": plan.lines, "answered": left, "errors": errors}


def _check_arguments(format: str, workers: int | None, **sizes: int) -> None:
    if format not in ENDINGS:
        raise ValueError(f"`format` must be one of {sorted(ENDINGS)}, got {format!r}.")
    for name, value in {**sizes, "workers": workers}.items():
        if value is not None and value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}.")


def _check_installed() -> None:
    try:
        import pyarrow  # noqa: F401
        import ray.data  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            f"An archive job needs {error.name}, which is not installed here. Install it with: "
            "pip install 'ray[data]'",
            name=error.name,
        ) from error


def _check_task(manifest: dict[str, Any], seed: int | None) -> None:
    """Raises an error for an artefact without a head, or a seed that it does not use."""
    if manifest["task"] == "forward":
        raise ArchiveError(
            "This artefact was exported without a head, so its outputs have no columns. Export "
            "the model with a head, such as FeatureExtraction, or run the lines through Predictor."
        )
    if seed is not None and not _samples(manifest):
        raise ValueError("`seed` was passed, but this artefact draws no random numbers.")
    if seed is not None and not 0 <= seed <= signature.MOST_SEED:
        raise ValueError(f"`seed` must be from 0 to {signature.MOST_SEED}, got {seed}.")


def _samples(manifest: dict[str, Any]) -> bool:
    return any(value["name"] == signature.SEED for value in manifest["inputs"])


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Locks the folder against a second job; the system unlocks it when this one ends."""
    import fcntl  # not on Windows, where Ray has no clusters either

    with open(folder / LOCK_FILE, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ArchiveError(
                f"{folder} is in use by another job. Wait for its end, or stop it."
            ) from error
        for tries in folder.glob(f".*{TRIES_ENDING}"):
            tries.unlink()
        yield


def _planned(
    folder: pathlib.Path, options: dict[str, Any], paths: list[str], samples: bool
) -> JobPlan:
    """Returns the plan in the folder, if it is for the same job; else writes a new one there."""
    plan = read_plan(folder)
    if plan is None:
        if samples and options["seed"] is None:
            options["seed"] = secrets.randbelow(signature.MOST_SEED + 1)
        plan = make_plan(options, paths)
        write_plan(plan, folder)
    else:
        if options["seed"] is None:
            options["seed"] = plan.options["seed"]
        check_same(plan, options, paths, folder)
    return plan


def _compute(
    parts: list[JobPart], arguments: tuple[Any, ...], workers: int | None, threads: int, gpus: float
) -> Iterator[dict[str, Any]]:
    """Runs a `Worker` over all parts with Ray Data; yields its result for each group.

    Raises:
        ArchiveError: a worker could not compute its parts.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(m.get("CPU", 0) >= threads and m.get("GPU", 0) >= gpus for m in machines):
        found = [f"{m.get('CPU', 0):g} cores and {m.get('GPU', 0):g} GPUs" for m in machines]
        raise ArchiveError(
            f"No machine has room for a worker with {threads} cores and {gpus:g} GPUs. Ray found "
            f"{'; '.join(found)}. Pass fewer."
        )
    if workers is None:
        room = ray.cluster_resources()
        workers = int(room.get("CPU", 1) // threads)
        workers = max(1, min(workers, int(room.get("GPU", 0) // gpus)) if gpus else workers)
    workers = min(workers, len(parts))
    rows = [{"parts": [part._asdict() for part in group]} for group in groups(parts, workers)]
    # Each group is a block, which the next free worker takes. Each worker has one more waiting,
    # because Ray takes a tenth of a second to hand out the next one.
    done = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        Worker,
        fn_constructor_args=arguments,
        compute=ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2),
        num_cpus=threads,
        num_gpus=gpus,
    )
    for row in done.iter_rows():
        if row["failure"]:
            raise ArchiveError(f"A worker failed: {row['failure']}.{GO_ON}")
        yield row


@contextlib.contextmanager
def _ray_errors() -> Iterator[None]:
    """Turns errors of Ray into an `ArchiveError` of one line."""
    import ray

    try:
        yield
    except RayError as error:
        raise ArchiveError(f"{error}.{GO_ON}") from error
    except ray.exceptions.RayError as error:
        reason = str(error).partition("\n")[0]
        raise ArchiveError(f"Ray failed: {reason}.{GO_ON}") from error


class JobProgress:
    """The progress of a job on standard error: lines done, lines per second, the time left.

    A terminal shows one line, which is redrawn; a file gets a new line now and then.

    Args:
        total: int, lines of the job.
        done: int, lines of an earlier run.
        quiet: bool, print nothing.
    """

    def __init__(self, total: int, done: int = 0, quiet: bool = False) -> None:
        self._total, self._before = total, done
        self.done: int = done
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._quiet, self._end = quiet, "" if terminal else "\n"
        self._begin, self._pause = "\r\033[K" if terminal else "", 0.5 if terminal else 30
        self._start = self._last = time.monotonic()

    def add(self, lines: int) -> None:
        """Counts lines that were done, and prints from time to time."""
        self.done += lines
        if time.monotonic() - self._last >= self._pause and self.done < self._total:
            self._last = time.monotonic()
            self.print(self._end)

    def print(self, end: str = "\n") -> None:
        """Prints the progress."""
        if not self._quiet:
            tell(f"{self._begin}{self}{end}")

    def __str__(self) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        rate = (self.done - self._before) / seconds
        share = self.done / max(1, self._total)
        text = f"{self.done:,} of {self._total:,} lines, {share:.1%}, {rate:,.1f} lines/s"
        if not rate or self.done == self._total:
            return text
        minutes, seconds = divmod(round((self._total - self.done) / rate), 60)
        return f"{text}, {minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"
