"""float16 for GPUs: weights, products, attention, norms and caches; the rest stays float32.

Every operator of `HALF` gets its numbers through a Cast to float16 and hands its result on through
a Cast to float32. Then pairs of Casts that undo each other go, and a loop's state that is only read
through such a Cast is kept in float16 between steps (`half_loops`). What is left in float32 are
log-probabilities, scores and positions, which need its range or its precision.

    before   y = MatMul(Relu(MatMul(x, w)), v)
    Casts    y = float(MatMul(half(Relu(float(MatMul(half(x), half w)))), half v))
    after    y = float(MatMul(Relu(MatMul(half(x), half w)), half v))

Why not a converter that exists: `onnxruntime.transformers.float16` 1.31 and onnxconverter-common
1.16 both write files that ONNX Runtime refuses as soon as there is a loop, with blocked operators,
too; and they halve the scores of hypotheses, eight states of a loop where four are caches. On a
forward pass, without a loop, the first agrees with this module (differences 0.005 and 0.006).
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from keras_transformer.export.graph.half_loops import halve_state, is_cast, is_half_cast, make_cast
from keras_transformer.export.graph.nodes import add_initializer, all_nodes
from keras_transformer.export.graph.simplify import clean

# Operators that work in float16: those that cost, and those between them.
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
# Operators that give integers or booleans, whatever they read.
NO_NUMBERS = {
    "And",
    "ArgMax",
    "ArgMin",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "IsInf",
    "IsNaN",
    "Less",
    "LessOrEqual",
    "NonZero",
    "Not",
    "Or",
    "Shape",
    "Size",
}
# The bias of an attention is at least this: float16 ends at 65504, and exp of it is 0 in any case.
LOWEST = -3e4
BIAS_INPUT = 5  # of a MultiHeadAttention


def halve(model, is_kept):
    """Rewrites an `onnx_ir.Model` in place.

    Args:
        model: result of `fuse_blocks` and `simplify`.
        is_kept: function of a weight that says whether it stays float32.

    Returns:
        How many weights are float16 now.
    """
    graph, halves = model.graph, _Halves(model)
    for node in all_nodes(graph):  # slots that are float16 already; tf2onnx notes no dtype here
        if node.op_type == "ScatterND" and node.outputs[0].dtype is None:
            node.outputs[0].type = node.inputs[0].type
    for node in all_nodes(graph):
        weights = [value for value in node.inputs if _is_float_weight(value)]
        kept = any(is_kept(weight) for weight in weights)
        embedding = node.op_type == "Gather" and weights and not is_kept(weights[0])
        if embedding or (node.op_type in HALF and not kept):
            halves.convert(node)
    changed = True
    while changed:
        changed = _drop_pairs(graph)
        for node in all_nodes(graph):
            if node.op_type in FOLLOW and _may_follow(node, halves.is_float):
                halves.convert(node)
                changed = True
        changed = halve_state(graph) or changed
    clean(model)
    common.NameFixPass()(model)
    return len(halves.weights)


def float_values(model):
    """Whether a value is float32, as a function, as far as its dtype and the operators tell.

    tf2onnx notes the dtypes of the values that it writes. Those of fused operators follow from
    their inputs: an operator gives what it reads, but for those of `NO_NUMBERS`.
    """
    floats = set()

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
        elif node.op_type in NO_NUMBERS:
            chosen = False
        elif node.op_type == "Where":
            chosen = is_float(node.inputs[1]) or is_float(node.inputs[2])
        else:
            chosen = bool(node.inputs) and is_float(node.inputs[0])
        if chosen:
            floats.update(node.outputs[:1] if node.op_type == "TopK" else node.outputs)
    return is_float


def _is_float_weight(value):
    """Whether a value is a float32 constant of more than one number."""
    return (
        value is not None
        and value.const_value is not None
        and value.const_value.dtype == ir.DataType.FLOAT
        and value.const_value.size > 1
    )


class _Halves:
    """Puts nodes into float16, and holds the float16 copies of weights that they share."""

    def __init__(self, model):
        self.graph = model.graph
        self.is_float = float_values(model)
        self.weights = {}  # float32 weight -> its float16 copy
        self.lowest = None

    def convert(self, node):
        """Puts Casts around a node, and float16 copies in the place of its weights."""
        for index, value in enumerate(node.inputs):
            if not self.is_float(value) or value.dtype == ir.DataType.FLOAT16:
                continue
            if _is_float_weight(value):
                node.replace_input_with(index, self._weight(value))
                continue
            if node.op_type == "MultiHeadAttention" and index == BIAS_INPUT:
                bounded = ir.Node("", "Max", [value, self._lowest()], num_outputs=1)
                node.prepend(bounded)
                value = bounded.outputs[0]
            cast = make_cast(value, ir.DataType.FLOAT16)
            node.prepend(cast)
            node.replace_input_with(index, cast.outputs[0])
        for output in node.outputs:
            if output.uses() or output.is_graph_output():
                self._widen(node, output)

    @staticmethod
    def _widen(node, output):
        """Lets all readers of an output read it through a Cast to float32, under its old name."""
        cast = make_cast(output, ir.DataType.FLOAT)
        node.append(cast)
        output.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
        cast.replace_input_with(0, output)
        cast.outputs[0].name, output.name = output.name, f"{output.name}/half"
        output.type = ir.TensorType(ir.DataType.FLOAT16)

    def _weight(self, value):
        """The float16 copy of a weight; numbers that are too large become the largest."""
        if value not in self.weights:
            largest = np.finfo(np.float16).max
            array = np.clip(value.const_value.numpy(), -largest, largest).astype(np.float16)
            self.weights[value] = add_initializer(self.graph, f"{value.name}/half", array)
        return self.weights[value]

    def _lowest(self):
        if self.lowest is None:
            array = np.array(LOWEST, np.float32)
            self.lowest = add_initializer(self.graph, f"half/{LOWEST}", array)
        return self.lowest


def _drop_pairs(graph):
    """Steps over Casts to float32 and back; returns whether there were any.

    before   y = half(float(x))      x of float16
    after    y = x
    """
    changed = False
    for node in all_nodes(graph):
        if is_half_cast(node) and _is_widened_half(node.inputs[0]):
            output, half = node.outputs[0], node.inputs[0].producer().inputs[0]
            if output.is_graph_output() and half.producer() and not half.is_graph_output():
                # It takes the output's name, else a copy would be made to bear it.
                half.name, half.shape = output.name, output.shape
                output.name = f"{half.name}/cast"
            output.replace_all_uses_with(half, replace_graph_outputs=True)
            node.graph.remove(node, safe=True)
            changed = True
    return changed


def _is_widened_half(value):
    """Whether a value is float16 behind a Cast to float32."""
    return (
        is_cast(value, ir.DataType.FLOAT)
        and value.producer().inputs[0].dtype == ir.DataType.FLOAT16
    )


def _may_follow(node, is_float):
    """Whether all numbers that a node reads are float16 behind a Cast, or weights."""
    if any(output.dtype == ir.DataType.FLOAT16 for output in node.outputs):
        return False
    # Weights have no Cast in front of them yet: they get a float16 copy when the node is converted.
    floats = [value for value in node.inputs if is_float(value)]
    half = [value for value in floats if _is_widened_half(value)]
    rest = [value for value in floats if value not in half]
    # Only where a float16 operator reads the result: log-probabilities stay float32.
    wanted = all(
        is_half_cast(user) or user.op_type in FOLLOW
        for output in node.outputs
        for user, _ in output.uses()
    )
    body_outputs = any(output.is_graph_output() for output in node.outputs)
    return bool(half) and all(map(_is_float_weight, rest)) and (wanted or body_outputs)
