"""Rewrites without which ONNX Runtime 1.31 cannot serve a batch of no rows.

Shapes: B batch, T positions, D size of an input, H units, R 1 or 2 directions.
"""

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.nodes import add_initializer, all_nodes, attribute
from keras_transformer.export.graph.shapes import Known

# They pass on numbers as they are; other inputs than the first are shapes or axes.
COPIES = ("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def positive_axes(graph, known):
    """Counts the axes of every reduction from the front.

    ONNX Runtime does not reduce an empty array along axes that are counted from the end.

    before   y = ReduceSum(x, [-1])     x of rank 4
    after    y = ReduceSum(x, [3])
    """
    for node in all_nodes(graph):
        dims = known.dims.get(node.inputs[0]) if node.op_type.startswith("Reduce") else None
        if not dims:
            continue
        axes = attribute(node, "axes", None)
        if axes is not None:
            node.attributes["axes"] = ir.AttrInt64s("axes", [axis % len(dims) for axis in axes])
            continue
        axes = known.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if axes and min(axes) < 0:
            axes = np.array([axis % len(dims) for axis in axes])
            node.replace_input_with(1, add_initializer(graph, f"{node.name}/axes", axes))


def serve_empty_batches(graph):
    """Rewrites the operators that ONNX Runtime cannot compute for a batch of no rows.

    Args:
        graph: the outer `onnx_ir.Graph` of a model, as it is to be written.
    """
    known = Known(graph)
    for node in all_nodes(graph):
        dims = [known.dims.get(value) for value in node.inputs]
        if node.op_type == "LSTM" and not (dims[0] and isinstance(dims[0][1], int)):
            _fill(graph, node)
        if node.op_type == "MatMul" and all(dims) and len(dims[0]) > 2 == len(dims[1]):
            _keep_apart(graph, node, [0] * (len(dims[0]) - 1) + [dims[1][0]])


def _keep_apart(graph, node, target):
    """Keeps ONNX Runtime from making one operator of a Transpose and a product with a matrix.

    That operator fails where there are no rows.

    before   y = MatMul(Transpose(x, [0, 2, 1]), w)                            x (B, D, T), w (D, H)
    after    y = MatMul(Reshape(Transpose(x, [0, 2, 1]), [0, 0, D]), w)
    """
    turned = node.inputs[0].producer()
    order = None if turned is None else attribute(turned, "perm", None)
    if order is None or order[-1] == len(target) - 1 or not isinstance(target[-1], int):
        return
    target = add_initializer(graph, f"{node.name}/target", np.array(target))
    apart = ir.Node("", "Reshape", [node.inputs[0], target])
    apart.outputs[0].type = node.inputs[0].type
    node.prepend(apart)
    node.replace_input_with(0, apart.outputs[0])


def _fill(graph, node):
    """Lets an LSTM read one row where there is none, and removes that row behind it.

    ONNX Runtime ends the process where LSTM reads an empty batch. Initial states of zeros are left
    out, because an LSTM without any starts from zeros.

    before   y = LSTM(x, w, r, b, h0=h)                        x (T, B, D), y (T, R, B, H)
    after    more = Max(1 - B, 0); y = LSTM(Pad(x, more), w, r, b, h0=Pad(h, more))[:, :, :B]
    """

    def integers(*items):
        return add_initializer(graph, f"{node.name}/rows", np.array(items, np.int64))

    make, states = ir.tape.Tape(), list(enumerate(node.inputs))[5:7]
    batch = make.op("Shape", [node.inputs[0]], {"start": 1, "end": 2})
    more = make.op("Sub", [integers(0, 0, 0, 0, 1, 0), batch])
    more = make.op("Max", [more, integers(0)])
    node.replace_input_with(0, make.op("Pad", [node.inputs[0], more]))
    for index, state in states:
        if state is not None:
            padded = None if _is_zero(state) else make.op("Pad", [state, more])
            node.replace_input_with(index, padded)
    node.prepend(list(make.nodes))
    for output, axis in zip(node.outputs, (2, 1, 1), strict=False):
        cut = ir.Node("", "Slice", [output, integers(0), batch, integers(axis)])
        cut.outputs[0].type = output.type
        output.replace_all_uses_with(cut.outputs[0], replace_graph_outputs=True)
        cut.replace_input_with(0, output)
        node.append(cut)


def _is_zero(value):
    """Whether all numbers of a value are certain to be 0."""
    node, tensor = value.producer(), value.const_value
    if tensor is not None:
        return not np.any(tensor.numpy())
    if node is None:
        return False
    if node.op_type == "ConstantOfShape":
        filled = attribute(node, "value", None)
        return filled is None or not np.any(filled.numpy())
    inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return node.op_type in (*COPIES, "Concat") and all(map(_is_zero, inputs))
