"""Conversions of TensorFlow's operators that tf2onnx lacks or gets wrong.

A new one is a function here and an entry in `HANDLERS`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto
from tf2onnx.onnx_opset import nn

from keras_transformer.export.graph import integer_operators
from keras_transformer.export.graph.layout_rules import ENDLESS
from keras_transformer.export.graph.lowering import Writer, lowered

# TensorFlow's name -> ONNX's name.
KINDS_OF_PADDING = {"SAME": "SAME_UPPER", "VALID": "VALID"}
# Types that tf2onnx pads directly; others are padded as float32.
WITHOUT_CAST = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64}


def _erfc(add: Writer, x: str) -> str:
    """Computes Erfc(x) = 1 - Erf(x), for exact GELU. Tails are less exact than Erfc, by 1e-7."""
    return add("Sub", add.like(x, 1), add("Erf", x))


def _pool(context: Any, node: Any, name: str, arguments: Sequence) -> None:
    """Names the kind of padding, as TensorFlow does, and gives short inputs no rows.

    ONNX Runtime 1.31 moves a Pad of zeros into the MaxPool after it. That pads with -inf, so the
    results are wrong if all numbers of a border are negative. `auto_pad` prevents this. ONNX
    Runtime also gives one row if a free axis is shorter than the window. The Slice removes that
    row, and keeps all rows of a longer axis.

    before   y = MaxPool(Pad(x), pads=[0, 0, 0, 0])                         x (B, C, T, 4)
    after    y = MaxPool(Pad(x), auto_pad="VALID")[:, :, :T - window + 1]
    """
    padding = node.get_attr_str("padding")
    nn.PoolOp.version_11(context, node, tf_op=arguments[0])
    if node.type == "MaxPool" and padding in KINDS_OF_PADDING:
        node.attr.pop("pads", None)
        node.set_attr("auto_pad", KINDS_OF_PADDING[padding])
    sizes = (context.get_shape(node.input[0]) or ())[2:]
    window, strides = (node.get_attr_value(name) for name in ("kernel_shape", "strides"))
    free = [axis for axis, size in enumerate(sizes) if size == -1]
    free = [axis + 2 for axis in free if window[axis] > 1 and strides[axis] > 1]
    if padding == "VALID" and free:
        add = Writer(context, node)
        lengths = add("Gather", add("Shape", node.input[0]), free)
        ends = add("Sub", lengths, [window[axis - 2] - 1 for axis in free])
        bounds = [add.constant([0] * len(free)), ends, add.constant(free)]
        output = node.output[0]
        cut = context.insert_new_node_on_output("Slice", output, inputs=[output, *bounds])
        context.copy_dtype(output, cut.output[0])
        context.copy_shape(output, cut.output[0])


def _transposed_convolution(context: Any, node: Any, name: str, arguments: Sequence) -> None:
    """Writes `output_padding` for an output that is larger than the reach of the kernel.

    before   y = ConvTranspose(x, pads=[-1, 0, -1, -1])      one pad at each end of each axis
    after    y = ConvTranspose(x, pads=[0, 0, 0, 0], output_padding=[2, 1])
    """
    nn.ConvTranspose.version_11(context, node)
    pads = np.array(node.get_attr_value("pads", []), int)
    if pads.size and pads.min() < 0:
        totals = pads.reshape(2, -1).sum(axis=0)
        starts = np.where(totals < 0, 0, pads[: len(totals)])
        node.set_attr("pads", [*starts.tolist(), *(np.maximum(totals, 0) - starts).tolist()])
        node.set_attr("output_padding", np.maximum(-totals, 0).tolist())


def _roll(add: Writer, x: str, shifts: str, axes: str) -> str:
    """Rotates numbers along axes.

    before   y = Roll(x, 1, 1)                                               x (B, T)
    after    start = -1 mod max(T, 1); y = Concat(x[:, start:], x[:, :start])
    """
    axes = np.ravel(add.context.get_node_by_output(axes).get_tensor_value()) % add.rank(x)
    shifts = add("Neg", add("Reshape", add.cast(shifts, TensorProto.INT64), [-1]))
    for i, axis in enumerate(axes.tolist()):
        length = add("Max", add("Slice", add("Shape", x), [axis], [axis + 1]), [1])
        start = add("Mod", add("Slice", shifts, [i], [i + 1]), length)
        ends = [add("Slice", x, start, [ENDLESS], [axis]), add("Slice", x, [0], start, [axis])]
        x = add("Concat", *ends, axis=axis)
    return x


def _arctan2(add: Writer, y: str, x: str) -> str:
    """Computes the angle of a point in the positive quadrant, mirrored by the signs.

    tf2onnx ignores the sign of -0, which decides between pi and -pi.

    before   a = Atan2(y, x)
    after    a = Atan(|y| / |x|); a = x < 0 ? pi - a : a; a = y < 0 ? -a : a
    """
    rise, run = add("Abs", y), add("Abs", x)
    # Equal sizes include 0 and infinity, which cannot be divided.
    slope = add("Where", add("Equal", rise, run), add("Sign", rise), add("Div", rise, run))
    angle = add("Atan", slope)
    turned = add("Sub", add.like(x, np.pi), angle)
    angle = add("Where", integer_operators.is_negative(add, x), turned, angle)
    return add("Where", integer_operators.is_negative(add, y), add("Neg", angle), angle)


def _pad(context: Any, node: Any, name: str, arguments: Sequence) -> None:
    """Casts the padding value of a boolean or small number, as tf2onnx casts the tensor.

    before   y = Pad(float(x), pads, True)      no valid graph: Pad has one type
    after    y = Pad(float(x), pads, float(True))
    """
    if context.get_dtype(node.input[2]) not in WITHOUT_CAST:
        value = node.input[2]
        cast = context.insert_new_node_on_input(node, "Cast", value, to=TensorProto.FLOAT)
        context.set_dtype(cast.output[0], TensorProto.FLOAT)
    nn.Pad.version_11(context, node)


def _update_slice(add: Writer, x: str, update: str, start: str) -> str:
    """Writes new numbers into a tensor from a start on, for `keras.ops.slice_update`.

    ScatterND takes the indices of the leading axes, up to the last one on which the update may be
    smaller. It writes the later axes whole. As in XLA, a start that is too large is moved back, so
    that the update fits.

    before   y = XlaDynamicUpdateSlice(x, update, start)
    after    y = ScatterND(x, indices, update), indices[i, j] = [start[0] + i, start[1] + j]
    """
    axes = add.shape(start)[0]
    unknown = [-1] * axes
    sizes = [add.shape(value) or unknown for value in (x, update)]
    while axes and sizes[0][axes - 1] == sizes[1][axes - 1] != -1:
        axes -= 1
    if not axes:
        return update  # the update replaces the whole tensor
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
    return add("ScatterND", x, add("Concat", *parts, axis=axes), update)


def _log_of_more(add: Writer, x: str) -> str:
    """Computes Log(1 + x) in float64: in float32 a small x would be lost beside the 1."""
    wide = add.cast(x, TensorProto.DOUBLE)
    return add.cast(add("Log", add("Add", wide, np.float64(1))), add.dtype(x))


def _exp_without_one(add: Writer, x: str) -> str:
    """Computes Exp(x) - 1 in float64: in float32 a small result would be lost beside the 1."""
    wide = add.cast(x, TensorProto.DOUBLE)
    return add.cast(add("Sub", add("Exp", wide), np.float64(1)), add.dtype(x))


def _cumulative_product(add: Writer, x: str, axis: str) -> str:
    """Computes the cumulative product of an axis; takes memory for its size squared.

    before   y = Cumprod(x, 1)                                         x (B, T, D)
    after    y = ReduceProd(Where(i >= j, Unsqueeze(x, 1), 1), 2)      i (T, 1, 1), j (T, 1)
    """
    rank = add.rank(x)
    axis = int(add.context.get_node_by_output(axis).get_tensor_value()) % rank
    size = add("Squeeze", add("Slice", add("Shape", x), [axis], [axis + 1]))
    behind = list(range(1, rank - axis))
    here = add("Range", 0, size, 1)
    here = add("Unsqueeze", here, behind) if behind else here  # (T, 1)
    one, two = add("Unsqueeze", here, [1]), here
    if add.node.get_attr_value("reverse"):
        one, two = two, one
    op = "Greater" if add.node.get_attr_value("exclusive") else "GreaterOrEqual"
    seen = add("Where", add(op, one, two), add("Unsqueeze", x, [axis]), add.like(x, 1))
    return integer_operators.product(add, seen, [axis + 1])


# Operator -> its function, and the name in ONNX and arguments for it.
HANDLERS: dict[str, tuple[Any, list[Any]]] = {
    **integer_operators.HANDLERS,
    **dict.fromkeys(
        ("Conv2DBackpropInput", "Conv3DBackpropInputV2"), (_transposed_convolution, [])
    ),
    "Cumprod": lowered(_cumulative_product),
    "Erfc": lowered(_erfc),
    "Expm1": lowered(_exp_without_one),
    "Log1p": lowered(_log_of_more),
    "PadV2": (_pad, ["Pad"]),
    "XlaDynamicUpdateSlice": lowered(_update_slice),
    "Atan2": lowered(_arctan2),
    "Roll": lowered(_roll),
    **{op: (_pool, ["AveragePool", op]) for op in ("AvgPool", "AvgPool3D")},
    **{op: (_pool, ["MaxPool", op]) for op in ("MaxPool", "MaxPoolV2", "MaxPool3D")},
}
