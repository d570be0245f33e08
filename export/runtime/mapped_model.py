"""Leaves the weights of an ONNX file in that file, where ONNX Runtime maps them into memory.

ONNX Runtime parses a model into memory with all its weights. It also keeps a copy of a loop's body,
weights included, for each graph around it. So ONNX Runtime gets the graph alone: each large tensor
becomes external data in the model's file. A weight that is read only once, to be packed for matrix
products, is then never copied. All processes that serve the file share its pages.

ONNX Runtime 1.31 releases a mapped weight once it is packed, but not in a loop's body. Weights of a
body are therefore passed as arrays of our mapping. `MappedModel.releasing` releases its pages while
the session opens, which lowers peak memory by about the size of these weights.

A weight that the outer graph and a step share is in the file once, and the step has a Reshape of it
(`graph.loops.sink_weights`). ONNX Runtime would copy the result. Here the weight becomes an array
of the step, too, which ONNX Runtime packs. Packing does not help a step of one row. All its
products with such a weight then read the weight in the file. Products before the loop may read it
there, too: they run once, and a packed copy for them takes as much memory as the weight.

Their pages are released while the session runs.

Of a table of embeddings, a call reads some rows. But with each page that is read, Linux maps up to
15 others of the file. So the pages of a large table are released after each call: else the whole
table would soon be in memory. `ReleasingSession` does both.

The protocol buffers are read by hand. A parser copies every weight and does not return its place in
the file, and servers would need the package `onnx`. ONNX's external data would do without this
module, but makes two files of a model. A message of protocol buffers is a sequence of fields, each
a number, a wire type and a value. A value of type 2 begins with its length and may be a message
itself. The numbers below are from `onnx.proto`.
"""

import contextlib
import ctypes
import mmap
import os
import pathlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import onnxruntime

from keras_transformer.export.artefact.signature import STEP_COPY

Pages: TypeAlias = tuple[int, int]  # start and length, in bytes
# Tensors of fewer bytes stay in the graph: biases, scales, shapes.
SMALLEST = 1 << 14
# {message: {number of a field: its message}}, on the path from the model to its tensors.
_MESSAGES = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {6: "graph"},
}
# Fields of a node (inputs, outputs, type) and of a graph.
_INPUT, _OUTPUT, _OP_TYPE, _INITIALIZER, _GRAPH_INPUT = 1, 2, 4, 5, 11
# Fields of a tensor, and the location of external data.
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 8, 9, 13, 14
_EXTERNAL = 1
_TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 10: np.float16}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10  # bytes
# Operators that read some rows of their first input.
_GATHERS = ("Gather", "GatherBlockQuantized")
# Pause between two releases of pages.
RELEASE_SECONDS = 0.002
# Bytes. Smaller tables stay in memory: a call of a small model takes a few milliseconds.
LEAST_TABLE = 1 << 23
# Python takes seconds to read this number of fields. A large model has a tenth of it.
MOST_FIELDS = 2**19


class MappedModel:
    """The model in the file at `path`, with its large tensors left in the file.

    Keep the file in the folder in which ONNX Runtime searches for external data. Do not change the
    file while the model or the arrays are in use: reading arrays of a truncated file ends the
    process.

    Args:
        path: path of the file.
        pack_loop: bool, whether ONNX Runtime may pack weights that the outer graph and a step
            share, for the step. Defaults to `True`. `False` takes less memory, but steps of several
            rows are slower.
        pack_start: bool, whether it may also pack them for the outer graph. Defaults to `True`.
            `False` takes less memory, and has no effect if a step's weights are not packed.

    Attributes:
        graph: bytes, the model without large tensors.
        arrays: dict from names to arrays of the mapping: large weights in the bodies of loops,
            tables of which nodes gather rows, and weights that only products before a loop read.
        read_once: list of starts and lengths in the file, in bytes: whole pages of weights that
            only products before a loop read there.
        tables: the same for tables of at least `LEAST_TABLE` bytes.
        opened: `os.stat_result` of the file that was read.

    Raises:
        ValueError: the file is not a protocol buffer, or has more than `MOST_FIELDS` fields, or
            ends while it is read.
    """

    def __init__(self, path: pathlib.Path, pack_loop: bool = True, pack_start: bool = True):
        self._name, self._fields_left = path.name, MOST_FIELDS
        self._pack_loop, self._pack_start = pack_loop, pack_start and pack_loop
        self.arrays: dict[str, np.ndarray] = {}
        self._mapping: mmap.mmap | None = None
        self._outer_tensors: dict[str, tuple[int, int]] = {}  # name -> the tensor's place
        self._unpacked: dict[str, None] = {}  # names of shared tensors, in order
        self._gathered: dict[str, None] = {}  # names of tensors of which nodes gather rows
        self._places: dict[str, tuple[int, int]] = {}  # name of an array -> its start and end
        with open(path, "rb") as self._file:
            self.opened: os.stat_result = os.fstat(self._file.fileno())
            self.graph: bytes = self._rewrite("model", 0, self.opened.st_size)
            once = set(self._unpacked) if self._pack_loop else set()
            gathered = self._gathered.keys() - self._unpacked.keys()
            for name in (once | gathered) & self._outer_tensors.keys():
                self._tensor(*self._outer_tensors[name], as_array=True)
            self.read_once: list[Pages] = self._pages(once)
            tables = self._pages(gathered)
            self.tables = [pages for pages in tables if pages[1] >= LEAST_TABLE]

    def add_arrays(self, options: onnxruntime.SessionOptions) -> dict[str, onnxruntime.OrtValue]:
        """Gives `arrays` to a session that will be opened with `options`.

        Returns:
            Dict of the `OrtValue`s. Keep it as long as the session.
        """
        make, values = onnxruntime.OrtValue.ortvalue_from_numpy, {}
        for name, array in self.arrays.items():
            values[name] = make(array)
            options.add_initializer(name, values[name])
        return values

    @contextlib.contextmanager
    def releasing(self, places: Sequence[Pages] = ((0, 0),)) -> Iterator[None]:
        """Releases pages of the mapping repeatedly, until the `with` block ends.

        A page that is read again comes from the file.

        Args:
            places: starts and lengths in bytes. A length of 0 reaches to the end of the file.
                Defaults to the whole file.
        """
        if not places or self._mapping is None:
            yield
            return
        ended = threading.Event()
        thread = threading.Thread(target=self._release_until, args=(ended, places), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _release_until(self, ended: threading.Event, places: Sequence[Pages]) -> None:
        while not ended.wait(RELEASE_SECONDS):
            self.release(places)
        self.release(places)

    def release(self, places: Sequence[Pages]) -> None:
        """Releases pages, as `releasing`, once."""
        if self._mapping is None or not hasattr(self._mapping, "madvise"):  # Windows has none
            return
        for start, length in places:
            self._mapping.madvise(mmap.MADV_DONTNEED, start, length or len(self._mapping))

    def _pages(self, names: Iterable[str]) -> list[Pages]:
        """Returns the starts and lengths of the pages that hold large tensors."""
        places = [self._places[name] for name in names if name in self._places]
        firsts = [start // mmap.PAGESIZE * mmap.PAGESIZE for start, _ in places]
        return [(first, stop - first) for first, (_, stop) in zip(firsts, places, strict=True)]

    def _read(self, start: int, end: int) -> bytes:
        """Reads bytes of the file. A mapping of a truncated file would end the process."""
        self._file.seek(start)
        data = self._file.read(end - start)
        if len(data) < end - start:
            raise ValueError(f"the file ends at byte {start + len(data)}: it was cut off.")
        return data

    def _read_varint(self, start: int, end: int) -> tuple[int, int]:
        """Returns the number that starts at a byte, and the byte after it."""
        number, size = _number(self._read(start, min(end, start + _LONGEST_VARINT)), start)
        return number, start + size

    def _rewrite(self, message: str, start: int, end: int, in_body: bool = False) -> bytes:
        """Returns a message of `_MESSAGES` with its large tensors as external data."""
        parts, copied = [], start
        fields = list(self._fields(start, end))
        if message == "graph" and not in_body:  # its nodes, with the loops, come before its tensors
            tensors = [item[2:] for item in fields if item[0] == _INITIALIZER]
            self._outer_tensors = {self._text(_NAME, *place): place for place in tensors}
        for number, first, value, stop in fields:
            inner = _MESSAGES.get(message, {}).get(number)
            if inner is None:
                continue
            if inner == "node" and self._text(_OP_TYPE, value, stop) in _GATHERS:
                self._gathered[self._text(_INPUT, value, stop)] = None
            parts.append(self._read(copied, first))
            copied = stop
            if inner == "tensor":
                parts.append(_field(number, self._tensor(value, stop, in_body)))
            elif inner == "node" and in_body and self._is_step_copy(value, stop):
                name = self._text(_OUTPUT, value, stop)
                source = name.removesuffix(STEP_COPY)
                if not self._pack_start:
                    self._unpacked[source] = None
                if self._pack_loop:
                    tensor = self._tensor(*self._outer_tensors[source], in_body, name)
                    parts.append(_field(_INITIALIZER, tensor))
                else:
                    texts = {_INPUT: source, _OUTPUT: name, _OP_TYPE: "Identity"}
                    node = b"".join(_field(key, text.encode()) for key, text in texts.items())
                    parts.append(_field(number, node))
            else:
                in_body_too = in_body or inner == "attribute"
                parts.append(_field(number, self._rewrite(inner, value, stop, in_body_too)))
        parts.append(self._read(copied, end))
        if message == "graph" and not in_body:
            parts.extend(_field(_GRAPH_INPUT, self._as_input(name)) for name in self._unpacked)
        return b"".join(parts)

    def _as_input(self, name: str) -> bytes:
        """Returns a graph input with an outer tensor as its default, which is never packed."""
        fields = list(self._fields(*self._outer_tensors[name]))
        sizes = [self._read_varint(*item[2:])[0] for item in fields if item[0] == _DIMS]
        (dtype,) = (self._read_varint(*item[2:])[0] for item in fields if item[0] == _DATA_TYPE)
        shape = b"".join(_field(1, _varint(1 << 3) + _varint(size)) for size in sizes)
        kind = _field(1, _varint(1 << 3) + _varint(dtype) + _field(2, shape))
        return _field(1, name.encode()) + _field(2, kind)

    def _text(self, field: int, start: int, end: int) -> str:
        """Returns the first text with a field's number in a message; "" if there is none."""
        found = (item[2:] for item in self._fields(start, end) if item[0] == field)
        return self._read(*next(found, (start, start))).decode()

    def _is_step_copy(self, start: int, end: int) -> bool:
        """Returns whether a node in a loop's body copies an outer tensor for its products."""
        source, output = self._text(_INPUT, start, end), self._text(_OUTPUT, start, end)
        same = output == f"{source}{STEP_COPY}" and source in self._outer_tensors
        return same and self._text(_OP_TYPE, start, end) == "Reshape"

    def _tensor(self, start: int, end: int, as_array: bool, new_name: str = "") -> bytes:
        """Returns a tensor; a large one has a place in the file instead of its data.

        `as_array` also adds a large one to `arrays`.
        """
        fields = list(self._fields(start, end))
        places = {number: (value, stop) for number, _, value, stop in fields}
        value, stop = places.get(_RAW_DATA, (0, 0))
        renamed = _field(_NAME, new_name.encode()) if new_name else b""  # the last name counts
        if stop - value < SMALLEST:
            return self._read(start, end) + renamed
        dtype = _TYPES.get(self._read_varint(*places[_DATA_TYPE])[0])
        if as_array and dtype:
            name = new_name or self._read(*places[_NAME]).decode()
            shape = [self._read_varint(*item[2:])[0] for item in fields if item[0] == _DIMS]
            if not self._mapping:
                self._mapping = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            self.arrays[name] = np.ndarray(shape, dtype, self._mapping, value)
            self._places[name] = value, stop
        kept = [item for item in fields if item[0] != _RAW_DATA]
        parts = [self._read(first, last) for _, first, _, last in kept]
        place = {"location": self._name, "offset": value, "length": stop - value}
        for item in place.items():
            entry = b"".join(_field(i, str(text).encode()) for i, text in enumerate(item, 1))
            parts.append(_field(_EXTERNAL_DATA, entry))
        parts.append(_varint(_DATA_LOCATION << 3 | _VARINT) + _varint(_EXTERNAL) + renamed)
        return b"".join(parts)

    def _fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yields each field's number, its start, and the start and end of its value."""
        while start < end:
            key, value = self._read_varint(start, end)
            kind, stop = key & 7, end + 1
            if kind == _BYTES:
                size, value = self._read_varint(value, end)
                stop = value + size
            elif kind == _VARINT:
                _, stop = self._read_varint(value, end)
            elif kind in (_FIXED64, _FIXED32):
                stop = value + (8 if kind == _FIXED64 else 4)
            self._fields_left -= 1
            if key < 8 or stop > end or self._fields_left < 0:
                raise ValueError(
                    f"byte {start} begins no field of an ONNX file, or one of more than "
                    f"{MOST_FIELDS} fields."
                )
            yield key >> 3, start, value, stop
            start = stop


def return_freed_memory() -> None:
    """Returns freed memory to the system, if the C library is glibc.

    While a session opens, ONNX Runtime copies weights and packs the copies. Opening an int8 file of
    115 MB takes 395 MB, of which this returns 170.
    """
    with contextlib.suppress(AttributeError, TypeError):  # other libraries; Windows
        ctypes.CDLL(None).malloc_trim(0)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _number(data: bytes, start: int) -> tuple[int, int]:
    """Returns the first number in `data`, in groups of 7 bits, lowest first, and its size."""
    number = 0
    for place, byte in enumerate(data):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, place + 1
    raise ValueError(f"byte {start} begins no number of a protocol buffer.")


def _varint(number: int) -> bytes:
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
