"""Constant folding, shapes that are known included.

onnxscript's `fold_constants` folds constants only, and weights, too. On a beam search of two layers
it leaves 832 of 1,006 nodes after 0.25 s; with our shapes 590 remain after 0.3 s.
"""

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from keras_transformer.export.graph.nodes import (
    RANDOM,
    add_initializer,
    all_nodes,
    constant,
    has_graphs,
)
from keras_transformer.export.graph.shape_data import is_plain
from keras_transformer.export.graph.shapes import InferredShapes
from keras_transformer.types import Array

# Results beyond this many elements would make the file larger.
LARGEST = 1 << 16
# Their results are large, and cheap to compute.
GROWING = ("Expand", "ConstantOfShape", "Tile", "Range")


def fold_constants(model: ir.Model, shapes: InferredShapes) -> int:
    """Replaces nodes that depend on constants only by their results; returns how many.

    before   y = Concat(Slice(Shape(x), 0, 1), [-1])     x of shape (5, T, D)
    after    y = [5, -1]
    """
    changed, main = 0, model.graph
    for node in all_nodes(main):
        if node.op_type in RANDOM or len(node.outputs) != 1 or has_graphs(node):
            continue
        output, array = node.outputs[0], None
        data = shapes.data.get(output)  # may be known though the inputs are no constants: a shape
        if data is not None and is_plain(data.flat):
            array = np.array(data.tolist(), dtype=_integer_type(output))
        elif all(value is None or constant(value) is not None for value in node.inputs):
            array = _evaluate(node, model)
        if array is None or output.is_graph_output():
            continue
        output.replace_all_uses_with(add_initializer(main, f"{output.name}/constant", array))
        node.graph.remove(node, safe=True)
        changed += 1
    return changed


def _integer_type(value: ir.Value) -> np.dtype:
    """The dtype of a tensor of sizes: ONNX's shapes are int64, TensorFlow's often int32."""
    if value.dtype is not None:
        return value.dtype.numpy()
    node = value.producer()
    if node.op_type == "Cast":
        return ir.DataType(node.attributes["to"].value).numpy()
    if node.op_type in ("Shape", "Size"):
        return np.dtype(np.int64)
    return _integer_type(node.inputs[0])


def _evaluate(node: ir.Node, model: ir.Model) -> Array | None:
    """The output of a node with constant inputs, or `None` if it is large or has a weight."""
    values = [value for value in node.inputs if value is not None]
    tensors = {value.name: constant(value) for value in values}
    if any(value.meta.get("weight") for value in values):
        return None  # runtimes fold these too, and the file keeps the weights as they were trained
    if any(tensor.size > LARGEST for tensor in tensors.values()) or node.op_type in GROWING:
        return None
    try:
        return evaluate(node, model, {name: tensor.numpy() for name, tensor in tensors.items()})
    except Exception:  # onnx's evaluator does not support all that ONNX Runtime does
        return None


def evaluate(node: ir.Node, model: ir.Model, arrays: dict[str, Array]) -> Array:
    """The output of a node for `arrays`, a dict from the names of its inputs.

    It is computed in the arrays' own types, so float64 inputs give a float64 output.
    """
    infos = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in arrays.items()
    ]
    output = onnx.helper.make_empty_tensor_value_info(node.outputs[0].name)
    # A model of one node, because a node alone would be read in the newest opset.
    graph = onnx.helper.make_graph([ir.to_proto(node)], "fold", infos, [output])
    opsets = [onnx.helper.make_opsetid(*item) for item in model.opset_imports.items()]
    evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))
    (result,) = evaluator.run(None, arrays)
    return np.asarray(result)
