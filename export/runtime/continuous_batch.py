"""Continuous batching: sentences join a batch between two of its steps, and leave it when over.

What comes while a batch is computed as a whole waits until the longest sentence of it is over. Here
it waits for one step. It needs a search whose loop is outside of the graph (`steps`), and a graph
in which each sentence has a position of its own.

A sentence is a row of every tensor that a step reads: of its memory, its cache, its hypotheses. The
buffers have more rows than are in use, which come first. Who joins gets the row behind them; who
leaves is replaced by the last. So nothing else is copied, and the tensors are parts of the buffers.

Shapes: B rows in use, W hypotheses of each, R rows of tokens, L most steps, T tokens of the longest
hypothesis.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.export.runtime.signature import (
    HISTORY,
    MEMORY,
    NEXT,
    PAST_BIAS,
    PLACES,
    POSITION,
    RUNNING,
    SCORES,
    SLOTS,
    START_LENGTH,
    UNFINISHED,
)
from keras_transformer.export.runtime.steps import finished


class Row(NamedTuple):
    """A sentence in the batch.

    Attributes:
        key: what its results are found by.
        shapes: dict from names to shapes, without the first axis, that its tensors need.
    """

    key: Any
    shapes: dict


class ContinuousBatch:
    """Sentences of one search, each at a step of its own.

    To be used by one thread at a time. `len` is how many sentences there are.

    Args:
        session: `StepsSession` on the CPU.

    Raises:
        ValueError: the session is on another device, its sentences share a position, or its
            encoder has no mask, so that sentences of different length cannot be neighbours.
    """

    def __init__(self, session):
        self._first, self._step = session.first, session.step
        self._names = [value.name for value in self._step.get_inputs()]
        self._changed = [
            value.name.removeprefix(NEXT)
            for value in self._step.get_outputs()
            if value.name != UNFINISHED
        ]
        _check(session.device, self._step.get_inputs())
        self._unfinished = np.zeros((), bool)
        self._rows, self._fills = [], {}
        self._now = self._next = {}  # arrays by name: what a step reads, and what it writes
        self._bindings = None

    def __len__(self):
        return len(self._rows)

    def add(self, keys, inputs):
        """Sentences join: `first.onnx` is run for them.

        Args:
            keys: list, one a sentence.
            inputs: dict of arrays, the inputs of `first.onnx`.
        """
        tensors, shapes = self._begun(inputs)
        self._make_room(len(keys), shapes)
        for name, array in self._now.items():
            rows = slice(len(self), len(self) + len(keys))
            array[rows] = self._fills[name]
            if name in tensors:
                _copy(name, tensors[name], array[rows])
            if name.endswith(PLACES):
                array[rows, ..., 0] = _column(range(rows.start, rows.stop), array.ndim - 1)
        self._rows += [Row(key, shapes) for key in keys]
        self._bindings = None

    def step(self):
        """Each hypothesis gets one more token.

        Returns:
            List of pairs for the sentences that are over, which leave: their key, and their ids
            (W, T) and scores (W,), as `StepsSession.run` gives them.
        """
        if not self._rows:
            return []
        if self._bindings is None:
            pair = self._now, self._next
            self._bindings = itertools.cycle([self._bound(*pair), self._bound(*pair[::-1])])
        self._step.run_with_iobinding(next(self._bindings))
        self._now, self._next = self._next, self._now
        running = self._now[RUNNING][: len(self)]
        over = np.flatnonzero(~(running > -np.inf).any(axis=1)).tolist()
        found = [(self._rows[i].key, self._result(i)) for i in over]
        for i in reversed(over):
            self._remove(i)
        return found

    def clear(self):
        """All sentences leave, without a result."""
        self._rows, self._bindings = [], None

    def _begun(self, inputs):
        """Arrays by name before the first step, all but empty slots; and the shapes of all."""
        binding = self._first.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        names = [value.name for value in self._first.get_outputs()]
        for name in names:
            binding.bind_output(name)
        self._first.run_with_iobinding(binding)
        values = dict(zip(names, binding.get_outputs(), strict=True))
        arrays = {
            name: value.numpy() for name, value in values.items() if not name.startswith(SLOTS)
        }
        if not self._fills:
            self._fills = {name: _fill(name, arrays.get(name)) for name in names}
            self._types = {name: _dtype(values[name]) for name in names}
        return arrays, {name: tuple(value.shape()[1:]) for name, value in values.items()}

    def _make_room(self, count, shapes):
        """Buffers that take `count` more rows, and are at most twice as large as they must be."""
        kinds = {id(row.shapes): row.shapes for row in self._rows}.values()
        needed = {
            name: tuple(map(max, zip(shape, *(kind[name] for kind in kinds), strict=True)))
            for name, shape in shapes.items()
        }
        rows = len(self) + count
        if self._now and all(
            _fits((rows, *needed[name]), self._now[name].shape) for name in needed
        ):
            return
        capacity = 1 << max(3, (rows - 1).bit_length())
        before = self._now
        self._now = {
            name: np.full((capacity, *shape), self._fills[name], self._types[name])
            for name, shape in needed.items()
        }
        for name, array in self._now.items() if len(self) else ():
            _copy(name, before[name][: len(self)], array[: len(self)])
        self._next = {
            name: np.empty_like(array)
            if name in self._changed and not name.startswith(SLOTS)
            else array
            for name, array in self._now.items()
        }

    def _remove(self, i):
        """The last row takes the place of row i."""
        last = self._rows.pop()
        if i < len(self):
            self._rows[i] = last
            for name, array in self._now.items():
                array[i] = array[len(self)]
                if name.endswith(PLACES):
                    array[i, ..., 0] = i
        self._bindings = None

    def _result(self, i):
        tensors = {name: array[i : i + 1] for name, array in self._now.items()}
        steps, scores = int(tensors[POSITION][0, 0]), tensors[SCORES]
        history = tensors[HISTORY]
        ids = history[:, -scores.shape[1] :, history.shape[2] - steps :]
        ids, scores = finished(ids, scores, tensors.get(START_LENGTH))
        return ids[0], scores[0]

    def _bound(self, before, after):
        """A binding of a step that reads `before` and writes `after`."""
        binding = self._step.io_binding()
        for name in self._names:
            _bind(binding.bind_input, name, before[name][: len(self)])
        for name in self._changed:
            _bind(binding.bind_output, NEXT + name, after[name][: len(self)])
        _bind(binding.bind_output, UNFINISHED, self._unfinished)
        return binding


def _check(device, inputs):
    """Raises `ValueError` unless sentences can come and go."""
    kinds = {value.name: value.type for value in inputs}
    positions = {value.name: value.shape for value in inputs}[POSITION]
    memory = {kind for name, kind in kinds.items() if name.startswith(MEMORY)}
    if device != "cpu":
        raise ValueError(
            f"sentences join a batch on the CPU only, and the session is on {device!r}"
        )
    if not positions:
        raise ValueError(
            "in this artefact all sentences of a batch are at one position. Export the model again."
        )
    if memory and "tensor(bool)" not in memory:
        raise ValueError(
            "its encoder gives no mask, so sources of different length cannot share a batch"
        )


def _bind(bind, name, array):
    bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def _dtype(value):
    """The NumPy dtype of an `OrtValue`; without copying it."""
    names = {"tensor(float)": "float32", "tensor(double)": "float64"}
    kind = value.data_type()
    return np.dtype(names.get(kind, kind.removeprefix("tensor(").removesuffix(")")))


def _fill(name, array):
    """What a tensor holds where a row needs less than its neighbours.

    An attention bias holds one number before the first step, which hides all slots.
    """
    return array.flat[0] if name == PAST_BIAS else 0


def _fits(needed, shape):
    """Whether a buffer takes as much, and is at most twice as large in each axis but the first."""
    return needed[0] <= shape[0] and all(
        a <= b <= max(2 * a, 1) for a, b in zip(needed[1:], shape[1:], strict=True)
    )


def _copy(name, source, target):
    """Copies what both have room for. The last column of a history is the newest token."""
    common = tuple(map(min, zip(source.shape, target.shape, strict=True)))
    if name == HISTORY:
        source, target = source[:, :, source.shape[2] - common[2] :], target[:, :, -common[2] :]
    part = tuple(map(slice, common))
    target[part] = source[part]


def _column(numbers, rank):
    """Numbers (N,) as an array (N, 1, ...) of this rank."""
    return np.array(numbers).reshape(-1, *[1] * (rank - 1))
