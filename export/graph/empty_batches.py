"""Rewrites that ONNX Runtime 1.31 needs to run empty batches.

Shapes: B batch, T positions, D size of an input, H units, R 1 or 2 directions.
"""

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.nodes import (
    add_initializer,
    all_nodes,
    attribute,
    producer,
)
from keras_transformer.export.graph.shapes import InferredShapes

# They copy numbers; inputs other than the first are shapes or axes.
COPIES = ("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def positive_axes(graph: ir.Graph, shapes: InferredShapes) -> None:
    """Counts the axes of every reduction from the front.

    ONNX Runtime does not reduce an empty array along axes that are counted from the end.

    before   y = ReduceSum(x, [-1])     x of rank 4
    after    y = ReduceSum(x, [3])
    """
    for node in all_nodes(graph):
        dims = shapes.dims.get(node.inputs[0]) if node.op_type.startswith("Reduce") else None
        if not dims:
            continue
        axes = attribute(node, "axes", None)
        if axes is not None:
            node.attributes["axes"] = ir.AttrInt64s("axes", [axis % len(dims) for axis in axes])
            continue
        axes = shapes.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if axes and min(axes) < 0:
            axes = np.array([axis % len(dims) for axis in axes])
            node.replace_input_with(1, add_initializer(graph, f"{node.name}/axes", axes))


def serve_empty_batches(graph: ir.Graph) -> None:
    """Rewrites the operators that ONNX Runtime cannot compute for an empty batch.

    Args:
        graph: the outer graph of a model, in its final form.
    """
    shapes = InferredShapes(graph)
    for node in all_nodes(graph):
        dims = [shapes.dims.get(value) for value in node.inputs]
        if node.op_type == "LSTM" and not (dims[0] and isinstance(dims[0][1], int)):
            _pad_lstm(graph, node)
        if node.op_type == "MatMul" and all(dims) and len(dims[0]) > 2 == len(dims[1]):
            _separate_transpose(graph, node, [0] * (len(dims[0]) - 1) + [dims[1][0]])


def _separate_transpose(graph: ir.Graph, node: ir.Node, target: list) -> None:
    """Keeps ONNX Runtime from fusing a Transpose into the matrix product after it.

    The fused operator fails if there are no rows.

    before   y = MatMul(Transpose(x, [0, 2, 1]), w)                            x (B, D, T), w (D, H)
    after    y = MatMul(Reshape(Transpose(x, [0, 2, 1]), [0, 0, D]), w)
    """
    transpose = producer(node.inputs[0], "Transpose")
    order = attribute(transpose, "perm", None) if transpose else None
    if order is None or order[-1] == len(target) - 1 or not isinstance(target[-1], int):
        return
    target = add_initializer(graph, f"{node.name}/target", np.array(target))
    reshape = ir.Node("", "Reshape", [node.inputs[0], target])
    reshape.outputs[0].type = node.inputs[0].type
    node.prepend(reshape)
    node.replace_input_with(0, reshape.outputs[0])


def _pad_lstm(graph: ir.Graph, node: ir.Node) -> None:
    """Adds a row to an empty batch of an LSTM, and removes that row from the results.

    ONNX Runtime crashes if LSTM reads an empty batch. Initial states of zeros are left out,
    because LSTM starts from zeros by default.

    before   y = LSTM(x, w, r, b, h0=h)                        x (T, B, D), y (T, R, B, H)
    after    more = Max(1 - B, 0); y = LSTM(Pad(x, more), w, r, b, h0=Pad(h, more))[:, :, :B]
    """

    def integers(*items: int) -> ir.Value:
        return add_initializer(graph, f"{node.name}/rows", np.array(items, np.int64))

    tape, states = ir.tape.Tape(), list(enumerate(node.inputs))[5:7]
    batch = tape.op("Shape", [node.inputs[0]], {"start": 1, "end": 2})
    more = tape.op("Sub", [integers(0, 0, 0, 0, 1, 0), batch])
    more = tape.op("Max", [more, integers(0)])
    node.replace_input_with(0, tape.op("Pad", [node.inputs[0], more]))
    for index, state in states:
        if state is not None:
            padded = None if _is_zero(state) else tape.op("Pad", [state, more])
            node.replace_input_with(index, padded)
    node.prepend(list(tape.nodes))
    for output, axis in zip(node.outputs, (2, 1, 1), strict=False):
        rows = ir.Node("", "Slice", [output, integers(0), batch, integers(axis)])
        rows.outputs[0].type = output.type
        output.replace_all_uses_with(rows.outputs[0], replace_graph_outputs=True)
        rows.replace_input_with(0, output)
        node.append(rows)


def _is_zero(value: ir.Value) -> bool:
    """Returns whether all numbers of a value are certainly 0."""
    node, tensor = value.producer(), value.const_value
    if tensor is None and node is not None and node.op_type == "ConstantOfShape":
        tensor = attribute(node, "value", None)
        return tensor is None or not np.any(tensor.numpy())
    if tensor is not None or node is None:
        return tensor is not None and not np.any(tensor.numpy())
    inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return node.op_type in (*COPIES, "Concat") and all(map(_is_zero, inputs))
