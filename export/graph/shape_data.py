"""Inferred shapes: sizes of axes, and the values of small integer tensors.

A size is an `int` or a `SymbolicSize`, for example 12 times `source_ids[0]` times `source_ids[1]`.
Products and quotients are exact, as the target of a Reshape needs. A sum of symbols is a new symbol
that is named after the formula, so that equal sums are equal sizes.

TensorFlow computes shapes at run time. A layer that joins heads takes the shape of its input
(B, T, H, K), picks B and T, appends H K and reshapes to the result: eight small nodes. `propagate`
follows such tensors through the graph (data propagation). Their values are object arrays of sizes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.nodes import attribute
from keras_transformer.types import Array

INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)


@dataclass(frozen=True)
class SymbolicSize:
    """`factor` times the product of `symbols`, which are sorted names."""

    factor: int
    symbols: tuple[str, ...]


Size = int | SymbolicSize
Dims = tuple[Size, ...]


def symbol(name: str) -> SymbolicSize:
    """Returns a size of which only the name is known."""
    return SymbolicSize(1, (name,))


def parts(size: Size) -> tuple[int, tuple[str, ...]]:
    """Returns the factor and the symbols of a size."""
    return (size, ()) if isinstance(size, int) else (size.factor, size.symbols)


def _size(factor: int, symbols: Iterable[str]) -> Size:
    symbols = tuple(sorted(symbols))
    return SymbolicSize(factor, symbols) if symbols and factor else factor


def product(sizes: Iterable[Size]) -> Size:
    """Returns the product of sizes."""
    factor, symbols = 1, ()
    for size in sizes:
        other, others = parts(size)
        factor, symbols = factor * other, symbols + others
    return _size(factor, symbols)


def quotient(size: Size, divisor: Size) -> Size | None:
    """Returns `size / divisor` if it is exact for all values of the symbols, else `None`."""
    factor, symbols = parts(size)
    other, others = parts(divisor)
    remaining = list(symbols)
    for name in others:
        if name not in remaining:
            return None
        remaining.remove(name)
    return _size(factor // other, remaining) if other and factor % other == 0 else None


def total(left: Size, right: Size) -> Size:
    """Returns `left + right`: exact for integers, else a symbol named after the formula."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if 0 in (left, right):
        return left if right == 0 else right
    return symbol(f"({left!r} + {right!r})")


def difference(left: Size, right: Size) -> Size:
    """Returns `left - right`: exact for integers, else a symbol named after the formula."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    return left if right == 0 else symbol(f"({left!r} - {right!r})")


def depends_on(size: Size, name: str) -> bool:
    """Returns whether a size contains a symbol of an axis of the value `name`."""
    return any(part.startswith(f"{name}[") for part in parts(size)[1])


def broadcast_size(sizes: Iterable[Size], otherwise: Size) -> Size:
    """Returns the size of one axis after broadcasting.

    A size of 1 is stretched to the others, and an integer is preferred to a symbol. Two different
    symbols may be equal at run time, or one of them may be 1, so the result is a new symbol.

    Args:
        sizes: the inputs' sizes of this axis.
        otherwise: the new symbol.
    """
    sizes = set(sizes) - {1}
    integers = [size for size in sizes if isinstance(size, int)]
    possible = integers or (sizes if len(sizes) < 2 else [otherwise])
    return next(iter(possible), 1)


class ShapeTable:
    """Inferred shapes of a graph. Unknown values are in neither dict.

    Attributes:
        dims: dict from values to their shapes, tuples of sizes (`shape_data`).
        data: dict from small integer tensors to their values, object arrays of sizes.
    """

    def __init__(self) -> None:
        self.dims: dict[ir.Value | None, Dims | None] = {}
        self.data: dict[ir.Value | None, Array] = {}

    @staticmethod
    def new_symbol(value: ir.Value, axis: int) -> SymbolicSize:
        """Returns the symbol for the size of one axis of a value."""
        return symbol(f"{value.name}[{axis}]")

    def new_symbols(self, value: ir.Value, rank: int) -> Dims:
        """Returns a shape of symbols, one per axis of a value."""
        return tuple(self.new_symbol(value, axis) for axis in range(rank))

    def constant(self, value: ir.Value | None) -> list[int] | None:
        """Returns a tensor's values as a flat list if all are known integers, else `None`."""
        data = self.data.get(value)
        return None if data is None or not is_plain(data.flat) else [int(x) for x in data.flat]


def propagate(shapes: ShapeTable, node: ir.Node, dims: Dims | None) -> Array | None:
    """Returns the values of a node's only output as an array of sizes, or `None` if unknown.

    Args:
        shapes: the shapes and values of the node's inputs.
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
    """Picks one or more sizes of a shape, such as B of [B, T, 64]."""
    return _array(items[index.astype(np.int64)]) if is_plain(index.flat) else None


def _slice(items: Array, *bounds: Array) -> Array | None:
    """Cuts [B, T] from [B, T, 64]: from a start to an end, in steps."""
    if items.ndim != 1 or not all(is_plain(bound.flat) for bound in bounds):
        return None
    start, stop, *rest = (int(bound.flat[0]) for bound in bounds)
    return items[start : stop : rest[1] if len(rest) == 2 else 1]


# The largest int32.
MOST = 2**31 - 1


def _arithmetic(calculate: Callable[[Size, Size], Size]) -> Callable[[Array, Array], Array | None]:
    """Calculates with two sizes, each a scalar or the only entry of a vector."""

    def calculated(left: Array, right: Array) -> Array | None:
        if left.size != 1 or right.size != 1:
            return None
        result = calculate(left.flat[0], right.flat[0])
        if isinstance(result, int) and abs(result) > MOST:  # no size; the dtype may wrap it
            return None
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
    """Returns an object array of sizes; a scalar for a single size."""
    if isinstance(items, np.ndarray):
        return items
    array = np.empty(len(items) if isinstance(items, tuple) else (), dtype=object)
    array[...] = items
    return array


def is_plain(sizes: Iterable[Size]) -> bool:
    """Returns whether all sizes are integers."""
    return all(isinstance(size, (int, np.integer)) for size in sizes)
