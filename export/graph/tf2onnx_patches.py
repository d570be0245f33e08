"""Conversions of TensorFlow's operators that tf2onnx lacks or gets wrong.

A new one is a function here and an entry in `HANDLERS`. The integer operators stand first: tf2onnx
drops the fraction where TensorFlow rounds down, and counts negative ids from the end. It compares
and sorts integers as float32, which holds 24 bits.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tf2onnx
from onnx import TensorProto
from tf2onnx.onnx_opset import nn, reduction

from keras_transformer.export.graph.shape_rules import ENDLESS

# A function of tf2onnx's graph, node, operator name and arguments; and the arguments.
Handler = tuple[Callable[..., None], list[str]]


class Writer:
    """Writes ONNX's operators into the graph that tf2onnx converts.

    Args:
        context: tf2onnx's graph.
        node: its node of TensorFlow's operator.
    """

    def __init__(self, context: Any, node: Any) -> None:
        self.context: Any = context
        self.node: Any = node

    def __call__(self, op: str, *inputs: Any, **attributes: Any) -> str:
        """Adds an operator and returns the name of its first output.

        Args:
            op: the operator's name in ONNX.
            *inputs: names of values, or constants. Python's numbers become int64.
            **attributes: attributes of the operator.
        """
        names = [item if isinstance(item, str) else self.constant(item) for item in inputs]
        return self.context.make_node(op, names, attr=attributes).output[0]

    def constant(self, value: Any) -> str:
        """Adds a constant and returns its name."""
        array = value if isinstance(value, np.generic | np.ndarray) else np.array(value, np.int64)
        name = tf2onnx.utils.make_name(self.node.name)
        return self.context.make_const(name, np.asarray(array)).output[0]

    def all(self, op: str, *inputs: str, count: int) -> list[str]:
        """Adds an operator of several outputs and returns their names."""
        return self.context.make_node(op, list(inputs), output_count=count).output

    def body(self) -> Any:
        """Returns an empty graph for a node of this graph, such as the body of a Loop."""
        graph = self.context.create_new_graph_with_same_config()
        graph.parent_graph = self.context
        return graph

    def like(self, value: str, number: Any) -> np.ndarray:
        """Returns one or more numbers in a value's dtype."""
        kind = tf2onnx.utils.map_onnx_to_numpy_type(self.dtype(value))
        return np.array(number).astype(kind)

    def dtype(self, value: str) -> int:
        """Returns ONNX's number of a value's dtype."""
        return self.context.get_dtype(value)

    def shape(self, value: str) -> Sequence[int] | None:
        """Returns a value's sizes, -1 if unknown; `None` if the rank is unknown."""
        return self.context.get_shape(value)

    def rank(self, value: str) -> int:
        """Returns the number of axes of a value."""
        return len(self.shape(value))

    def cast(self, value: str, dtype: int) -> str:
        """Casts the value unless it has this dtype."""
        return value if self.dtype(value) == dtype else self("Cast", value, to=dtype)


def lowered(write: Callable[..., str | tuple[str, ...]]) -> Handler:
    """Returns a handler for tf2onnx, as in `HANDLERS`.

    Args:
        write: function of a `Writer` and of the names of the inputs. It returns the name of the
            result, or a tuple with one per output.
    """

    def handler(context: Any, node: Any, name: str, arguments: Sequence[str]) -> None:
        results = write(Writer(context, node), *node.input)
        results = results if isinstance(results, tuple) else (results,)
        outputs = zip(results, node.output, node.output_dtypes, node.output_shapes, strict=True)
        outputs = list(outputs)
        context.remove_node(node.name)
        for result, output, dtype, shape in outputs:
            shared = {"outputs": [output], "dtypes": [dtype], "shapes": [shape]}
            context.make_node("Identity", [result], **shared)

    return handler, []


FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}
# Dtypes that ONNX Runtime sorts only as another dtype.
COMPARED = {
    TensorProto.BOOL: TensorProto.INT32,
    TensorProto.FLOAT16: TensorProto.FLOAT,
    TensorProto.INT16: TensorProto.INT32,
    TensorProto.UINT16: TensorProto.INT32,
    TensorProto.UINT32: TensorProto.INT64,
}
# Dtypes for which ONNX Runtime has no Where kernel.
NO_WHERE = {TensorProto.BOOL, TensorProto.INT16, TensorProto.UINT16, TensorProto.UINT64}
# Operators that copy integers.
MOVES = set("Cast Gather GatherV2 Identity Reshape Slice Squeeze StridedSlice Unsqueeze".split())
# Operators that return sizes and indices, which are never negative.
COUNTS = {"ArgMax", "ArgMin", "Shape", "Size", "TopK"}


def _compare(name: str) -> Handler:
    """Returns a handler that compares integers as int64; tf2onnx compares them as float32.

    tf2onnx changes loops' counters to int64 later, so a noted int32 may become int64.
    """

    def write(add: Writer, *inputs: str) -> str:
        if add.dtype(inputs[0]) not in FLOATS:
            inputs = [add("Cast", value, to=TensorProto.INT64) for value in inputs]
        return add(name, *inputs)

    return lowered(write)


def _arg_extreme(context: Any, node: Any, name: str, arguments: Sequence) -> None:
    """Writes ArgMax or ArgMin, with a Cast of dtypes that ONNX Runtime cannot compare."""
    dtype = context.get_dtype(node.input[0])
    if dtype in COMPARED:
        cast = context.insert_new_node_on_input(node, "Cast", node.input[0], to=COMPARED[dtype])
        context.set_dtype(cast.output[0], COMPARED[dtype])
    reduction.ArgMax.version_12(context, node)


def _top_k(add: Writer, values: str, count: str) -> tuple[str, str]:
    """Finds the largest of the last axis; compares integers exactly, not as float32."""
    dtype = add.dtype(values)
    values = add.cast(values, COMPARED.get(dtype, dtype))
    count = add("Unsqueeze", add.cast(count, TensorProto.INT64), [0])
    best, places = add.all("TopK", values, count, count=2)
    add.context.set_dtype(places, TensorProto.INT64)
    index_type = add.node.output_dtypes[1]
    return add.cast(best, dtype), add.cast(places, index_type)


def _one_hot(add: Writer, ids: str, depth: str, on: str, off: str) -> str:
    """Sets one number in `depth` to `on`, or none if an id is negative or too large.

    ONNX's OneHot counts negative ids from the end.

    before   y = OneHot(ids, depth, on, off)                                 ids (B, T)
    after    y = Where(Equal(Unsqueeze(ids, 2), Range(0, depth)), on, off)   y (B, T, depth)
    """
    rank, axis = add.rank(ids), add.node.get_attr_value("axis")
    axis = rank if axis == -1 else axis
    places = add("Range", 0, add.cast(depth, TensorProto.INT64), 1)
    if axis < rank:
        places = add("Unsqueeze", places, list(range(1, rank - axis + 1)))
    hot = add("Equal", add("Unsqueeze", add.cast(ids, TensorProto.INT64), [axis]), places)
    return _select(add, hot, on, off)


def _select(add: Writer, condition: str, x: str, y: str) -> str:
    """Selects one of two numbers by a condition.

    tf2onnx writes two products and a sum, which gives NaN if the other number is infinite.
    """
    dtype = add.dtype(x)
    if dtype in NO_WHERE:
        x, y = (add.cast(value, TensorProto.INT64) for value in (x, y))
    return add.cast(add("Where", condition, x, y), dtype)


def _floor_divide(add: Writer, x: str, y: str) -> str:
    """Computes x / y, rounded down. ONNX's Div of integers rounds -1/3 to 0.

    before   q = FloorDiv(x, y)
    after    t = Div(x, y); q = t - Cast(Not(Equal(t y + Mod(x, y), x)))
    """
    if add.dtype(x) in FLOATS:
        return add("Floor", add("Div", x, y))
    divisor, y = y, _not_zero(add, y)
    cut = add("Div", x, y)
    if _is_count(add.context, x) and (
        _is_count(add.context, divisor) or _is_positive(add, divisor)
    ):
        return cut
    exact = add("Equal", add("Add", add("Mul", cut, y), add("Mod", x, y)), x)
    return add("Sub", cut, add("Cast", add("Not", exact), to=add.dtype(x)))


def _floor_mod(add: Writer, x: str, y: str) -> str:
    """Computes the remainder of `_floor_divide`, which has the sign of y.

    ONNX's Mod does this for integers. For floats it gives the remainder of a division that rounds
    towards zero.

    before   r = FloorMod(x, y)
    after    m = Mod(x, y, fmod=1); r = Where(m != 0 and (m < 0) != (y < 0), m + y, m)
    """
    if add.dtype(x) not in FLOATS:
        return add("Mod", x, _not_zero(add, y))
    zero, rest = add.like(x, 0), add("Mod", x, y, fmod=1)
    apart = add("Xor", add("Less", rest, zero), add("Less", y, zero))
    apart = add("And", apart, add("Not", add("Equal", rest, zero)))
    return add("Where", apart, add("Add", rest, y), rest)


def _not_zero(add: Writer, y: str) -> str:
    """Returns a divisor that raises an error if it is 0, as in TensorFlow, instead of a crash.

    before   y
    after    y + Gather([0], Cast(Equal(y, 0)))
    """
    if add.context.get_node_by_output(y).is_const():
        return y
    is_zero = add("Cast", add("Equal", y, add.like(y, 0)), to=TensorProto.INT64)
    return add("Add", y, add("Gather", add.like(y, [0]), is_zero))


def _is_count(context: Any, value: str) -> bool:
    """Returns whether integers are never negative: sizes or indices."""
    node = context.get_node_by_output(value)
    while node is not None and node.type in MOVES:
        value, node = node.input[0], node.inputs[0]
    values = node is not None and node.type == "TopK" and value == node.output[0]
    return node is not None and node.type in COUNTS and not values


def _is_positive(add: Writer, value: str) -> bool:
    node = add.context.get_node_by_output(value)
    return node is not None and node.is_const() and bool((node.get_tensor_value(False) > 0).all())


def product(add: Writer, x: str, axes: Sequence[int], keepdims: int = 0) -> str:
    """Computes the product of all numbers along axes.

    ONNX Runtime 1.31 multiplies integers as floats. A Loop multiplies them exactly, with the same
    overflow as TensorFlow. Sizes are small enough for ReduceProd.

    before   y = Prod(x, 1)                                                  x (B, T) of integers
    after    y = Loop(T, 1 - 0 * ReduceSum(x, 1)) { y = Mul(y, Gather(x, step, 1)) }       y (B,)
    """
    dtype = add.dtype(x)
    if dtype in FLOATS or _is_count(add.context, x):
        return add("ReduceProd", x, axes=axes, keepdims=keepdims)
    x = add.cast(x, TensorProto.INT64)
    for axis in sorted(axes, reverse=True):
        steps = add("Squeeze", add("Slice", add("Shape", x), [axis], [axis + 1]))
        nothing = add("Mul", add("ReduceSum", x, [axis], keepdims=0), np.int64(0))
        x = _multiply_steps(add, x, axis, steps, add("Sub", np.int64(1), nothing))
    x = add.cast(x, dtype)
    return add("Unsqueeze", x, sorted(axes)) if keepdims else x


def _multiply_steps(add: Writer, x: str, axis: int, steps: str, start: str) -> str:
    """Writes the Loop of `product` along one axis; `start` is the product of no numbers."""
    sizes = [size for i, size in enumerate(add.shape(x)) if i != axis]
    whole, body = (TensorProto.INT64, sizes), add.body()
    kinds = {"step": (TensorProto.INT64, []), "more": (TensorProto.BOOL, []), "so_far": whole}
    names = [tf2onnx.utils.make_name(f"{add.node.name}_{name}") for name in kinds]
    for name, kind in zip(names, kinds.values(), strict=True):
        body.add_graph_input(name, *kind)
    here = body.make_node("Gather", [x, names[0]], attr={"axis": axis}).output[0]
    more = body.make_node("Identity", [names[1]]).output[0]
    body.add_graph_output(more, *kinds["more"])
    body.add_graph_output(body.make_node("Mul", [names[2], here]).output[0], *whole)
    inputs = [steps, add.constant(np.bool_(True)), start]
    shared = {"branches": {"body": body}, "dtypes": [TensorProto.INT64], "shapes": [sizes]}
    return add.context.make_node("Loop", inputs, **shared).output[0]


def _product(add: Writer, x: str, axes: str) -> str:
    """Computes `product` along constant axes."""
    rank, axes = add.rank(x), add.context.get_node_by_output(axes).get_tensor_value()
    axes = [axis % rank for axis in np.ravel(axes).tolist()]
    return product(add, x, axes, keepdims=add.node.get_attr_value("keep_dims", 0))


def _sorted_place(op: str) -> Handler:
    """Returns a handler that counts the sorted numbers below a value, or up to it."""

    def write(add: Writer, ordered: str, values: str) -> str:  # (B, N), (B, M)
        smaller = add(op, add("Unsqueeze", ordered, [1]), add("Unsqueeze", values, [2]))
        dtype = add.node.output_dtypes[0]
        return add("ReduceSum", add("Cast", smaller, to=dtype), [2], keepdims=0)

    return lowered(write)


def _bucketize(add: Writer, x: str) -> str:
    """Counts the boundaries that are not larger than a number."""
    x = x if add.dtype(x) == TensorProto.DOUBLE else add.cast(x, TensorProto.FLOAT)
    bounds = add.like(x, add.node.get_attr_value("boundaries"))
    reached = add("LessOrEqual", bounds, add("Unsqueeze", x, [add.rank(x)]))
    reached = add("Cast", reached, to=TensorProto.INT32)
    return add("ReduceSum", reached, [add.rank(x)], keepdims=0)


def _bitwise_and(add: Writer, x: str, y: str) -> str:
    """Computes only the sign of a float32, -0 included, as Keras' `signbit` needs it.

    before   y = BitwiseAnd(Bitcast(x), -2^31)
    after    y = Cast(x < 0 or 1 / x < 0) * -2^31
    """
    bits, mask = (add.context.get_node_by_output(value) for value in (x, y))
    if not (bits.type == "Bitcast" and mask.is_const() and mask.get_tensor_value() == -(2**31)):
        return add("BitwiseAnd", x, y)  # not in opset 17, so an error names it
    (x,) = bits.input
    negative = add("Cast", is_negative(add, x), to=TensorProto.INT32)
    return add("Mul", negative, np.int32(-(2**31)))


def is_negative(add: Writer, x: str) -> str:
    """Returns whether the sign bit of each float is set; -0 has one."""
    zero = add.like(x, 0)
    return add("Or", add("Less", x, zero), add("Less", add("Reciprocal", x), zero))


def _shift(direction: str) -> Handler:
    """Returns a handler that shifts the bits of integers and fills in 0, or the sign.

    BitShift takes only unsigned integers. To the right, the bits of a negative number are inverted
    before and after, so that zeros are shifted in.

    before   y = RightShift(x, n)
    after    m = Max(x, ~x); s = BitShift(m, n); y = Where(x < 0, ~s, s)         ~x = -1 - x
    """

    def write(add: Writer, x: str, count: str) -> str:
        dtype, zero = add.dtype(x), np.int64(0)
        last = 8 * add.like(x, 0).itemsize - 1  # TensorFlow's longest shift
        count = add("Min", add("Max", add.cast(count, TensorProto.INT64), zero), np.int64(last))
        count, value = add.cast(count, TensorProto.UINT64), add.cast(x, TensorProto.INT64)
        both = value if direction == "LEFT" else add("Max", value, add("Sub", np.int64(-1), value))
        moved = add("BitShift", add.cast(both, TensorProto.UINT64), count, direction=direction)
        moved = add.cast(moved, TensorProto.INT64)
        if direction == "RIGHT":
            turned = add("Sub", np.int64(-1), moved)
            moved = add("Where", add("Less", value, zero), turned, moved)
        return add.cast(moved, dtype)

    return lowered(write)


def _invert(add: Writer, x: str) -> str:
    """Inverts all bits: -1 - x. For unsigned integers -1 is the largest of them."""
    return add("Sub", add.like(x, -1), x)


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
    angle = add("Where", is_negative(add, x), turned, angle)
    return add("Where", is_negative(add, y), add("Neg", angle), angle)


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
    return product(add, seen, [axis + 1])


# Operator -> its function, and the name in ONNX and arguments for it.
HANDLERS: dict[str, tuple[Any, list[Any]]] = {
    "ArgMax": (_arg_extreme, []),
    "ArgMin": (_arg_extreme, []),
    "BitwiseAnd": lowered(_bitwise_and),
    "Bucketize": lowered(_bucketize),
    "FloorDiv": lowered(_floor_divide),
    "FloorMod": lowered(_floor_mod),
    "Greater": _compare("Greater"),
    "Invert": lowered(_invert),
    "Less": _compare("Less"),
    "LeftShift": _shift("LEFT"),
    "LowerBound": _sorted_place("Less"),
    "OneHot": lowered(_one_hot),
    "Prod": lowered(_product),
    "RightShift": _shift("RIGHT"),
    "SelectV2": lowered(_select),
    "TopKV2": lowered(_top_k),
    "UpperBound": _sorted_place("LessOrEqual"),
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
