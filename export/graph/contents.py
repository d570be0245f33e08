"""Contents of small integer tensors, as far as they follow from shapes: targets, bounds, counts.

TensorFlow calculates with shapes at run time. A layer that joins heads takes the shape of its input
(B, T, H, K), picks B and T, puts H K behind them and reshapes to that: eight small nodes. Here such
a tensor is followed like a shape. Its contents are an object array of sizes (`sizes`): integers and
unknowns.
"""

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph import layout_rules as layout
from keras_transformer.export.graph.nodes import attribute
from keras_transformer.export.graph.sizes import difference, product, total

INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)


def contents(known, node):
    """What a node's only output holds, as an array of sizes; `None` where that is not known.

    Shape and Size start from the shape of their input. All others go on from contents: those that
    pass them on, those that reshape them, and those that calculate (`_CALCULATED`).

    Args:
        known: the `shapes.Known` that asks.
        node: `onnx_ir.Node` whose inputs it has seen.
    """
    first = None if not node.inputs else known.data.get(node.inputs[0])
    if node.op_type in ("Shape", "Size"):
        dims = known.dims.get(node.inputs[0])
        if dims is not None and node.op_type == "Size":
            return _array(product(dims))
        if dims is not None:
            return _array(dims[attribute(node, "start", 0) : attribute(node, "end", len(dims))])
    if first is None:
        return None
    if node.op_type == "Cast":
        return first if node.attributes["to"].value in INTEGERS else None
    if node.op_type == "Identity":
        return first
    if node.op_type in _RESHAPED:
        dims = _RESHAPED[node.op_type](known, node)
        plain = dims is not None and all(isinstance(size, int) for size in dims)
        return first.reshape(dims) if plain else None
    if node.op_type == "ReduceProd":
        keep = attribute(node, "keepdims", 1) and first.ndim
        return _array([product(first.flat)] if keep else product(first.flat))
    inputs = [known.data.get(value) if value is not None else None for value in node.inputs]
    vectors = first.ndim < 2  # the functions below know of one axis
    if node.op_type in _CALCULATED and vectors and not any(item is None for item in inputs):
        return _CALCULATED[node.op_type](*inputs)
    return None


_RESHAPED = {
    "Reshape": layout.reshape,
    "Squeeze": layout.squeeze,
    "Unsqueeze": layout.unsqueeze,
}


def _concat(*parts):
    """[B] and [T, 64] become [B, T, 64]."""
    return np.concatenate(parts, axis=0)


def _gather(items, index):
    """One or more sizes of a shape, such as B of [B, T, 64]."""
    return _array(items[index.astype(np.int64)]) if is_plain(index) else None


def _slice(items, *bounds):
    """[B, T] of [B, T, 64]: from a start to an end, along the only axis, in steps."""
    if items.ndim != 1 or not all(map(is_plain, bounds)):
        return None
    bounds = [int(item.flat[0]) for item in bounds]
    start, stop, _, step = bounds + [0, 1][len(bounds) - 2 :]
    return items[start:stop:step]


def _arithmetic(calculate):
    """Adds, subtracts or multiplies two sizes, each a scalar or the only entry of a vector."""

    def calculated(one, other):
        if one.size != 1 or other.size != 1:
            return None
        result = calculate(one.flat[0], other.flat[0])
        return _array(result).reshape(max(one.shape, other.shape, key=len))

    return calculated


_CALCULATED = {
    "Add": _arithmetic(total),
    "Concat": _concat,
    "Gather": _gather,
    "Mul": _arithmetic(lambda one, other: product([one, other])),
    "Slice": _slice,
    "Sub": _arithmetic(difference),
}


def _array(items):
    """An object array of sizes; a scalar for a single size."""
    if isinstance(items, np.ndarray):
        return items
    if isinstance(items, (list, tuple)):
        array = np.empty(len(items), dtype=object)
        array[:] = items
        return array
    array = np.empty((), dtype=object)
    array[()] = items
    return array


def is_plain(data):
    """Whether contents are integers, without an unknown among them."""
    return all(isinstance(item, (int, np.integer)) for item in data.flat)
