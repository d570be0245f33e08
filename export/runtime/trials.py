"""Trials of execution providers: whether one starts, which nodes it runs, and how fast.

Shapes: made-up inputs have `B` = 2 rows, and 13 wherever the manifest names a length.
"""

import collections
import contextlib
import io
import pathlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import Artefact
from keras_transformer.export.runtime.installation import Installation
from keras_transformer.export.runtime.session import CPU, CUDA, PRECISIONS_FOR_CUDA, open_session
from keras_transformer.special_ids import END_ID
from keras_transformer.types import Array

ROWS, LENGTH = 2, 13


@dataclass(frozen=True)
class Trial:
    """The outcome of a trial.

    Attributes:
        provider: str.
        error: str, why it cannot serve; or None.
        nodes: dict from providers to the number of nodes that each runs.
        on_cpu: dict from operators that run on the CPU instead to their number of nodes, most
            first.
        shapes: dict from names to shapes of the made-up inputs.
        seconds: tuple of float, times of the first run and of the next.
    """

    provider: str
    error: str | None = None
    nodes: dict[str, int] = field(default_factory=dict)
    on_cpu: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    seconds: tuple[float, ...] = ()


class Example(Artefact):
    """An example model of onnxruntime, to try providers without an artefact."""

    @property
    def model_paths(self) -> list[pathlib.Path]:
        return [self.folder / "sigmoid.onnx"]


def example() -> Example:
    """Returns the `Example`, in place of an `Artefact`."""
    from onnxruntime.datasets import get_example  # here: a broken onnxruntime has no such module

    values = [{"name": name, "dtype": "float32", "axes": [3, 4, 5]} for name in "xy"]
    manifest = {"inputs": values[:1], "outputs": values[1:], "precision": "float32"}
    manifest |= {"vocab_size": {"source": None, "target": None}, "versions": {}}
    manifest["limits"] = {"source_length": LENGTH}
    return Example(pathlib.Path(get_example("sigmoid.onnx")).parent, manifest, None)


def candidates(
    found: Installation, precision: str, asked: Sequence[str] | None = None
) -> list[list[str]]:
    """Returns the lists of providers to try, best first. Requested providers are the best.

    Args:
        found: Installation.
        precision: str, precision of the artefact.
        asked: list of str, requested providers; or None.
    """
    gpu = CUDA in found.providers or (found.driver.library and found.driver.error is None)
    if asked:
        best = list(asked)
    elif precision == "float16" or (gpu and precision in PRECISIONS_FOR_CUDA):
        best = [CUDA]
    else:
        best = [CPU]
    last = [] if precision == "float16" or best[0] == CPU else [[CPU]]
    return [best, *last]


def made_up_inputs(manifest: dict[str, Any]) -> dict[str, Array]:
    """Returns inputs that fit the manifest, a dict of arrays: ids, True, or normal numbers."""
    random = np.random.default_rng(7)
    length = min(LENGTH, manifest["limits"]["source_length"])
    sizes = manifest["vocab_size"]
    inputs = {}
    for value in manifest["inputs"]:
        name, dtype = value["name"], value["dtype"]
        free = {axis: length for axis in value["axes"]} | {"batch": ROWS}
        shape = [axis if isinstance(axis, int) else free[axis] for axis in value["axes"]]
        known = sizes["target" if name == signature.TARGET_IDS else "source"]
        if dtype in ("int32", "int64"):
            ids = name not in (signature.SEED, signature.SEGMENT_IDS) and known is not None
            low, high = (min(END_ID + 1, known - 1), known) if ids else (1, 2)
            inputs[name] = random.integers(low, high, shape).astype(dtype)
        elif dtype == "bool":
            inputs[name] = np.ones(shape, bool)
        else:
            inputs[name] = random.standard_normal(shape).astype(dtype)
    return inputs


def try_providers(
    artefact: Artefact,
    providers: list[str],
    threads: int | None = None,
    opens: Any = open_session,
) -> Trial:
    """Runs the `Trial` of a list of providers on an artefact; `opens` opens the session."""
    trial = Trial(providers[0])
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # onnxruntime prints what it cannot load
            session = opens(artefact, providers, threads=threads)
    except ValueError as error:
        return replace(trial, error=str(error))
    nodes, on_cpu = _nodes(session, providers[0])
    trial = replace(trial, nodes=nodes, on_cpu=on_cpu)
    try:
        inputs = made_up_inputs(artefact.manifest)
        trial = replace(trial, shapes={name: array.shape for name, array in inputs.items()})
        seconds = tuple(_seconds(session, inputs) for _ in range(2))
    except Exception as error:  # onnxruntime's errors have no common base below Exception
        return replace(trial, error=f"it came up, and failed to run made-up inputs: {error}")
    return replace(trial, seconds=seconds)


def _nodes(session: Any, provider: str) -> tuple[dict[str, int], dict[str, int]]:
    """Counts the nodes of each provider, and the operators that run on the CPU instead."""
    nodes, on_cpu = collections.Counter(), collections.Counter()
    for part in session.get_provider_graph_assignment_info():
        operators = [node.op_type for node in part.get_nodes()]
        nodes[part.ep_name] += len(operators)
        if part.ep_name == CPU != provider:
            on_cpu.update(operators)
    return dict(nodes), dict(on_cpu.most_common())


def _seconds(session: Any, inputs: dict[str, Array]) -> float:
    start = time.perf_counter()
    session.run(None, inputs)
    return time.perf_counter() - start


def verdict(trials: Sequence[Trial]) -> tuple[int, str]:
    """Returns the exit status, also in words, of trials from the best to the first that serves.

    0: it will serve as asked; 1: only on another provider than the best; 2: it cannot serve.
    """
    if not trials or trials[-1].error is not None:
        return 2, "cannot serve here"
    best, last = trials[0].provider, trials[-1].provider
    if len(trials) == 1:
        return 0, f"serves on {best}"
    return 1, f"serves on {last} only (--provider {last}): the best, {best}, does not come up"
