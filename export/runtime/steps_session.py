"""Runs a search whose loop is outside of the graph: one `run_with_iobinding` per step, no copies.

The artefact's layout "steps" has two files. `first.onnx` outputs all tensors that `step.onnx`
reads, under the same names. `step.onnx` outputs the tensors that a step changes, with `NEXT` before
their names:

- keys and values, named `blocks...`, have slots for every step from the start. Input and output are
  the same buffer: ONNX Runtime's ScatterND then writes the slots of the step and copies nothing;
- other tensors are small. They alternate between two buffers, because a step may still read the old
  one.

Shapes do not change between steps, and the host reads only `UNFINISHED`, one boolean. So a step can
be a CUDA graph: recorded once, then started as a whole. A graph always reads and writes the buffers
of its recording, so the buffers of a shape are kept.

Shapes: B sentences, W hypotheses of each, R rows of tokens (W, or more: the last W count), L
maximum steps, T tokens of the longest hypothesis.
"""

import itertools
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from keras_transformer.export.artefact.signature import (
    HISTORY,
    NEXT,
    RUNNING,
    SCORES,
    SEARCH_OUTPUTS,
    SLOTS,
    START_LENGTH,
    TOKEN_IDS,
    UNFINISHED,
)
from keras_transformer.types import Array, Ids

# The number of shapes for which a thread keeps buffers and CUDA graphs. Further shapes run without,
# because ONNX Runtime keeps a graph as long as its session.
MOST_SHAPES = 64
# ONNX Runtime's entry of `RunOptions` that names the CUDA graph of a run; "-1" stands for none.
GRAPH_ID = "gpu_graph_id"


class Buffers(NamedTuple):
    """The buffers that the steps of one call read and write.

    Attributes:
        pair: two dicts of `OrtValue`, inputs and outputs of a step; they swap after each step.
        bindings: two bindings, from the first to the second and back.
        graphs: two `RunOptions`, which name the CUDA graph of each binding.
        unfinished: `OrtValue`, one boolean.
    """

    pair: tuple[dict[str, Any], dict[str, Any]]
    bindings: tuple[onnxruntime.IOBinding, ...]
    graphs: tuple[onnxruntime.RunOptions, ...]
    unfinished: onnxruntime.OrtValue


class SearchState(NamedTuple):
    """A search after some of its steps. The next step overwrites the tensors.

    Attributes:
        tensors: dict of `OrtValue`, inputs of the next step.
        steps: int, number of steps so far.
        unfinished: bool, whether another step is needed.
    """

    tensors: Mapping[str, Any]
    steps: int
    unfinished: bool

    def outputs(self, names: Sequence[str]) -> dict[str, Array]:
        """Returns outputs of the search by name: ids (B, W, T), scores (B, W), others."""
        others = [name for name in names if name not in (TOKEN_IDS, SCORES)]
        scores = self._array(SCORES)
        width = scores.shape[1]
        records = [self._record(name)[:, -width:] for name in (HISTORY, *others)]
        prompt_length = self._array(START_LENGTH) if START_LENGTH in self.tensors else None
        found = final_outputs(records[0], scores, prompt_length, *records[1:])
        return dict(zip((TOKEN_IDS, SCORES, *others), found, strict=True))

    def shared_ids(self) -> Ids:
        """Returns the tokens (t,) with which the first sentence's result will begin.

        All hypotheses that can still win share them. So a later state has the same ones, or more.
        """
        history, running, scores = (
            array[0] for array in (self._record(HISTORY), self._array(RUNNING), self._array(SCORES))
        )
        lives = np.zeros(len(history), bool)  # (R,)
        lives[: len(running)] = running > -np.inf
        lives[-len(scores) :] |= scores > -np.inf
        if not lives.any():
            return history[0, :0]
        start = self._array(START_LENGTH)[0, 0] - 1 if START_LENGTH in self.tensors else 0
        rows = history[lives, start:]
        same = np.logical_and.accumulate((rows == rows[0]).all(axis=0))
        return rows[0, : same.sum()]

    def _array(self, name: str) -> Array:
        return self.tensors[name].numpy()

    def _record(self, name: str) -> Array:
        """Returns the columns of the steps so far, (B, R, t, ...)."""
        record = self._array(name)
        return record[:, :, record.shape[2] - self.steps :]


class StepsSession:
    """Two sessions that run as one, with the methods of an `InferenceSession` that runners call.

    Threads can share it: each call has its own buffers, or each thread if they are kept.

    Args:
        first, step: `onnxruntime.InferenceSession` of the two files.
        device: ONNX Runtime's name of the device: "cpu" or "cuda".
        graphs: whether `step` records CUDA graphs (`enable_cuda_graph` of its provider), so that
            buffers are kept for each shape of the inputs. Defaults to `False`.
    """

    def __init__(self, first: Any, step: Any, device: str = "cpu", graphs: bool = False):
        self.first: Any = first
        self.step: Any = step
        self.device: str = device
        self.graphs: bool = graphs
        self._read = [value.name for value in step.get_inputs()]
        self._changed = [
            value.name.removeprefix(NEXT)
            for value in step.get_outputs()
            if value.name != UNFINISHED
        ]
        self._kept = threading.local()  # each thread has its own, like ONNX Runtime's graphs
        self._graph_ids = itertools.count(1)  # ONNX Runtime uses 0

        self.get_inputs: Callable[[], list[Any]] = first.get_inputs
        self.get_providers: Callable[[], list[str]] = step.get_providers

    def get_outputs(self) -> list[Any]:
        """Returns the outputs of the search, with names only."""
        return [
            types.SimpleNamespace(name=name)
            for name in SEARCH_OUTPUTS
            if name == TOKEN_IDS or name in self._changed
        ]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """Returns the assignment of nodes to providers in both files."""
        sessions = (self.first, self.step)
        return [part for one in sessions for part in one.get_provider_graph_assignment_info()]

    def run(self, names: Sequence[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        """Returns the outputs `names`, or all: ids, int32 (B, W, T), scores, float32 (B, W), ...

        Args:
            names: list of names, or `None`.
            inputs: dict of arrays, the inputs of `first.onnx`.
        """
        names = names or [value.name for value in self.get_outputs()]
        for state in self.run_steps(self.run_first(inputs)):
            if not state.unfinished:
                found = state.outputs(names)
        return [found[name] for name in names]

    def stream(self, inputs: Mapping[str, Array]) -> Iterator[SearchState]:
        """Yields the state after each step. Takes the inputs of `run`.

        The caller decides when the next step runs. Other calls, even in the same thread, do not
        change the state, because its buffers are not kept.
        """
        return self.run_steps(self.run_first(inputs, may_keep=False))

    def run_first(self, inputs: Mapping[str, Array], may_keep: bool = True) -> Buffers:
        """Runs `first.onnx`; returns buffers with its outputs in the first of the pair.

        Args:
            inputs: dict of arrays, the inputs of `first.onnx`.
            may_keep: bool, whether the buffers may be kept for further calls. Defaults to `True`.
        """
        shapes = tuple((name, np.shape(array)) for name, array in sorted(inputs.items()))
        kept = vars(self._kept).setdefault("buffers", {}) if may_keep else {}
        binding = self.first.io_binding()
        for name, array in inputs.items():
            # `bind_cpu_input` refuses inputs with a default. `asarray` keeps scalars.
            value = onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
            binding.bind_ortvalue_input(name, value)
        names = [value.name for value in self.first.get_outputs()]
        for name in names:
            if shapes in kept:
                binding.bind_ortvalue_output(name, kept[shapes].pair[0][name])
            else:
                binding.bind_output(name, self.device)
        self.first.run_with_iobinding(binding)
        if shapes in kept:
            return kept[shapes]
        keep = may_keep and self.graphs and len(kept) < MOST_SHAPES
        buffers = self._buffers(dict(zip(names, binding.get_outputs(), strict=True)), keep)
        if keep:
            kept[shapes] = buffers
        return buffers

    def _buffers(self, tensors: dict[str, Any], keep: bool) -> Buffers:
        """Returns `Buffers` around the tensors that the first step reads."""
        make = onnxruntime.OrtValue.ortvalue_from_shape_and_type
        unfinished, other = make((), np.bool_, self.device), dict(tensors)
        for name in self._changed:
            if not name.startswith(SLOTS):
                tensor = tensors[name]
                other[name] = make(tensor.shape(), tensor.element_type(), self.device)
        pair = tensors, other
        bindings = tuple(self._bind(*buffers, unfinished) for buffers in (pair, pair[::-1]))
        graphs = tuple(onnxruntime.RunOptions() for _ in pair)
        for options in graphs:
            number = next(self._graph_ids) if keep else -1
            options.add_run_config_entry(GRAPH_ID, str(number))
        return Buffers(pair, bindings, graphs, unfinished)

    def run_steps(self, buffers: Buffers) -> Iterator[SearchState]:
        """Runs steps until all sentences end; yields the state after each, at least one.

        Raises:
            ValueError: the tensors of `first.onnx` have no slots for a step.
        """
        most = buffers.pair[0][HISTORY].shape()[2]
        if most < 1:
            raise ValueError(
                f"first.onnx returned {HISTORY} for {most} steps, and a search needs at least 1. "
                "The artefact is damaged: export it again."
            )
        for steps in range(1, most + 1):
            now = (steps - 1) % 2
            self.step.run_with_iobinding(buffers.bindings[now], buffers.graphs[now])
            unfinished = steps < most and bool(buffers.unfinished.numpy())
            yield SearchState(buffers.pair[steps % 2], steps, unfinished)
            if not unfinished:
                break

    def _bind(
        self, before: dict[str, Any], after: dict[str, Any], unfinished: onnxruntime.OrtValue
    ) -> onnxruntime.IOBinding:
        """Returns a binding of a step that reads `before` and writes `after`."""
        binding = self.step.io_binding()
        for name in self._read:
            binding.bind_ortvalue_input(name, before[name])
        for name in self._changed:
            binding.bind_ortvalue_output(NEXT + name, after[name])
        binding.bind_ortvalue_output(UNFINISHED, unfinished)
        return binding


def final_outputs(
    ids: Ids, scores: Array, start_length: Ids | None = None, *records: Array
) -> list[Array]:
    """Returns a search's outputs: ids (B, W, T), without prompt and padding columns, scores, ...

    `Search._result` and `without_prompt` of `keras_transformer.search` do the same with TensorFlow.

    Args:
        ids: int32 (B, W, t), the tokens of every step.
        scores: float32 (B, W), -inf for a hypothesis that was not found.
        start_length: int32 (B, 1), tokens of each prompt; `None` without prompts.
        records: float32 (B, W, t, ...), token scores and alignments if the search has them.
    """
    rows = np.arange(len(ids))[:, np.newaxis, np.newaxis]  # (B, 1, 1)
    order = np.argsort(-scores, axis=1, kind="stable")  # samples are unordered
    scores = np.take_along_axis(scores, order, axis=1)
    columns = np.arange(ids.shape[2])[np.newaxis]  # (1, t)
    if start_length is not None:
        columns = columns + start_length - 1  # (B, t)
    columns = columns[:, np.newaxis]  # (B or 1, 1, t)
    exists = (columns < ids.shape[2]) & (scores > -np.inf)[:, :, np.newaxis]  # (B, W, t)
    places = rows, order[:, :, np.newaxis], np.minimum(columns, ids.shape[2] - 1)
    ids, *records = (record[places] for record in (ids, *records))
    ids = ids * exists
    ids = ids[:, :, : int((ids != 0).any(axis=(0, 1)).sum())].astype(np.int32)
    found = [ids, scores]
    for record in records:
        is_token = (ids != 0).reshape(*ids.shape, *[1] * (record.ndim - 3))
        found.append(record[:, :, : ids.shape[2]] * is_token)
    return found
