"""Operators that LiteRT lacks, written with operators that it has, while a function is traced.

LiteRT's built-in operators have few kernels for int64 and for booleans, and the converter writes
some operators as others that give other numbers. `portable_operators` replaces TensorFlow's
functions that make such operators. Each replacement gives TensorFlow's numbers. A case without an
exact replacement keeps its operator, and the converter then refuses it by name. To add a new
replacement, add a function and its row in `REPLACED`.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_array_ops, gen_math_ops, gen_nn_ops

from keras_transformer.types import Tensor

# The largest exponent of int64 powers.
MOST_POWER = 1023
MOST_INT32 = np.iinfo(np.int32).max


def _strided_slice(
    make: Callable[..., Tensor], input: Any, begin: Any, end: Any, strides: Any, **options: Any
) -> Tensor:
    """Adds new axes after the slice, because LiteRT's StridedSlice adds few of them.

    before   y = x[:, None, 3, None]
    after    y = expand_dims(expand_dims(x[:, 3], 1), 2)
    """
    new, x = options.get("new_axis_mask", 0), tf.convert_to_tensor(input)
    if not new or x.shape.rank is None:
        return make(input, begin, end, strides, **options)
    count = tf.convert_to_tensor(begin).shape[0]
    kept = [i for i in range(count) if not new >> i & 1]
    masks = {name: bits for name, bits in options.items() if name.endswith("_mask")}
    ellipsis, shrink = (masks.get(name, 0) for name in ("ellipsis_mask", "shrink_axis_mask"))
    axes, axis = [], 0
    for i in range(count):
        if new >> i & 1:
            axes.append(axis)
            axis += 1
        elif ellipsis >> i & 1:
            axis += x.shape.rank - len(kept) + 1
        else:
            axis += 1 - (shrink >> i & 1)
    if not _is_whole(kept, strides, masks):
        for name, bits in masks.items():
            masks[name] = sum((bits >> i & 1) << place for place, i in enumerate(kept))
        places = (tf.gather(place, kept) for place in (begin, end, strides))
        x = make(x, *places, **{**options, **masks})
    for axis in axes:
        x = tf.expand_dims(x, axis)
    return x


def _is_whole(kept: Sequence[int], strides: Any, masks: Mapping[str, int]) -> bool:
    """Returns whether a slice without its new axes is its input."""
    apart = tf.get_static_value(tf.convert_to_tensor(strides))
    full = masks.get("begin_mask", 0) & masks.get("end_mask", 0)
    return all(
        masks.get("ellipsis_mask", 0) >> i & 1
        or (full & ~masks.get("shrink_axis_mask", 0)) >> i & 1
        and apart is not None
        and apart[i] == 1
        for i in kept
    )


def _tensors(*values: Any) -> list[Tensor]:
    """Returns numbers and tensors as tensors of one dtype."""
    dtypes = [value.dtype for value in values if tf.is_tensor(value)]
    return [tf.convert_to_tensor(value, *dtypes[:1]) for value in values]


def _top_k(make: Callable[..., Any], *inputs: Any, index_type: Any, **options: Any) -> Any:
    """Casts int32 indices."""
    values, index = make(*inputs, index_type=tf.int32, **options)
    return type("TopKV2", (tuple,), {"values": values, "indices": index})(
        (values, tf.cast(index, index_type))
    )


def _floor_divide(make: Callable[..., Tensor], x: Any, y: Any, name: Any = None) -> Tensor:
    """Divides int64 as int32, if both numbers are known to fit."""
    x, y = _tensors(x, y)
    if x.dtype != tf.int64 or not (_fits_int32(x) and _fits_int32(y)):
        return make(x, y, name)
    return tf.cast(make(tf.cast(x, tf.int32), tf.cast(y, tf.int32), name), tf.int64)


def _fits_int32(value: Tensor) -> bool:
    """Returns whether int64 are certainly small: constants, sizes, remainders, casts of int32."""
    known = tf.get_static_value(value)
    if known is not None:
        return bool((np.abs(known) <= MOST_INT32).all())
    kind, inputs = value.op.type, value.op.inputs
    if kind == "FloorMod":
        return _fits_int32(inputs[1])
    if kind in ("Reshape", "StridedSlice"):
        return _fits_int32(inputs[0])
    return kind == "Shape" or (kind == "Cast" and inputs[0].dtype == tf.int32)


def _power(make: Callable[..., Tensor], x: Any, y: Any, name: Any = None) -> Tensor:
    """Reads int64 powers of a constant from a table. LiteRT refuses a larger exponent when it runs.

    Products of int64 wrap in TensorFlow, too.
    """
    x, y = _tensors(x, y)
    base = tf.get_static_value(x)
    if x.dtype != tf.int64 or base is None or base.shape:
        return make(x, y, name)
    table = np.cumprod(np.r_[1, np.full(MOST_POWER, base, np.int64)])
    return tf.gather(table, y)


def _reciprocal_root(make: Callable[..., Tensor], x: Any, name: Any = None) -> Tensor:
    """Gives infinity for 0, where LiteRT's default kernels give NaN.

    A sum with a positive constant, as in the norms of layers, keeps its operator.
    """
    x = tf.convert_to_tensor(x)
    added = x.op.inputs if x.op.type == "AddV2" else ()
    known = [value for value in map(tf.get_static_value, added) if value is not None]
    if any((value > 0).all() for value in known):
        return make(x, name)
    return tf.where(tf.equal(x, 0), tf.constant(np.inf, x.dtype), make(x, name))


def _scatter_update(
    make: Callable[..., Tensor], tensor: Any, indices: Any, updates: Any, **options: Any
) -> Tensor:
    """Takes each row from the updates or from the tensor.

    The converter writes tensor * (1 - mask) + ScatterNd(indices, updates). This adds up updates of
    the same row, and infinite numbers become NaN.

    before   y = TensorScatterUpdate(x, indices, updates)
    after    y = Gather(Concat(x, updates), n), n: the number of a row of x, or of its last update
    """
    tensor, indices, updates = (tf.convert_to_tensor(value) for value in (tensor, indices, updates))
    depth = indices.shape[-1]
    if depth is None or tensor.shape.rank is None:
        return make(tensor, indices, updates, **options)
    shape, indices = tf.shape(tensor), tf.cast(indices, tf.int32)
    place, count = 0, 1
    for axis in range(depth):
        place, count = place * shape[axis] + indices[..., axis], count * shape[axis]
    place, row = tf.reshape(place, [-1]), shape[depth:]
    rows = [
        tf.reshape(value, tf.concat([[size], row], axis=0))
        for value, size in ((tensor, count), (updates, tf.size(place)))
    ]
    last = tf.math.unsorted_segment_max(tf.range(tf.size(place)), place, count)
    number = tf.where(last >= 0, count + last, tf.range(count))
    return tf.reshape(tf.gather(tf.concat(rows, axis=0), number), shape)


def _convolution(
    make: Callable[..., Tensor], input: Any, filter: Any, *others: Any, **options: Any
) -> Tensor:
    """Adds a computed 0 to a constant filter, because the converter rounds constants to 8 bits.

    The weights of a model are no constants in the traced graph, and are rounded.

    before   y = Conv2D(x, constant)
    after    y = Conv2D(x, constant + Cast(Minimum(Shape(x)[0], 0)))
    """
    filter = tf.convert_to_tensor(filter)
    if _is_constant(filter):
        filter += tf.cast(tf.minimum(tf.shape(input)[0], 0), filter.dtype)
    return make(input, filter, *others, **options)


def _is_constant(value: Tensor) -> bool:
    kind, inputs = value.op.type, value.op.inputs
    return kind == "Const" or (kind in ("ExpandDims", "Reshape") and _is_constant(inputs[0]))


# (module, function of it) -> the replacement, whose first argument is that function.
REPLACED = {
    (gen_array_ops, "strided_slice"): _strided_slice,
    (gen_array_ops, "tensor_scatter_update"): _scatter_update,
    (tf.math, "rsqrt"): _reciprocal_root,
    (gen_math_ops, "floor_div"): _floor_divide,
    (gen_math_ops, "_pow"): _power,
    (gen_nn_ops, "top_kv2"): _top_k,
}
# The same, if the converter reduces the precision of weights.
REPLACED_IN_REDUCED = {(gen_nn_ops, "conv2d"): _convolution}


@contextlib.contextmanager
def portable_operators(reduced: bool = False) -> Iterator[None]:
    """Replaces the functions of `REPLACED` in this block.

    Args:
        reduced: whether the precision of the weights will be reduced. Defaults to `False`.
    """
    replaced = REPLACED | REPLACED_IN_REDUCED if reduced else REPLACED
    with contextlib.ExitStack() as stack:
        for (module, name), write in replaced.items():
            new = functools.partial(write, getattr(module, name))
            stack.enter_context(mock.patch.object(module, name, new))
        yield
