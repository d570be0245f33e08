"""Shared by all exporters: prepare, write, prove, seal.

An exporter is a `Format`: a function that writes a folder, and a function that runs the written
files. `export` does the rest. It stages the folder, compares the results with Keras' results, and
moves the folder into place.

Shapes: of inputs and outputs as in `artefact.signature`.
"""

import abc
import datetime
import itertools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.proof.comparison import TOLERANCES
from keras_transformer.export.staging import Progress, WhyNot, staged
from keras_transformer.types import Array, StrPath

Case: TypeAlias = Mapping[str, Array]
MOST_EXAMPLE = 2000  # numbers of a batch that a manifest holds


class Rule(NamedTuple):
    """A rule that the arguments of an export may break.

    Attributes:
        error: the error to raise.
        broken: function of the arguments, whether they break the rule. The rules before it hold.
        message: function of the arguments, the text of the error.
    """

    error: type[Exception]
    broken: Callable[[Any], Any]
    message: Callable[[Any], str]


def check_rules(rules: Iterable[Rule], arguments: Any) -> None:
    """Raises the error of the first rule that is broken."""
    for rule in rules:
        if rule.broken(arguments):
            raise rule.error(rule.message(arguments))


class Task(Protocol):
    """A function to export: its inputs for the proof, Keras' results, and their comparison."""

    def cases(self, samples: Sequence[Any] | None = None) -> Sequence[Case]:
        """Returns the inputs of the proof; random ones if `samples` is `None`."""

    def expected(self, case: Case) -> Any:
        """Returns Keras' results for a case."""

    def compare(
        self,
        cases: Sequence[Case],
        expected: Sequence[Any],
        found: Sequence[Case],
        tolerance: float,
        exact: bool = True,
    ) -> float:
        """Raises `ExportError` unless the files gave Keras' results; returns the largest error."""

    def same_tokens(self, expected: Sequence[Any], found: Sequence[Case]) -> list[int] | None:
        """Returns the numbers of lines with Keras' tokens and of all lines; `None` for none."""


class Part(NamedTuple):
    """A function that the written files compute, and the inputs of its proof.

    Attributes:
        task: the function in Keras, and the comparison of results.
        cases: inputs of the proof, dicts of arrays.
        name: name of the function in the files. Defaults to "", for files with one function.
        made_up: whether the inputs are random. Defaults to `False`.
    """

    task: Task
    cases: Sequence[Case]
    name: str = ""
    made_up: bool = False


def part_of(task: Task, samples: Sequence[Any] | None = None, name: str = "") -> Part:
    """Returns the `Part` of a task.

    Args:
        task: the function.
        samples: inputs of the user. Defaults to `None`: random ones.
        name: as in `Part`.

    Raises:
        ValueError: the task cannot read a sample.
    """
    return Part(task, task.cases(samples), name, samples is None)


class Format(abc.ABC):
    """A format to write. A subclass defines `why_not`, `parts`, `write` and `run`.

    Attributes:
        why_not: a `WhyNot`, which recognizes earlier exports.
        parts: the functions in the files. `export` reads them after `write`. Defaults to none:
            files that were proven before.
        precision: of the weights, a key of `TOLERANCES`. Defaults to "float32".
        tolerance: largest error. Defaults to `None`: `TOLERANCES[precision]`.
        tokenizers: tokenizers of source and target that the folder holds; `None` for none.
        example: a batch of the proof, see `example_of`. `export` sets it before `seal`.
    """

    why_not: WhyNot
    parts: Sequence[Part] = ()
    precision: str = "float32"
    tolerance: float | None = None
    tokenizers: Sequence[Any] = ()
    example: dict[str, Any] | None = None

    @abc.abstractmethod
    def write(self, folder: pathlib.Path, progress: Progress) -> None:
        """Writes the files into an empty folder, in stages of `progress`."""

    def run(
        self, folder: pathlib.Path, calls: Sequence[tuple[str, Case]]
    ) -> Sequence[Mapping[str, Array]]:
        """Runs the written files, without Keras if the format needs none.

        Args:
            folder: the folder.
            calls: for each call the name of a part and its inputs.

        Returns:
            The outputs of each call, by name.
        """
        raise NotImplementedError

    def seal(self, folder: pathlib.Path, proof: dict[str, Any]) -> Any:
        """Completes the folder after the proof; `export` returns the result."""
        return None


def export(path: StrPath, made: Format, *others: Format, verbose: bool = True) -> Any:
    """Writes and proves a folder, then moves it into place.

    Args:
        path: folder to write. An earlier export at this place is replaced in one step, at the end.
        made: `Format`.
        *others: formats that add files to the folder, one after another.
        verbose: whether to write the progress to stderr. Defaults to `True`.

    Returns:
        The result of `made.seal`.

    Raises:
        ExportError: a stage or a comparison failed. `path` is unchanged.

    Example:

    >>> export("out/lite", LiteRT(task, samples, "float32"))  # doctest: +SKIP
    """
    progress, names = Progress(verbose), (signature.TOKENIZER_FILE, signature.TARGET_TOKENIZER_FILE)
    with staged(path, made.why_not) as folder:
        proofs = []
        for each in (made, *others):
            each.write(folder, progress)
            proofs.append(_prove(each, folder, progress) if each.parts else {})
        with progress("sealing the folder"):
            for name, tokenizer in zip(names, made.tokenizers, strict=False):
                if tokenizer is not None:
                    tokenizer.save(folder / name)
            return made.seal(folder, proofs[0])


def _prove(made: Format, folder: pathlib.Path, progress: Progress) -> dict[str, Any]:
    """Returns the manifest's `proof`; raises `ExportError` unless the files give Keras' results."""
    parts, exact = made.parts, made.precision == "float32"
    tolerance = TOLERANCES[made.precision] if made.tolerance is None else made.tolerance
    with progress("running Keras for comparison", "Pass samples=[...] that the model can read."):
        expected = [[part.task.expected(case) for case in part.cases] for part in parts]
    calls = [(part.name, case) for part in parts for case in part.cases]
    with progress("proving the files without Keras"):
        outputs = iter(made.run(folder, calls))
        found = [list(itertools.islice(outputs, len(part.cases))) for part in parts]
    with progress("comparing"):
        largest = max(
            part.task.compare(part.cases, one, other, tolerance, exact)
            for part, one, other in zip(parts, expected, found, strict=True)
        )
    relative_to = "size" if exact else "spread"
    lines = sum(len(next(iter(case.values()))) for _, case in calls)
    progress.result(
        f"{lines} lines, largest difference from Keras {largest:.2g} of the numbers' {relative_to}"
    )
    same_tokens = parts[-1].task.same_tokens(expected[-1], found[-1])
    if same_tokens:
        kind = " of random input" if parts[-1].made_up else ""  # rounding changes it more than text
        progress.result("the same tokens in {} of {} lines{}".format(*same_tokens, kind))
    made.example = example_of(parts[0].cases, found[0])
    return {
        "date": datetime.date.today().isoformat(),
        "cases": len(calls),
        "lines": lines,
        "largest_difference": largest,
        "relative_to": relative_to,
        "same_tokens": same_tokens,
    }


def example_of(cases: Sequence[Case], found: Sequence[Case]) -> dict[str, Any] | None:
    """Returns the smallest case and its outputs as the manifest's `example`, `None` if it is large.

    Args:
        cases: inputs of the proof, by name.
        found: the outputs of the written files, by name.
    """
    calls = [{"inputs": a, "outputs": b} for a, b in zip(cases, found, strict=True)]
    sizes = [sum(map(np.size, (*a.values(), *b.values()))) for a, b in map(dict.values, calls)]
    call = calls[int(np.argmin(sizes))]
    outputs = [np.asarray(array) for array in call["outputs"].values()]
    finite = all(array.dtype.kind in "biuf" and np.isfinite(array).all() for array in outputs)
    if min(sizes) > MOST_EXAMPLE or not finite:
        return None
    return {
        side: {name: np.asarray(array).tolist() for name, array in arrays.items()}
        for side, arrays in call.items()
    }
