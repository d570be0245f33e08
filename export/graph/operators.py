"""Operators of TensorFlow that tf2onnx does not convert, or not well enough, and how they are.

A new one is a function here and an entry in `HANDLERS`.
"""

import tf2onnx
from tf2onnx.onnx_opset import nn

# As TensorFlow and as ONNX name them.
KINDS_OF_PADDING = {"SAME": "SAME_UPPER", "VALID": "VALID"}


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


# Operator -> its function, and what that gets: the name in ONNX, then arguments.
HANDLERS = {
    "Erfc": (_erfc, []),
    **{op: (_max_pool, ["MaxPool", op]) for op in ("MaxPool", "MaxPoolV2", "MaxPool3D")},
}
