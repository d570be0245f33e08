"""float16 for GPUs: weights, products, attention, norms and caches; the rest stays float32.

Every operator of `HALF` reads its numbers through a Cast to float16, and others read its result
through a Cast to float32. Then pairs of Casts that undo each other are removed. A loop's state that
is only read through such a Cast stays float16 between steps. Log-probabilities, scores and
positions stay float32, because they need its range or its precision.

    before   y = MatMul(Relu(MatMul(x, w)), v)
    Casts    y = float(MatMul(half(Relu(float(MatMul(half(x), half w)))), half v))
    after    y = float(MatMul(Relu(MatMul(half(x), half w)), half v))

`docs/library.md` says why existing converters do not help.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from keras_transformer.export.graph.fuse_attention import BIAS_INPUT
from keras_transformer.export.graph.nodes import add_initializer, all_nodes, producer
from keras_transformer.export.graph.simplify import clean

FLOAT, FLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16
# Expensive operators, which work in float16.
HALF = {
    "MatMul",
    "FusedMatMul",
    "MultiHeadAttention",
    "SkipLayerNormalization",
    "LayerNormalization",
}
# Cheap operators, in float16 if their input is float16 already.
FOLLOW = set("Reshape Split Transpose Relu Gather Concat Slice Add Mul Expand".split())
# Operators that return integers or booleans, whatever they read.
NO_NUMBERS = set(
    """
    And ArgMax ArgMin Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual NonZero Not Or Shape
    Size
    """.split()
)
# Lowest bias of an attention: float16 ends at 65504, and exp of this is 0 anyway.
LOWEST = -3e4


def halve(model: ir.Model, is_kept: Callable[[ir.Value], bool]) -> int:
    """Converts a model to float16 in place.

    Args:
        model: result of `fuse_blocks` and `simplify`.
        is_kept: function that returns whether a weight stays float32.

    Returns:
        Number of float16 weights.
    """
    graph, converter = model.graph, _Converter(model)
    for node in all_nodes(graph):  # caches that are float16 already; tf2onnx notes no dtype here
        if node.op_type == "ScatterND" and node.outputs[0].dtype is None:
            node.outputs[0].type = node.inputs[0].type
    for node in all_nodes(graph):
        weights = [value for value in node.inputs if _is_float_weight(value)]
        kept = any(is_kept(weight) for weight in weights)
        embedding = node.op_type == "Gather" and weights and not is_kept(weights[0])
        product = node.op_type in HALF and any(map(converter.is_float, node.inputs))
        if embedding or (product and not kept):
            converter.convert(node)
    changed = True
    while changed:
        changed = _remove_pairs(graph)
        for node in all_nodes(graph):
            if node.op_type in FOLLOW and _may_follow(node, converter.is_float):
                converter.convert(node)
                changed = True
        changed = _halve_state(graph) or changed
    clean(model)
    common.NameFixPass()(model)
    return len(converter.weights)


def _float_values(graph: ir.Graph) -> set[ir.Value]:
    """Returns the float32 values without a noted dtype, inferred from the operators.

    tf2onnx notes the dtypes of the values that it writes. Dtypes of fused operators follow from
    their inputs: an operator returns the type of its input, except the operators of `NO_NUMBERS`.
    """
    floats = set()

    def is_float(value: ir.Value | None) -> bool:
        return value is not None and (value.dtype == FLOAT or value in floats)

    nodes = all_nodes(graph)
    branches = [node for node in nodes if node.op_type == "If"]
    for node in nodes + branches + nodes if branches else nodes:
        if node.op_type == "If":  # its branches come after it
            for branch in (node.attributes["then_branch"], node.attributes["else_branch"]):
                pairs = zip(node.outputs, branch.value.outputs, strict=True)
                floats.update(output for output, inner in pairs if is_float(inner))
            continue
        if node.op_type == "Loop":
            body = node.attributes["body"].value
            for slot in zip(node.inputs[2:], body.inputs[2:], node.outputs, strict=False):
                floats.update(slot if any(map(is_float, slot[:2])) else ())
            states = len(node.inputs) - 2
            for output, of_step in zip(
                node.outputs[states:], body.outputs[1 + states :], strict=True
            ):
                floats.update([output] if is_float(of_step) else ())
            continue
        if node.op_type == "Cast":
            gives_float = node.attributes["to"].value == FLOAT
        elif node.op_type == "Where":
            gives_float = any(map(is_float, node.inputs[1:]))
        else:
            gives_float = node.op_type not in NO_NUMBERS and any(map(is_float, node.inputs[:1]))
        if gives_float:
            floats.update(node.outputs[:1] if node.op_type == "TopK" else node.outputs)
    return floats


def _is_float_weight(value: ir.Value | None) -> bool:
    """Returns whether a value is a float32 constant of more than one number."""
    tensor = None if value is None else value.const_value
    return tensor is not None and tensor.dtype == FLOAT and tensor.size > 1


class _Converter:
    """Converts nodes to float16, and holds the float16 copies of weights that they share."""

    def __init__(self, model: ir.Model) -> None:
        self._graph, self._floats = model.graph, _float_values(model.graph)
        self.weights = {}  # float32 weight -> its float16 copy

    def is_float(self, value: ir.Value | None) -> bool:
        """Returns whether a value was float32 at the start, or has this dtype now."""
        return value is not None and (value.dtype == FLOAT or value in self._floats)

    def convert(self, node: ir.Node) -> None:
        """Puts Casts around a node, and replaces its weights by float16 copies."""
        for index, value in enumerate(node.inputs):
            if not self.is_float(value) or value.dtype == FLOAT16:
                continue
            if _is_float_weight(value):
                node.replace_input_with(index, self._weight(value))
                continue
            if node.op_type == "MultiHeadAttention" and index == BIAS_INPUT:
                lowest = add_initializer(self._graph, "lowest", np.array(LOWEST, np.float32))
                bounded = ir.Node("", "Max", [value, lowest])
                node.prepend(bounded)
                value = bounded.outputs[0]
            cast = _cast(value, FLOAT16)
            node.prepend(cast)
            node.replace_input_with(index, cast.outputs[0])
        for output in node.outputs:
            if output.uses() or output.is_graph_output():
                _narrow(output)

    def _weight(self, value: ir.Value) -> ir.Value:
        """Returns the float16 copy of a weight; numbers that are too large become the largest."""
        if value not in self.weights:
            largest = np.finfo(np.float16).max
            array = np.clip(value.const_value.numpy(), -largest, largest).astype(np.float16)
            self.weights[value] = add_initializer(self._graph, f"{value.name}/half", array)
        return self.weights[value]


def _cast(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    """Returns a new Cast of `value`, in no graph yet."""
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(dtype))])
    node.outputs[0].dtype, node.outputs[0].shape = dtype, value.shape
    return node


def _narrow(output: ir.Value) -> None:
    """Makes a node's output float16; its readers read a Cast to float32 with its old name."""
    cast = _cast(output, FLOAT)
    output.producer().append(cast)
    output.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
    cast.replace_input_with(0, output)
    cast.outputs[0].name, output.name = output.name, f"{output.name}/half"
    output.type = ir.TensorType(FLOAT16)  # a new object: values may share one


def _widened(value: ir.Value | None) -> ir.Value | None:
    """Returns the float16 value that is cast to float32, or `None`."""
    cast = producer(value, "Cast")
    half = cast.inputs[0] if cast and cast.attributes["to"].value == FLOAT else None
    return half if half is not None and half.dtype == FLOAT16 else None


def _is_half_cast(node: ir.Node) -> bool:
    """Returns whether a node is a Cast to float16."""
    return node.op_type == "Cast" and node.attributes["to"].value == FLOAT16


def _remove_pairs(graph: ir.Graph) -> bool:
    """Removes Casts to float32 and back; returns whether there were any.

    before   y = half(float(x))      x of float16
    after    y = x
    """
    changed = False
    for node in all_nodes(graph):
        half = _widened(node.inputs[0]) if _is_half_cast(node) else None
        if half is not None:
            output = node.outputs[0]
            if output.is_graph_output() and half.producer() and not half.is_graph_output():
                # With the output's name it needs no copy.
                half.name, half.shape = output.name, output.shape
                output.name = f"{half.name}/cast"
            output.replace_all_uses_with(half, replace_graph_outputs=True)
            node.graph.remove(node, safe=True)
            changed = True
    return changed


def _may_follow(node: ir.Node, is_float: Callable[[ir.Value | None], bool]) -> bool:
    """Returns whether a node reads only weights and casts of float16."""
    if any(output.dtype == FLOAT16 for output in node.outputs):
        return False
    # Weights have no Cast yet: they get a float16 copy when the node is converted.
    floats = [value for value in node.inputs if is_float(value)]
    others = [value for value in floats if _widened(value) is None]
    # Only if a float16 operator reads the result: log-probabilities stay float32.
    readers = [user for output in node.outputs for user, _ in output.uses()]
    wanted = all(_is_half_cast(user) or user.op_type in FOLLOW for user in readers)
    wanted = wanted or any(output.is_graph_output() for output in node.outputs)
    return len(others) < len(floats) and all(map(_is_float_weight, others)) and wanted


def _halve_state(graph: ir.Graph) -> bool:
    """Keeps the state of loops in float16 if it is only read through a Cast to it.

    before   Loop(cache) { keys = half(cache); ...; cache_next = float(new_keys) }
    after    Loop(half(cache)) { keys = cache; ...; cache_next = new_keys }

    Returns:
        Whether any state changed.
    """
    changed = False
    for loop in [node for node in graph if node.op_type == "Loop"]:
        body = loop.attributes["body"].value
        changed = _halve_state(body) or changed  # loops in the loop first
        for index, state in enumerate(body.inputs[2:]):
            readers = [user for user, _ in state.uses()]
            half = _widened(body.outputs[1 + index])
            if state.dtype != FLOAT or not readers or half is None:
                continue
            if all(map(_reads_half, readers)):
                for user in readers:
                    _read_half(user, state)
                state.type = ir.TensorType(FLOAT16)
                body.outputs[1 + index] = half
                cast = _cast(loop.inputs[2 + index], FLOAT16)
                loop.prepend(cast)
                loop.replace_input_with(2 + index, cast.outputs[0])
                _narrow(loop.outputs[index])
                changed = True
    return changed


def _reads_half(node: ir.Node) -> bool:
    """Returns whether a node is a Cast to float16, or takes rows that only such Casts read."""
    users = [user for output in node.outputs for user, _ in output.uses()]
    rows = node.op_type == "Gather" and bool(users)
    return _is_half_cast(node) or (rows and all(map(_is_half_cast, users)))


def _read_half(node: ir.Node, state: ir.Value) -> None:
    """Makes a node for which `_reads_half` holds read `state` as float16."""
    half, casts = state, [node]
    if not _is_half_cast(node):
        half, casts = node.outputs[0], [user for user, _ in node.outputs[0].uses()]
        half.type = ir.TensorType(FLOAT16)
    for cast in casts:
        cast.outputs[0].replace_all_uses_with(half)
        cast.graph.remove(cast, safe=True)
