"""Operators of TensorFlow that tf2onnx does not convert, or not well enough, and how they are.

A new one is a function here and an entry in `HANDLERS`.
"""

import numpy as np
import tf2onnx
from onnx import TensorProto
from tf2onnx.onnx_opset import nn

# As TensorFlow and as ONNX name them.
KINDS_OF_PADDING = {"SAME": "SAME_UPPER", "VALID": "VALID"}
# What tf2onnx pads as it is; all else as float32.
WITHOUT_CAST = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64}


def _erfc(context, node, name, arguments):
    """Erfc(x) = 1 - Erf(x), for exact GELU. For tails it is less exact than Erfc, by 1e-7."""
    dtype = context.get_dtype(node.output[0])
    shape = context.get_shape(node.output[0])
    inputs, outputs = list(node.input), list(node.output)
    context.remove_node(node.name)
    one = context.make_const(
        tf2onnx.utils.make_name(name), tf2onnx.utils.map_onnx_to_numpy_type(dtype)(1)
    )
    erf = context.make_node("Erf", inputs, dtypes=[dtype], shapes=[shape])
    context.make_node(
        "Sub",
        [one.output[0], erf.output[0]],
        outputs=outputs,
        name=name,
        dtypes=[dtype],
        shapes=[shape],
    )


def _max_pool(context, node, name, arguments):
    """Names the kind of padding, as TensorFlow does, instead of counting it.

    ONNX Runtime 1.31 moves a Pad of zeros into the MaxPool behind it. That pads with -inf, so where
    all numbers of a border are below 0 the results are wrong. A MaxPool with `auto_pad` it leaves
    alone.

    before   y = MaxPool(Pad(x), pads=[0, 0, 0, 0])
    after    y = MaxPool(Pad(x), auto_pad="VALID")
    """
    padding = node.get_attr_str("padding")
    nn.PoolOp.version_11(context, node, tf_op=arguments[0])
    if padding in KINDS_OF_PADDING:
        node.attr.pop("pads", None)
        node.set_attr("auto_pad", KINDS_OF_PADDING[padding])


def _pad(context, node, name, arguments):
    """Casts what a boolean or small number is padded with, as tf2onnx casts what is padded.

    before   y = Pad(float(x), pads, True)      no valid graph: Pad has one type
    after    y = Pad(float(x), pads, float(True))
    """
    if context.get_dtype(node.input[2]) not in WITHOUT_CAST:
        value = node.input[2]
        cast = context.insert_new_node_on_input(node, "Cast", value, to=TensorProto.FLOAT)
        context.set_dtype(cast.output[0], TensorProto.FLOAT)
    nn.Pad.version_11(context, node)


def _update_slice(context, node, name, arguments):
    """`keras.ops.slice_update`: new numbers written into a tensor, from a place on.

    ScatterND writes them. It takes the indices of the leading axes, up to the last one on which the
    update may be smaller; the axes behind that are written whole. As in XLA a place too far on is
    moved back, so that the update fits.

    before   y = XlaDynamicUpdateSlice(x, update, start)
    after    y = ScatterND(x, indices, update), indices[i, j] = [start[0] + i, start[1] + j]
    """
    x, update, start = node.input
    rank = context.get_shape(start)[0]
    unknown = [-1] * rank
    sizes = [context.get_shape(value) or unknown for value in (x, update)]
    dtype, shape = context.get_dtype(node.output[0]), context.get_shape(node.output[0])
    outputs = list(node.output)
    context.remove_node(node.name)

    def add(op, *inputs, **attributes):
        constants = [
            value if isinstance(value, str) else _constant(context, name, value) for value in inputs
        ]
        return context.make_node(op, constants, attr=attributes).output[0]

    axes = rank
    while axes and sizes[0][axes - 1] == sizes[1][axes - 1] != -1:
        axes -= 1
    inputs, op = [update], "Identity"  # an update of the same shape is all there is
    if axes:
        first = [[0], [axes]]  # the leading axes of a shape
        size = add("Slice", add("Shape", update), *first)
        room = add("Sub", add("Slice", add("Shape", x), *first), size)
        start = add("Slice", add("Cast", start, to=TensorProto.INT64), *first)
        start = add("Max", add("Min", start, room), [0])
        parts = []
        for axis in range(axes):
            here = [[axis], [axis + 1]]
            count = add("Squeeze", add("Slice", size, *here))
            along = add("Add", add("Range", 0, count, 1), add("Slice", start, *here))
            for_all = [-1 if i == axis else 1 for i in range(axes + 1)]
            grid = add("Concat", size, [1], axis=0)
            parts.append(add("Expand", add("Reshape", along, for_all), grid))
        inputs, op = [x, add("Concat", *parts, axis=axes), update], "ScatterND"
    context.make_node(op, inputs, outputs=outputs, name=name, dtypes=[dtype], shapes=[shape])


def _constant(context, name, value):
    """The name of an int64 constant."""
    made = context.make_const(tf2onnx.utils.make_name(name), np.array(value, np.int64))
    return made.output[0]


# Operator -> its function, and what that gets: the name in ONNX, then arguments.
HANDLERS = {
    "Erfc": (_erfc, []),
    "PadV2": (_pad, ["Pad"]),
    "XlaDynamicUpdateSlice": (_update_slice, []),
    **{op: (_max_pool, ["MaxPool", op]) for op in ("MaxPool", "MaxPoolV2", "MaxPool3D")},
}
