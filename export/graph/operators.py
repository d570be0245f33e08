"""Operators of TensorFlow that tf2onnx does not convert, or not well enough, and how they are.

A new one is a function here and an entry in `HANDLERS`.
"""

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


# Operator -> its function, and what that gets: the name in ONNX, then arguments.
HANDLERS = {
    "Erfc": (_erfc, []),
    "PadV2": (_pad, ["Pad"]),
    **{op: (_max_pool, ["MaxPool", op]) for op in ("MaxPool", "MaxPoolV2", "MaxPool3D")},
}
