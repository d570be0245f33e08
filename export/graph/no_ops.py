"""Nodes that do nothing, or that do in several steps what one can do: they are stepped over."""

import functools

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.nodes import (
    add_initializer,
    all_nodes,
    attribute,
    constant,
    is_number,
)
from keras_transformer.export.graph.sizes import terms, unknown


def plain_reshapes(graph, known):
    """Lets every Reshape read what was reshaped before it, and makes its target a constant.

    A constant can say all but one size: 0 stands for the input's own size, -1 for what is left.
    Both in one would not do: beside an empty axis, ONNX Runtime cannot tell what is left.

    before   y = Reshape(Reshape(x, [-1, 6]), Concat(Slice(Shape(x), 0, 1), [-1]))
    after    y = Reshape(x, [0, 6])

    before   y = Reshape(x, Concat(Slice(Shape(x), 0, 1), [-1, 3]))       x (B, T, 6)
    after    y = Reshape(x, Concat(Shape(x, 0, 1), Mul(Shape(x, 1, 2), 2), [3]), allowzero=1)

    Returns:
        How many nodes were changed.
    """
    changed = 0
    for node in all_nodes(graph):
        if not _is_reshape(node):
            continue
        value, shape = node.inputs[0], known.dims.get(node.outputs[0])
        if shape is None or 0 in shape:
            continue
        if _is_reshape(value.producer()):
            value = value.producer().inputs[0]
        elif node.op_type != "Reshape" or constant(node.inputs[1]) is not None:
            continue
        dims = known.dims.get(value)
        target = [-1, -1] if dims is None else _target(dims, shape)
        if target.count(-1) > 1:
            continue
        if -1 not in target or 0 not in target:
            target = add_initializer(graph, f"{node.name}/target", target)
            node.attributes.pop("allowzero", None)
        elif (target := _computed_target(graph, node, value, dims, shape)) is None:
            continue
        node.op_type = "Reshape"
        node.replace_input_with(0, value)
        node.replace_input_with(1, target)
        changed += 1
    return changed


def _is_reshape(node):
    """Whether a node gives its input another shape, its numbers in the same order."""
    return (
        node is not None
        and node.op_type in ("Reshape", "Squeeze", "Unsqueeze")
        and len(node.inputs) == 2
    )


def _target(dims, shape):
    """A target that reshapes `dims` to `shape`, with -1 for each open size."""
    target = [size if isinstance(size, int) else -1 for size in shape]
    if target.count(-1) > 1:
        for i, (size, own) in enumerate(zip(shape, dims, strict=False)):
            if target[i] == -1 and own == size:
                target[i] = 0
    return target


def _computed_target(graph, node, value, dims, shape):
    """A target that is computed from the input's sizes, written before a Reshape, or `None`."""
    if node.op_type != "Reshape" or attribute(node, "allowzero", 0):
        return None
    make, parts = ir.tape.Tape(), []
    for size in shape:
        factor, unknowns = terms(size)
        axes = [dims.index(unknown(name)) for name in unknowns if unknown(name) in dims]
        if len(axes) < len(unknowns):
            return None
        sizes = [make.op("Shape", [value], {"start": axis, "end": axis + 1}) for axis in axes]
        if factor != 1 or not sizes:
            sizes.append(add_initializer(graph, f"{node.name}/factor", np.array([factor])))
        parts.append(functools.reduce(lambda one, other: make.op("Mul", [one, other]), sizes))
    target = make.op("Concat", parts, {"axis": 0})
    node.prepend(list(make.nodes))
    node.attributes["allowzero"] = ir.AttrInt64("allowzero", 1)
    return target


def remove_no_ops(graph, known):
    """Steps over nodes that pass on their input: same type, same shape, same order.

    before   y = Neg(Cast(Transpose(x, perm=[0, 1, 2]), to=FLOAT))     x of FLOAT
    after    y = Neg(x)

    Returns:
        How many nodes were removed or changed.
    """
    changed = 0
    for node in all_nodes(graph):
        if not node.outputs or node.outputs[0].is_graph_output() or not node.inputs:
            continue
        value, output = node.inputs[0], node.outputs[0]
        if _is_no_op(node, known):
            output.replace_all_uses_with(value)
            node.graph.remove(node, safe=True)
            changed += 1
        elif node.op_type == "Gather" and _wrapped_index(node.inputs[1]) is not None:
            # Indices below 0 count from the end in Gather itself.
            node.replace_input_with(1, _wrapped_index(node.inputs[1]))
            changed += 1
    return changed


def _is_no_op(node, known):
    """Whether a node's output is its first input."""
    value, output = node.inputs[0], node.outputs[0]
    before, after = known.dims.get(value), known.dims.get(output)
    if node.op_type == "Cast":
        return _dtype(value) is not None and _dtype(value) == node.attributes["to"].value
    if node.op_type == "Transpose":
        order = attribute(node, "perm", None)
        return order is not None and list(order) == sorted(order)
    if node.op_type in ("Reshape", "Expand", "Unsqueeze", "Squeeze"):
        return before is not None and before == after
    if node.op_type == "Slice":
        starts = known.constant(node.inputs[1])
        whole = before is not None and before == after and starts is not None and not any(starts)
        return whole and (
            len(node.inputs) < 5 or known.constant(node.inputs[4]) == [1] * len(starts)
        )
    if node.op_type == "And":
        return node.inputs[0] is node.inputs[1]
    if node.op_type == "Concat":
        return len(node.inputs) == 1
    if node.op_type in ("Add", "Mul", "Div", "Sub") and before is not None and before == after:
        return is_number(node.inputs[1], 0 if node.op_type in ("Add", "Sub") else 1)
    return False


def _dtype(value):
    """A value's dtype; TopK's indices are int64, whatever tf2onnx notes for them."""
    producer = value.producer()
    if producer is not None and producer.op_type == "TopK" and value in producer.outputs[1:]:
        return ir.DataType.INT64
    return value.dtype


def _wrapped_index(value):
    """`i` where `value` is `where(i < 0, i + size, i)` in tf2onnx's words, else `None`.

    These are `cast(i < 0) * (i + size) + i * cast(not(i < 0))`. In a Gather `i` does the same.
    """
    chosen, other = _operands(value, "Add")
    below, shifted = _operands(chosen, "Mul")
    index, not_below = _operands(other, "Mul")
    negative = _operands(below, "Cast")[0]
    positive = _operands(_operands(not_below, "Cast")[0], "Not")[0]
    if index is None or negative is None or positive is not negative:
        return None
    compared, zero = _operands(negative, "Less")
    if zero is None or not is_number(zero, 0):
        return None
    if compared is not index and _operands(compared, "Cast")[0] is not index:
        return None
    return index if _operands(shifted, "Add")[0] is index else None


def _operands(value, op_type):
    """The two inputs of the operator that gives a value; `None`s where it is another operator."""
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type != op_type:
        return None, None
    return (*producer.inputs, None)[:2]
