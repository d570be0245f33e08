"""Rewrites after which ONNX Runtime's CUDA provider computes a whole step on the GPU.

A CUDA graph may have no copies between host and device, and no nodes on the CPU except those that
compute shapes. Two things would be in the way:

- GatherND and Pad have no CUDA kernel for int32. They work in a type that holds each int32 exactly.

      before   y = GatherND(x, places)                  x int32
      after    y = int32(GatherND(int64(x), places))

- Shapes are on the host, and so is what is computed of them only. A size that another node reads as
  a number would be copied. A Range reads its bounds on the host and writes to the device.

      before   y = Min(x, size)                         size from a Shape
      after    y = Min(x, Range(size, size + 1, 1))
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from keras_transformer.export.graph.nodes import (
    add_initializer,
    all_nodes,
    constant,
    replace_node,
)

# Operators without a CUDA kernel for int32, and the type in which they work instead. Pad has none
# for int64 either.
WIDER = {"GatherND": ir.DataType.INT64, "Pad": ir.DataType.DOUBLE}
INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
# Operators that return sizes on the host.
SIZES = ("Shape", "Size")
# The inputs that CUDA kernels read on the host.
HOST_INPUTS = {
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "Expand": (1,),
    "OneHot": (1, 2),
    "Pad": (1, 2),
    "Range": (0, 1, 2),
    "ReduceSum": (1,),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}


def fit_cuda(model: ir.Model) -> None:
    """Rewrites a model for ONNX Runtime's CUDA provider; its results stay the same.

    Args:
        model: a model in its final form. Types that no value notes yet are inferred and noted.
    """
    common.ShapeInferencePass(check_type=False, strict_mode=False)(model)
    for node in all_nodes(model.graph):
        if node.op_type in WIDER and node.inputs[0].dtype == ir.DataType.INT32:
            _widen(node, WIDER[node.op_type])
    _move_sizes(model.graph)


def _widen(node: ir.Node, dtype: ir.DataType) -> None:
    """Replaces one node by Casts around the same operator in another type."""
    tape, name = ir.tape.Tape(), node.outputs[0].name
    data, places, *fill = node.inputs  # places are int64 in any case
    wide = [tape.op("Cast", [value], {"to": dtype}) for value in (data, *fill)]
    result = tape.op(node.op_type, [wide[0], places, *wide[1:]], node.attributes)
    for index, value in enumerate((*wide, result)):
        value.name = f"{name}/wide{index}"  # unique in all graphs of the model
    replace_node(node, tape, tape.op("Cast", [result], {"to": ir.DataType.INT32}))


def _move_sizes(graph: ir.Graph) -> None:
    """Makes each node of the device read sizes there, unless its kernel wants them on the host.

    ONNX Runtime computes on the CPU what reads only sizes and constants.
    """
    host, moved = set(), {}
    for node in list(graph):
        read = [(index, value) for index, value in enumerate(node.inputs) if value is not None]
        sizes = [(index, value) for index, value in read if value in host]
        by_design = HOST_INPUTS.get(node.op_type, ())
        numbers = [(index, value) for index, value in sizes if index not in by_design]
        others = [value for _, value in read if value not in host and constant(value) is None]
        if node.op_type in SIZES or (sizes == numbers != [] and not others):
            host.update(node.outputs)
            continue
        for index, value in numbers:
            one = value.shape is not None and value.shape.dims in ((), (1,))
            if one and value.dtype in INTEGERS:
                moved[value] = moved.get(value) or _on_device(graph, node, value)
                node.replace_input_with(index, moved[value])


def _on_device(graph: ir.Graph, reader: ir.Node, size: ir.Value) -> ir.Value:
    """Writes nodes before `reader` that compute one size on the device."""
    one = add_initializer(graph, f"{size.name}/one", np.array(1, size.dtype.numpy()))
    shape = add_initializer(graph, f"{size.name}/shape", np.array(size.shape.dims, np.int64))
    tape = ir.tape.Tape()
    scalar = tape.op("Squeeze", [size])
    values = tape.op("Range", [scalar, tape.op("Add", [scalar, one]), one])
    result = tape.op("Reshape", [values, shape])
    for index, node in enumerate(tape.nodes):
        node.outputs[0].name = f"{size.name}/device{index}"
    reader.prepend(list(tape.nodes))
    return result
