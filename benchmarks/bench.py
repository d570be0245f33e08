"""The harness of the benchmarks: arguments, engines in turn, figures, JSON and tables.

A benchmark reads its arguments, measures engines in turn, and hands its figures to `finish`:

    parser = bench.Parser(__doc__, "model", "rounds", rounds=5)
    args = parser.parse_args()
    tasks = {name: {"threads": args.threads} for name in ("ours", "theirs")}
    with bench.engines("mine:open_engine", tasks) as opened:
        answers = bench.in_turn(opened, args.rounds, batch=32)
    bench.finish(args, "mine", {"rounds": args.rounds, "rows": [bench.medians(answers["ours"])]})

An engine is a function from a task (a dict) to facts and a function that runs one round. It gets a
separate process, which shows its peak memory and separates frameworks. A new engine is a row in
the script's table of engines; a new comparison is a new task. The table "mine" is a row in
`columns.TABLES`.

This module imports no framework, because a process that compares engines must hold no memory of
their device, and an engine's process only what that engine needs.
"""

import argparse
import collections
import contextlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Scripts find the whole harness here.
from machine import busy_cores as busy_cores
from machine import matrix_rate as matrix_rate
from machine import memory as memory
from machine import processor as processor
from workers import Missing as Missing
from workers import Worker as Worker
from workers import WorkerError as WorkerError
from workers import call as call
from workers import command as command
from workers import engines as engines

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("tensorflow", "keras", "onnxruntime", "ctranslate2", "torch", "sentencepiece", "numpy")
# Seconds between two engines. OpenMP's threads spin for up to 0.2 s after their work, which would
# disturb the next engine.
PAUSE = 0.3
# Serving processes import no framework; see `keras_transformer.startup`.
SERVES = {"KERAS_TRANSFORMER_SERVES": "1"}
# CTranslate2 chooses its library for products by `CT2_USE_MKL` when it is loaded. Neither is always
# faster, so a comparison runs both, and the better one counts.
CTRANSLATE2 = ("ctranslate2", "ctranslate2, MKL")
OPTIONS: dict[str, dict[str, Any]] = {
    "data": {"type": Path, "help": "folder of the data sets; default: KERAS_TRANSFORMER_DATA"},
    "model": {"type": Path, "help": "folder of a trained or published model"},
    "work": {"type": Path, "help": "folder that keeps intermediate files for another run"},
    "rounds": {"type": int, "help": "rounds that are measured"},
    "busy": {"type": int, "nargs": "+", "help": "numbers of cores that a loop keeps busy"},
    "clock": {"choices": ("wall", "cpu"), "help": "cpu: for a busy machine, with --threads 1"},
    "threads": {"type": int, "help": "threads of each engine"},
    "output": {"type": Path, "help": "where to write the figures as JSON"},
}
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Parser(argparse.ArgumentParser):
    """A parser with the arguments that benchmarks share; `--threads` and `--output` always.

    Args:
        doc: docstring of the script, whose first line is the description.
        *options: names of further `OPTIONS`. Paths among them are required, unless the name ends
            with "?".
        **defaults: default values of options. Defaults to the number of cores for `threads`, and to
            3 rounds, no busy cores and the wall clock.

    Example:

    >>> parser = Parser("Times of a block.", "rounds", threads=1)
    >>> parser.parse_args(["--rounds", "2"])
    Namespace(rounds=2, threads=1, output=None)
    """

    def __init__(self, doc: str, *options: str, **defaults: Any) -> None:
        super().__init__(description=doc.splitlines()[0])
        self._given = [name.removesuffix("?") for name in options]
        data = os.environ.get("KERAS_TRANSFORMER_DATA")
        for name in (*options, "threads", "output"):
            settings = OPTIONS[name.removesuffix("?")]
            required = name in ("data", "model", "work") and not (name == "data" and data)
            self.add_argument(f"--{name.removesuffix('?')}", required=required, **settings)
        known = {"data": data and Path(data), "rounds": 3, "busy": [0], "clock": "wall"}
        chosen = {name: value for name, value in known.items() if name in self._given}
        self.set_defaults(**{"threads": os.cpu_count(), **chosen, **defaults})

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses arguments; `--data` must be a folder, and `--work` is made."""
        found = super().parse_args(args, namespace)
        data = found.data if "data" in self._given else None
        if data and not data.is_dir():
            self.error(f"no such folder: {data}; pass --data or set KERAS_TRANSFORMER_DATA")
        if "work" in self._given and found.work:
            found.work.mkdir(parents=True, exist_ok=True)
        return found


# Rounds and their figures.


def in_turn(
    runs: Mapping[Any, Callable[..., Any]],
    rounds: int,
    warm_up: int = 1,
    pause: float = PAUSE,
    **request: Any,
) -> dict[Any, list[Any]]:
    """Runs each engine once in each round, so that a slow moment of the machine affects all.

    Args:
        runs: dict from names to `Worker`s or other functions.
        rounds: number of rounds that count.
        warm_up: number of rounds before them. Defaults to 1.
        pause: seconds before each run if there are several. Defaults to `PAUSE`.
        **request: values for each run.

    Returns:
        Dict from names to the list of answers.

    Example:

    >>> in_turn({"double": lambda x: 2 * x}, rounds=3, x=21)
    {'double': [42, 42, 42]}
    """
    answers: dict[Any, list[Any]] = {name: [] for name in runs}
    for number in range(warm_up + rounds):
        for name, run in runs.items():
            time.sleep(pause if len(runs) > 1 else 0)
            found = run(**request)
            if number >= warm_up:
                answers[name].append(found)
    return answers


def medians(answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the median of each figure over the rounds.

    >>> medians([{"seconds": 1.0}, {"seconds": 5.0}, {"seconds": 2.0}])
    {'seconds': 2.0}
    """
    return {key: statistics.median(one[key] for one in answers) for key in answers[0]}


def ratio(upper: Iterable[float], lower: Iterable[float]) -> float:
    """Returns the median of the rounds' ratios.

    >>> ratio([2.0, 9.0, 4.0], [1.0, 3.0, 2.0])
    2.0
    """
    return statistics.median(a / b for a, b in zip(upper, lower, strict=True))


def timed(run: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> Any:
    """Returns the seconds of a call by the clock, and its result."""
    start = clock()
    found = run()
    return clock() - start, found


def same_work(count: float, other: float) -> bool:
    """Returns whether two numbers of tokens or words are at most 2 % apart."""
    return abs(count - other) <= 0.02 * max(count, other)


def size(folder: Path) -> int:
    """Returns the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# Reports.


def head(args: argparse.Namespace, *packages: str) -> dict[str, Any]:
    """Returns the head of a report: date, machine and versions of `PACKAGES` and further ones."""
    import importlib.metadata  # late: with its imports it takes 4 MB in the engines' processes

    found: dict[str, str | None] = dict.fromkeys((*PACKAGES, *packages))
    for package in found:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "threads": args.threads},
        "python": platform.python_version(),
        "versions": found,
    }


def earlier(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the report that `--output` holds already; an empty dict if there is none."""
    if args.output and args.output.exists():
        return json.loads(args.output.read_text("utf-8"))
    return {}


def kept(path: Path, measure: Callable[[], Any]) -> Any:
    """Returns the figures in a file; measures and writes them if it is missing."""
    if not path.exists():
        write(measure(), path)
    return json.loads(path.read_text("utf-8"))


def keep(args: argparse.Namespace, content: Mapping[str, Any], *packages: str) -> dict[str, Any]:
    """Writes the figures so far below their head, if there is an `--output`; returns the report."""
    report = {**head(args, *packages), **content}
    if args.output:
        write(report, args.output)
    return report


def finish(
    args: argparse.Namespace, table: str, content: Mapping[str, Any], *packages: str
) -> dict[str, Any]:
    """Writes the report and prints its table.

    Args:
        args: with `threads` and `output`.
        table: name of its table in `columns.TABLES`.
        content: figures.
        *packages: whose versions the report names beside `PACKAGES`.

    Returns:
        The report.
    """
    from columns import TABLES

    report = keep(args, content, *packages)
    print(TABLES[table](report), flush=True)
    return report


def write(report: Any, path: Path) -> None:
    """Writes a report as JSON, atomically.

    This does not use `keras_transformer.files`, because the package imports the frameworks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"part-{path.name}")
    aside.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
    os.replace(aside, path)
    print(f"written to {path}")


def grouped(rows: Iterable[Mapping[str, Any]], *keys: str) -> dict[tuple[Any, ...], list[Any]]:
    """Groups rows by the values of some keys, in order.

    >>> grouped([{"size": 1, "s": 5}, {"size": 2, "s": 7}, {"size": 1, "s": 3}], "size")
    {(1,): [{'size': 1, 's': 5}, {'size': 1, 's': 3}], (2,): [{'size': 2, 's': 7}]}
    """
    found = collections.defaultdict(list)
    for row in rows:
        found[tuple(row.get(key) for key in keys)].append(row)
    return dict(found)
