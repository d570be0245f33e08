"""Conversions of TensorFlow's operators on integers, and of comparisons, for `operators`.

tf2onnx drops the fraction where TensorFlow rounds down, and counts negative ids from the end. It
compares and sorts integers as float32, which holds 24 bits.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tf2onnx
from onnx import TensorProto
from tf2onnx.onnx_opset import reduction

from keras_transformer.export.graph.lowering import Handler, Writer, lowered

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


# As in `operators.HANDLERS`.
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
}
