"""Symbolic shapes of an ONNX graph, loops included: what is known of sizes before any run.

Converted Keras code computes each shape at run time, with about ten small nodes where one constant
would do. To see that, sizes are followed through the graph as products of unknowns:
`known.dims[value]` is the shape of a value and `known.data[value]` the contents of a small integer
tensor, such as the target of a Reshape.

A size is an `int` or a `Size`. For a loop it is first assumed that each axis of the state keeps its
size; where the body shows otherwise, the axis gets an unknown of its own, and the body is looked at
again (induction: what survives holds at every step).
"""

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

# Larger integer tensors are data, not shapes.
LARGEST = 64
# No axis is this long: tf2onnx and TensorFlow write this or more for "up to the end".
ENDLESS = 10**9

ELEMENTWISE = {
    "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min",
    "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
}  # fmt: skip
SAME_SHAPE = {
    "Abs", "Cast", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Identity", "IsNaN",
    "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "Neg", "Not", "Reciprocal", "Relu",
    "Selu", "Sigmoid", "Sign",
    "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Tanh", "CumSum", "Trilu",
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """`factor` times the product of unknowns, which are any sortable names."""

    factor: int
    unknowns: tuple


def _terms(size):
    return (size, ()) if isinstance(size, int) else (size.factor, size.unknowns)


def _size(factor, unknowns):
    return Size(factor, tuple(sorted(unknowns))) if unknowns and factor else factor


def unknown(name):
    return Size(1, (name,))


def product(sizes):
    factor, unknowns = 1, ()
    for size in sizes:
        one, more = _terms(size)
        factor, unknowns = factor * one, unknowns + more
    return _size(factor, unknowns)


def quotient(size, divisor):
    """`size / divisor` where it is exact whatever the unknowns, else `None`."""
    factor, unknowns = _terms(size)
    other, others = _terms(divisor)
    rest = list(unknowns)
    for name in others:
        if name not in rest:
            return None
        rest.remove(name)
    return _size(factor // other, tuple(rest)) if other and factor % other == 0 else None


def _combine(operator, left, right):
    """Sum or difference: exact for integers, else one unknown that bears the formula's name."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right if operator == "+" else left - right
    if right == 0:
        return left
    if left == 0 and operator == "+":
        return right
    return unknown(f"({left!r} {operator} {right!r})")


class Known:
    """What is known of the values of a graph and of its loops' bodies."""

    def __init__(self, graph):
        self.dims, self.data = {}, {}
        for value in [*graph.inputs, *graph.initializers.values()]:
            self.declare(value)
        self.visit(graph)

    def declare(self, value):
        """Takes over constants and declared shapes; unnamed axes are unknowns."""
        tensor = value.const_value
        if tensor is not None:
            self.dims[value] = tuple(int(size) for size in tensor.shape)
            if tensor.size <= LARGEST and tensor.dtype in (ir.DataType.INT32, ir.DataType.INT64):
                self.data[value] = np.array(tensor.numpy().tolist(), dtype=object)
        elif value.shape is not None and value not in self.dims:
            self.dims[value] = tuple(
                size if isinstance(size, int) else self.fresh(value, axis)
                for axis, size in enumerate(value.shape)
            )

    @staticmethod
    def fresh(value, axis):
        return unknown(f"{value.name}[{axis}]")

    def visit(self, graph):
        for value in graph.initializers.values():
            self.declare(value)
        for node in graph:
            if node.op_type == "Loop":
                self.loop(node)
                continue
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    for value in attribute.value.inputs:
                        self.declare(value)
                    self.visit(attribute.value)
            self.infer(node)

    def loop(self, node):
        body = node.attributes["body"].value
        state, results = body.inputs[2:], body.outputs[1:]
        for value in body.inputs[:2]:
            self.dims[value] = ()
        for value, first in zip(state, node.inputs[2:], strict=True):
            self.dims[value] = self.dims.get(first)
        while True:
            self.visit(body)
            changed = False
            for value, result in zip(state, results, strict=False):
                before, after = self.dims[value], self.dims.get(result)
                if before is None:
                    continue
                if after is None or len(after) != len(before):
                    after = (None,) * len(before)
                # An axis with an unknown of its own keeps it, whatever the body makes of it.
                kept = tuple(
                    size if size == new else self.fresh(value, axis)
                    for axis, (size, new) in enumerate(zip(before, after, strict=True))
                )
                if kept != before:
                    self.dims[value], changed = kept, True
            if not changed:
                break
        for value, before in zip(node.outputs, state, strict=False):
            # After no step at all the state is the initial one, so an axis that changes is unknown.
            dims = self.dims.get(before)
            self.dims[value] = dims and tuple(
                self.fresh(value, axis) if _mentions(size, before) else size
                for axis, size in enumerate(dims)
            )

    def infer(self, node):
        """Records what follows for the outputs of one node."""
        for value in node.outputs:
            self.dims.pop(value, None)
            self.data.pop(value, None)
        contents = self._contents(node)
        if contents is not None and contents.size <= LARGEST:
            self.data[node.outputs[0]] = contents
            self.dims[node.outputs[0]] = contents.shape
            return
        rule = getattr(self, f"_{node.op_type.lower()}", None)
        if node.op_type in ELEMENTWISE:
            dims = self._broadcast(node)
        elif node.op_type in SAME_SHAPE:
            dims = self.dims.get(node.inputs[0])
        elif node.op_type.startswith("Reduce"):
            dims = self._reduce(node)
        else:
            dims = rule(node) if rule else None
        if isinstance(dims, list):  # one shape for each output
            self.dims.update(zip(node.outputs, dims, strict=False))
        elif dims is not None:
            self.dims[node.outputs[0]] = tuple(dims)
        else:
            for value in node.outputs:
                if value.shape is not None:
                    self.declare(value)

    # Contents of small integer tensors.

    def _contents(self, node):
        if node.op_type == "Shape" and self.dims.get(node.inputs[0]) is not None:
            dims = self.dims[node.inputs[0]]
            return _objects(dims[attribute(node, "start", 0) : attribute(node, "end", len(dims))])
        if node.op_type == "Size" and self.dims.get(node.inputs[0]) is not None:
            return _objects(product(self.dims[node.inputs[0]]))
        inputs = [self.data.get(value) if value is not None else None for value in node.inputs]
        if not inputs or inputs[0] is None:
            return None
        first = inputs[0]
        if node.op_type == "Cast":
            integers = (ir.DataType.INT32, ir.DataType.INT64)
            return first if node.attributes["to"].value in integers else None
        if node.op_type == "Identity":
            return first
        if node.op_type in ("Squeeze", "Unsqueeze", "Reshape"):
            dims = getattr(self, f"_{node.op_type.lower()}")(node)
            if dims is None or not all(isinstance(size, int) for size in dims):
                return None
            return first.reshape(dims)
        if node.op_type.startswith("ReduceProd"):
            keep = attribute(node, "keepdims", 1) and first.ndim
            return _objects([product(first.flat)] if keep else product(first.flat))
        if any(item is None for item in inputs):
            return None
        if node.op_type == "Concat":
            return np.concatenate(inputs, axis=0)
        if node.op_type == "Gather" and _integers(inputs[1]):
            return _objects(first[inputs[1].astype(np.int64)])
        if node.op_type == "Slice" and first.ndim == 1:
            bounds = [int(item.flat[0]) for item in inputs[1:] if _integers(item)]
            if len(bounds) == len(inputs) - 1:
                start, stop, _, step = bounds + [0, 1][len(bounds) - 2 :]
                return first[start:stop:step]
        if node.op_type in ("Mul", "Add", "Sub") and first.ndim + inputs[1].ndim <= 1:
            one, other = first.flat[0], inputs[1].flat[0]
            operator = {"Add": "+", "Sub": "-"}.get(node.op_type)
            result = _combine(operator, one, other) if operator else product([one, other])
            return _objects(result).reshape(max(first.shape, inputs[1].shape, key=len))
        return None

    def constant(self, value):
        """Contents of an integer tensor that are plain numbers, as a flat list; else `None`."""
        data = None if value is None else self.data.get(value)
        return None if data is None or not _integers(data) else [int(item) for item in data.flat]

    # Shapes, one method an operator.

    def _broadcast(self, node):
        shapes = [self.dims.get(value) for value in node.inputs]
        if any(shape is None for shape in shapes):
            return None
        rank = max(map(len, shapes))
        dims = []
        for axis in range(rank):
            sizes = {shape[axis - rank] for shape in shapes if len(shape) >= rank - axis} - {1}
            numbers = [size for size in sizes if isinstance(size, int)]
            # Two unknowns may be equal, or one of them 1: the result is another unknown.
            some = numbers or (sizes if len(sizes) < 2 else [self.fresh(node.outputs[0], axis)])
            dims.append(next(iter(some), 1))
        return tuple(dims)

    def _reduce(self, node):
        dims = self.dims.get(node.inputs[0])
        axes = attribute(node, "axes", None)
        if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
            axes = self.constant(node.inputs[1])
            if axes is None:
                return None
        if dims is None:
            return None
        axes = range(len(dims)) if axes is None else [axis % len(dims) for axis in axes]
        if attribute(node, "keepdims", 1):
            return tuple(1 if axis in axes else size for axis, size in enumerate(dims))
        return tuple(size for axis, size in enumerate(dims) if axis not in axes)

    def _argmax(self, node):
        dims, axis = self.dims.get(node.inputs[0]), attribute(node, "axis", 0)
        if dims is None:
            return None
        kept = (1,) if attribute(node, "keepdims", 1) else ()
        return (*dims[: axis % len(dims)], *kept, *dims[axis % len(dims) + 1 :])

    _argmin = _argmax

    def _matmul(self, node):
        left, right = (self.dims.get(value) for value in node.inputs[:2])
        if left is None or right is None or len(left) < 2 or len(right) < 2:
            return None
        if len(right) == 2:
            return (*left[:-1], right[-1])
        if len(left) == len(right):
            batch = []
            for axis, pair in enumerate(zip(left[:-2], right[:-2], strict=True)):
                sizes = set(pair) - {1}
                numbers = [size for size in sizes if isinstance(size, int)]
                some = numbers or (sizes if len(sizes) < 2 else [self.fresh(node.outputs[0], axis)])
                batch.append(next(iter(some), 1))
            return (*batch, left[-2], right[-1])
        return None

    # Operators of ONNX Runtime that `fuse` writes.

    def _fusedmatmul(self, node):
        left, right = (self.dims.get(value) for value in node.inputs)
        if left is None or right is None or len(right) != 2 or attribute(node, "transA", 0):
            return None
        return (*left[:-1], right[0 if attribute(node, "transB", 0) else 1])

    def _skiplayernormalization(self, node):
        dims = self.dims.get(node.inputs[0])
        return None if dims is None else [dims, (), (), dims]

    def _multiheadattention(self, node):
        query, key, value = (self.dims.get(value) for value in node.inputs[:3])
        if query is None or key is None or value is None:
            return None
        size = value[2] if len(value) == 3 else product([value[1], value[3]])
        if len(node.outputs) == 1:
            return (*query[:2], size)
        past_key, past_value = (self.dims.get(value) for value in node.inputs[6:8])
        if past_key is None or past_value is None:
            return None
        caches = [
            (*past[:2], _combine("+", past[2], key[1]), past[3]) for past in (past_key, past_value)
        ]
        return [(*query[:2], size), *caches]

    def _reshape(self, node):
        dims, target = self.dims.get(node.inputs[0]), self.data.get(node.inputs[1])
        if target is None:
            shape = self.dims.get(node.inputs[1])
            rank = shape[0] if shape and isinstance(shape[0], int) else None
            return None if rank is None else self._all_fresh(node.outputs[0], rank)
        target = list(target.flat)
        for axis, size in enumerate(target):
            if size == 0 and not attribute(node, "allowzero", 0):
                target[axis] = dims[axis] if dims else self.fresh(node.outputs[0], axis)
        if -1 in target:
            axis = target.index(-1)
            rest = product(target[:axis] + target[axis + 1 :])
            size = None if dims is None else quotient(product(dims), rest)
            target[axis] = self.fresh(node.outputs[0], axis) if size is None else size
        return tuple(target)

    def _all_fresh(self, value, rank):
        return tuple(self.fresh(value, axis) for axis in range(rank))

    def _transpose(self, node):
        dims = self.dims.get(node.inputs[0])
        if dims is None:
            return None
        order = attribute(node, "perm", range(len(dims) - 1, -1, -1))
        return tuple(dims[axis] for axis in order)

    def _unsqueeze(self, node):
        dims, axes = self.dims.get(node.inputs[0]), self.constant(node.inputs[1])
        if dims is None or axes is None:
            return None
        rank = len(dims) + len(axes)
        axes, rest = {axis % rank for axis in axes}, iter(dims)
        return tuple(1 if axis in axes else next(rest) for axis in range(rank))

    def _squeeze(self, node):
        dims = self.dims.get(node.inputs[0])
        axes = self.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if dims is None or axes is None:
            return None
        axes = {axis % len(dims) for axis in axes}
        return tuple(size for axis, size in enumerate(dims) if axis not in axes)

    def _gather(self, node):
        dims, index = (self.dims.get(value) for value in node.inputs)
        if dims is None or index is None:
            return None
        axis = attribute(node, "axis", 0) % len(dims)
        return (*dims[:axis], *index, *dims[axis + 1 :])

    def _gathernd(self, node):
        dims, index = (self.dims.get(value) for value in node.inputs)
        if dims is None or index is None or not isinstance(index[-1], int):
            return None
        return (*index[:-1], *dims[attribute(node, "batch_dims", 0) + index[-1] :])

    def _gatherelements(self, node):
        return self.dims.get(node.inputs[1])

    def _concat(self, node):
        shapes = [self.dims.get(value) for value in node.inputs]
        if any(shape is None for shape in shapes):
            return None
        axis = attribute(node, "axis", 0) % len(shapes[0])
        total = shapes[0][axis]
        for shape in shapes[1:]:
            total = _combine("+", total, shape[axis])
        return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])

    def _slice(self, node):
        dims = self.dims.get(node.inputs[0])
        starts, ends, axes, steps = [
            self.constant(value) for value in [*node.inputs[1:], None, None][:4]
        ]
        if dims is None or (len(node.inputs) > 3 and axes is None):
            return None
        axes = range(len(dims)) if axes is None else [axis % len(dims) for axis in axes]
        dims = list(dims)
        for i, axis in enumerate(axes):
            step = 1 if len(node.inputs) < 5 else steps[i] if steps else None
            whole = starts and ends and starts[i] == 0 and ends[i] >= ENDLESS and step == 1
            if whole:
                continue
            if starts and ends and step and isinstance(dims[axis], int):
                dims[axis] = len(range(dims[axis])[starts[i] : ends[i] : step])
            else:
                dims[axis] = self.fresh(node.outputs[0], axis)
        return tuple(dims)

    def _expand(self, node):
        target = self.data.get(node.inputs[1])
        dims = self.dims.get(node.inputs[0])
        if target is None or dims is None or len(dims) > target.size:
            return None
        dims = (1,) * (target.size - len(dims)) + tuple(dims)
        return tuple(
            new
            if size == 1 or size == new
            else size
            if new == 1
            else self.fresh(node.outputs[0], axis)
            for axis, (size, new) in enumerate(zip(dims, target.flat, strict=True))
        )

    def _tile(self, node):
        dims, repeats = self.dims.get(node.inputs[0]), self.data.get(node.inputs[1])
        if dims is None or repeats is None:
            return None
        return tuple(product(pair) for pair in zip(dims, repeats.flat, strict=True))

    def _constantofshape(self, node):
        target = self.data.get(node.inputs[0])
        return None if target is None else tuple(target.flat)

    def _range(self, node):
        start, stop, step = (self.data.get(value) for value in node.inputs)
        if start is not None and stop is not None and step is not None:
            if start.flat[0] == 0 and step.flat[0] == 1:
                return (stop.flat[0],)
        return self._all_fresh(node.outputs[0], 1)

    def _nonzero(self, node):
        dims = self.dims.get(node.inputs[0])
        return None if dims is None else (len(dims), self.fresh(node.outputs[0], 1))

    def _scatternd(self, node):
        return self.dims.get(node.inputs[0])

    def _topk(self, node):
        dims, count = self.dims.get(node.inputs[0]), self.data.get(node.inputs[1])
        if dims is None or count is None:
            return None
        axis = attribute(node, "axis", -1) % len(dims)
        return [(*dims[:axis], count.flat[0], *dims[axis + 1 :])] * 2

    def _split(self, node):
        dims = self.dims.get(node.inputs[0])
        sizes = self.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if dims is None:
            return None
        axis = attribute(node, "axis", 0) % len(dims)
        if sizes is None:
            part = quotient(dims[axis], len(node.outputs))
            if part is None:
                return None
            sizes = [part] * len(node.outputs)
        return [(*dims[:axis], size, *dims[axis + 1 :]) for size in sizes]

    def _pad(self, node):
        dims = self.dims.get(node.inputs[0])
        return None if dims is None else self._all_fresh(node.outputs[0], len(dims))


def attribute(node, name, default):
    """The value of a node's attribute, or `default` where it is not set."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def _objects(items):
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


def _integers(data):
    return all(isinstance(item, (int, np.integer)) for item in data.flat)


def _mentions(size, value):
    prefix = f"{value.name}["
    return not isinstance(size, int) and any(name.startswith(prefix) for name in size.unknowns)


def count(dims):
    """Number of elements of a shape of plain integers, else `None`."""
    return math.prod(dims) if all(isinstance(size, int) for size in dims) else None
