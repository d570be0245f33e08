"""float16 for GPUs: weights, products, attention, norms and caches; the rest stays float32.

Every operator of `HALF` gets its numbers through a Cast to float16 and hands its result on through
a Cast to float32. Then pairs of Casts that undo each other go, and a loop's state that is only read
through such a Cast is kept in float16 between steps. What is left in float32 are log-probabilities,
scores and positions, which need its range or its precision.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from keras_transformer.export.graph.nodes import all_nodes
from keras_transformer.export.graph.simplify import clean

HALF = {
    "MatMul",
    "FusedMatMul",
    "MultiHeadAttention",
    "SkipLayerNormalization",
    "LayerNormalization",
}
# These only move or bend numbers: float16 where their input is float16 already.
FOLLOW = {
    "Reshape",
    "Split",
    "Transpose",
    "Relu",
    "Gather",
    "Concat",
    "Slice",
    "Add",
    "Mul",
    "Expand",
}
# float16 ends at 65504; exp of this is 0 in any case.
LOWEST = -3e4


def halve(model, is_kept):
    """Rewrites an `onnx_ir.Model` in place; weights stay for whose name `is_kept` holds."""
    graph, made = model.graph, {}
    types = _types(model)
    for node in all_nodes(graph):
        weights = [value for value in node.inputs if _is_float_weight(value)]
        if node.op_type == "Gather" and weights and not is_kept(weights[0].name):
            _halve_node(graph, node, types, made)
        elif node.op_type in HALF and not any(is_kept(weight.name) for weight in weights):
            _halve_node(graph, node, types, made)
    changed = True
    while changed:
        changed = _drop_pairs(graph)
        for node in all_nodes(graph):
            if node.op_type in FOLLOW and _may_follow(node, types):
                _halve_node(graph, node, types, made)
                changed = True
        changed = _halve_state(graph) or changed
    clean(model)
    common.NameFixPass()(model)


def _types(model):
    """Values that are float32, as far as ONNX's own inference and the operators tell."""
    floats = set()
    same = {"Shape", "ArgMax", "NonZero", "Size", "Equal", "Not", "Greater", "Less", "And", "Or",
            "GreaterOrEqual", "LessOrEqual", "IsNaN"}  # fmt: skip

    def is_float(value):
        return value is not None and (value.dtype == ir.DataType.FLOAT or value in floats)

    for node in all_nodes(model.graph):
        if node.op_type == "Loop":
            body = node.attributes["body"].value
            pairs = zip(node.inputs[2:], body.inputs[2:], node.outputs, strict=False)
            for first, state, last in pairs:
                if is_float(first) or is_float(state):
                    floats.update((first, state, last))
            continue
        if node.op_type == "Cast":
            chosen = node.attributes["to"].value == ir.DataType.FLOAT
        elif node.op_type in same:
            chosen = False
        elif node.op_type == "Where":
            chosen = is_float(node.inputs[1]) or is_float(node.inputs[2])
        else:
            chosen = bool(node.inputs) and is_float(node.inputs[0])
        if chosen:
            floats.update(node.outputs[:1] if node.op_type == "TopK" else node.outputs)
    return is_float


def _is_float_weight(value):
    return (
        value is not None
        and value.const_value is not None
        and value.const_value.dtype == ir.DataType.FLOAT
        and value.const_value.size > 1
    )


def _cast(value, dtype):
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(dtype))], num_outputs=1)
    node.outputs[0].dtype, node.outputs[0].shape = dtype, value.shape
    return node


def _halve_node(graph, node, types, made):
    for index, value in enumerate(node.inputs):
        if value is None or not types(value) or value.dtype == ir.DataType.FLOAT16:
            continue
        if _is_float_weight(value):
            if value not in made:
                made[value] = _half_weight(graph, value)
            node.replace_input_with(index, made[value])
            continue
        if node.op_type == "MultiHeadAttention" and index == 5:
            lowest = _number(graph, LOWEST)
            bounded = ir.Node("", "Max", [value, lowest], num_outputs=1)
            node.prepend(bounded)
            value = bounded.outputs[0]
        cast = _cast(value, ir.DataType.FLOAT16)
        node.prepend(cast)
        node.replace_input_with(index, cast.outputs[0])
    for output in node.outputs:
        if not output.uses() and not output.is_graph_output():
            continue
        cast = _cast(output, ir.DataType.FLOAT)
        cast.outputs[0].shape = output.shape
        node.append(cast)
        output.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
        cast.replace_input_with(0, output)
        cast.outputs[0].name, output.name = output.name, f"{output.name}/half"
        output.type = ir.TensorType(ir.DataType.FLOAT16)


def _half_weight(graph, value):
    array = value.const_value.numpy()
    largest = np.finfo(np.float16).max
    array = np.clip(array, -largest, largest).astype(np.float16)
    half = ir.Value(name=f"{value.name}/half", const_value=ir.tensor(array), shape=value.shape)
    half.dtype = ir.DataType.FLOAT16
    graph.register_initializer(half)
    return half


def _number(graph, number):
    name = f"half/{number}"
    if name not in graph.initializers:
        value = ir.Value(name=name, const_value=ir.tensor(np.array(number, np.float32)))
        value.dtype, value.shape = ir.DataType.FLOAT, ir.Shape([])
        graph.register_initializer(value)
    return graph.initializers[name]


def _is_cast(value, dtype):
    node = None if value is None else value.producer()
    return node is not None and node.op_type == "Cast" and node.attributes["to"].value == dtype


def _drop_pairs(graph):
    """Steps over Cast to float32 and back: float16 -> float32 -> float16 changes nothing."""
    changed = False
    for node in all_nodes(graph):
        if node.op_type != "Cast" or node.attributes["to"].value != ir.DataType.FLOAT16:
            continue
        source = node.inputs[0]
        if _is_cast(source, ir.DataType.FLOAT):
            before = source.producer().inputs[0]
            if before.dtype == ir.DataType.FLOAT16:
                node.outputs[0].replace_all_uses_with(before)
                node.graph.remove(node, safe=True)
                changed = True
    return changed


def _may_follow(node, types):
    """Whether all numbers that a node reads are float16 behind a Cast, or weights."""
    if any(output.dtype == ir.DataType.FLOAT16 for output in node.outputs):
        return False
    floats = [value for value in node.inputs if value is not None and types(value)]
    half = [
        value
        for value in floats
        if _is_cast(value, ir.DataType.FLOAT)
        and value.producer().inputs[0].dtype == ir.DataType.FLOAT16
    ]
    rest = [value for value in floats if value not in half]
    # Only where a float16 operator reads the result: log-probabilities stay float32.
    wanted = all(
        _is_half_cast(user) or user.op_type in FOLLOW
        for output in node.outputs
        for user, _ in output.uses()
    )
    body_outputs = any(output.is_graph_output() for output in node.outputs)
    return bool(half) and all(map(_is_float_weight, rest)) and (wanted or body_outputs)


def _is_half_cast(node):
    return node.op_type == "Cast" and node.attributes["to"].value == ir.DataType.FLOAT16


def _halve_state(graph):
    """Keeps in float16 the state of loops that is only read through a Cast to it."""
    changed = False
    for loop in list(graph):
        if loop.op_type != "Loop":
            continue
        body = loop.attributes["body"].value
        changed = _halve_state(body) or changed  # loops in the loop first
        for index, (first, state) in enumerate(zip(loop.inputs[2:], body.inputs[2:], strict=True)):
            result, last = body.outputs[1 + index], loop.outputs[index]
            readers = [user for user, _ in state.uses()]
            if state.dtype != ir.DataType.FLOAT or not readers:
                continue
            if not all(map(_reads_half, readers)) or not _is_cast(result, ir.DataType.FLOAT):
                continue
            for user in readers:
                _read_half(user, state)
            # New type objects: values may share one.
            state.type = ir.TensorType(ir.DataType.FLOAT16)
            body.outputs[1 + index] = result.producer().inputs[0]
            cast = _cast(first, ir.DataType.FLOAT16)
            loop.prepend(cast)
            loop.replace_input_with(2 + index, cast.outputs[0])
            last.type = ir.TensorType(ir.DataType.FLOAT16)
            if last.uses() or last.is_graph_output():
                cast = _cast(last, ir.DataType.FLOAT)
                loop.append(cast)
                last.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
                cast.replace_input_with(0, last)
            changed = True
    return changed


def _reads_half(node):
    """Whether a node is a Cast to float16, or takes rows that are only read by such Casts."""
    users = [user for output in node.outputs for user, _ in output.uses()]
    return _is_half_cast(node) or (
        node.op_type == "Gather" and bool(users) and all(map(_is_half_cast, users))
    )


def _read_half(node, state):
    """Lets a node for which `_reads_half` holds read `state` as float16."""
    if _is_half_cast(node):
        node.outputs[0].replace_all_uses_with(state)
        node.graph.remove(node, safe=True)
        return
    output = node.outputs[0]
    for user, _ in list(output.uses()):
        user.outputs[0].replace_all_uses_with(output)
        user.graph.remove(user, safe=True)
    output.type = ir.TensorType(ir.DataType.FLOAT16)
