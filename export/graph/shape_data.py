"""The table of known shapes, and data propagation: values of small integer tensors.

TensorFlow computes shapes at run time. A layer that joins heads takes the shape of its input
(B, T, H, K), picks B and T, appends H K and reshapes to the result: eight small nodes. `propagate`
follows such tensors through the graph. Their values are object arrays of sizes (`sizes`).
"""

from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.nodes import attribute
from keras_transformer.export.graph.sizes import (
    Dims,
    Size,
    SymbolicSize,
    difference,
    product,
    symbol,
    total,
)
from keras_transformer.types import Array

INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)


class ShapeTable:
    """What is known of shapes. Values of which nothing is known are in neither dict.

    Attributes:
        dims: dict from values to their shapes, tuples of sizes (`sizes`).
        data: dict from small integer tensors to their values, object arrays of sizes.
    """

    def __init__(self) -> None:
        self.dims: dict[ir.Value | None, Dims | None] = {}
        self.data: dict[ir.Value | None, Array] = {}

    @staticmethod
    def new_symbol(value: ir.Value, axis: int) -> SymbolicSize:
        """The symbol for the size of one axis of a value."""
        return symbol(f"{value.name}[{axis}]")

    def new_symbols(self, value: ir.Value, rank: int) -> Dims:
        """A shape of symbols, one per axis of a value."""
        return tuple(self.new_symbol(value, axis) for axis in range(rank))

    def constant(self, value: ir.Value | None) -> list[int] | None:
        """The values of a tensor as a flat list if all are known integers, else `None`."""
        data = self.data.get(value)
        return None if data is None or not is_plain(data.flat) else [int(x) for x in data.flat]


def propagate(shapes: ShapeTable, node: ir.Node, dims: Dims | None) -> Array | None:
    """The values of a node's only output as an array of sizes, or `None` if they are unknown.

    Args:
        shapes: what is known of the node's inputs.
        node: the node.
        dims: shape of its output, `None` if unknown.
    """
    operator, first = node.op_type, node.inputs[0] if node.inputs else None
    if operator in ("Shape", "Size"):
        sizes = shapes.dims.get(first)
        if sizes is None:
            return None
        if operator == "Size":
            return _array(product(sizes))
        return _array(sizes[attribute(node, "start", 0) : attribute(node, "end", len(sizes))])
    data = shapes.data.get(first)
    if data is None:
        return None
    if operator == "Identity" or (operator == "Cast" and attribute(node, "to", 0) in INTEGERS):
        return data
    if operator in ("Reshape", "Squeeze", "Unsqueeze"):
        return data.reshape(dims) if dims is not None and is_plain(dims) else None
    if operator == "ReduceProd":
        keep = attribute(node, "keepdims", 1) and data.ndim
        return _array((product(data.flat),) if keep else product(data.flat))
    inputs = [shapes.data.get(value) for value in node.inputs]
    if operator in _CALCULATED and data.ndim < 2 and not any(item is None for item in inputs):
        return _CALCULATED[operator](*inputs)
    return None


def _concat(*parts: Array) -> Array:
    """[B] and [T, 64] become [B, T, 64]."""
    return np.concatenate(parts, axis=0)


def _gather(items: Array, index: Array) -> Array | None:
    """One or more sizes of a shape, such as B of [B, T, 64]."""
    return _array(items[index.astype(np.int64)]) if is_plain(index.flat) else None


def _slice(items: Array, *bounds: Array) -> Array | None:
    """[B, T] of [B, T, 64]: from a start to an end, along the only axis, in steps."""
    if items.ndim != 1 or not all(is_plain(bound.flat) for bound in bounds):
        return None
    start, stop, *rest = (int(bound.flat[0]) for bound in bounds)
    return items[start : stop : rest[1] if len(rest) == 2 else 1]


def _arithmetic(calculate: Callable[[Size, Size], Size]) -> Callable[[Array, Array], Array | None]:
    """Adds, subtracts or multiplies two sizes, each a scalar or the only entry of a vector."""

    def calculated(left: Array, right: Array) -> Array | None:
        if left.size != 1 or right.size != 1:
            return None
        result = calculate(left.flat[0], right.flat[0])
        return _array(result).reshape(max(left.shape, right.shape, key=len))

    return calculated


def _multiply(left: Size, right: Size) -> Size:
    return product([left, right])


_CALCULATED = {
    "Add": _arithmetic(total),
    "Concat": _concat,
    "Gather": _gather,
    "Mul": _arithmetic(_multiply),
    "Slice": _slice,
    "Sub": _arithmetic(difference),
}


def _array(items: Size | Dims | Array) -> Array:
    """An object array of sizes; a scalar for a single size."""
    if isinstance(items, np.ndarray):
        return items
    array = np.empty(len(items) if isinstance(items, tuple) else (), dtype=object)
    array[...] = items
    return array


def is_plain(sizes: Iterable[Size]) -> bool:
    """Whether all sizes are integers."""
    return all(isinstance(size, (int, np.integer)) for size in sizes)
