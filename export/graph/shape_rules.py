"""Infers the shapes of an operator's outputs from its inputs, with one rule per operator.

A rule is a function `(shapes, node, *dims)`. `dims` are the shapes of the inputs, tuples of sizes;
`None` stands for an input that is left out. A rule returns the shape of the only output, or a list
with one shape per output, or `None` if the inputs do not determine it. `shapes` is the
`ShapeTable` that is filled: `shapes.data` holds the values of small integer tensors, and
`shapes.new_symbol(value, axis)` names an axis of unknown size.

An operator without a rule is not an error. Its outputs then have the shape that the file declares,
or none, and the passes do not change their readers. To add an operator, write a function here and
put it in `RULES`.

Shapes: B batch, T positions, H heads, K size of a head, C channels, S axis of space.
"""

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from keras_transformer.export.graph.nodes import attribute
from keras_transformer.export.graph.shape_data import (
    Dims,
    ShapeTable,
    Size,
    broadcast_size,
    product,
    quotient,
    total,
)

# No axis is this long: tf2onnx and TensorFlow write this or more for "up to the end".
ENDLESS = 10**9


def replace_axes(dims: Dims, axes: Iterable[int], by: Dims) -> Dims:
    """Returns the shape with the sizes `by` for each of some axes."""
    axes = {axis % len(dims) for axis in axes} if dims else set()
    return tuple(
        item for axis, size in enumerate(dims) for item in (by if axis in axes else (size,))
    )


def reshape(shapes: ShapeTable, node: ir.Node, dims: Dims | None, shape: Dims) -> Dims | None:
    """Returns the target's values; 0 means the input's own size, -1 the remaining size.

    (B, T, H, K) reshaped to [0, 0, -1] is (B, T, H K): the product of all sizes, over B T.
    """
    target, output = shapes.data.get(node.inputs[1]), node.outputs[0]
    if target is None:  # its length is the new rank
        rank = shape[0] if shape else None
        return shapes.new_symbols(output, rank) if isinstance(rank, int) else None
    target = list(target.flat)
    for axis, size in enumerate(target):
        if size == 0 and not attribute(node, "allowzero", 0):
            target[axis] = dims[axis] if dims else shapes.new_symbol(output, axis)
    if -1 in target:
        axis = target.index(-1)
        others = product(target[:axis] + target[axis + 1 :])
        size = None if dims is None else quotient(product(dims), others)
        target[axis] = shapes.new_symbol(output, axis) if size is None else size
    return tuple(target)


def flatten(shapes: ShapeTable, node: ir.Node, dims: Dims) -> Dims:
    """(B, T, D) becomes (B, T D): axes before `axis` become one, and so do the others."""
    axis = attribute(node, "axis", 1)
    return (product(dims[:axis]), product(dims[axis:]))


def transpose(shapes: ShapeTable, node: ir.Node, dims: Dims) -> Dims:
    """Puts the axes in the order of `perm`, by default reversed."""
    order = attribute(node, "perm", range(len(dims) - 1, -1, -1))
    return tuple(dims[axis] for axis in order)


def unsqueeze(shapes: ShapeTable, node: ir.Node, dims: Dims, _: Dims) -> Dims | None:
    """(B, T) with axes [1] becomes (B, 1, T)."""
    axes = shapes.constant(node.inputs[1])
    if axes is None:
        return None
    rank = len(dims) + len(axes)
    axes, remaining = {axis % rank for axis in axes}, iter(dims)
    return tuple(1 if axis in axes else next(remaining) for axis in range(rank))


def squeeze(shapes: ShapeTable, node: ir.Node, dims: Dims, *axes: Dims) -> Dims | None:
    """(B, 1, T) with axes [1] becomes (B, T); without axes, all of size 1 are removed."""
    if axes:
        axes = shapes.constant(node.inputs[1])
    elif all(isinstance(size, int) for size in dims):
        axes = [axis for axis, size in enumerate(dims) if size == 1]
    else:
        axes = None
    return None if axes is None else replace_axes(dims, axes, ())


def concat(shapes: ShapeTable, node: ir.Node, *inputs: Dims) -> Dims:
    """Adds the inputs' sizes of one axis; the other axes are equal to the first input's.

    A cache (B, H, S, K) with a new token (B, H, 1, K) is (B, H, S + 1, K), S + 1 a new symbol.
    """
    axis = attribute(node, "axis", 0) % len(inputs[0])
    length = inputs[0][axis]
    for dims in inputs[1:]:
        length = total(length, dims[axis])
    return replace_axes(inputs[0], [axis], (length,))


def split(shapes: ShapeTable, node: ir.Node, dims: Dims, *_: Dims | None) -> list[Dims] | None:
    """Splits an axis into given or equal sizes: (B, T, 3 D) gives three of (B, T, D)."""
    sizes = shapes.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    axis = attribute(node, "axis", 0) % len(dims)
    if sizes is None:
        sizes = [quotient(dims[axis], len(node.outputs))] * len(node.outputs)
    return None if None in sizes else [replace_axes(dims, [axis], (size,)) for size in sizes]


def slice_(shapes: ShapeTable, node: ir.Node, dims: Dims, *_: Dims | None) -> Dims | None:
    """Cuts an axis from a start to an end: its own size if whole, else a number or symbol."""
    starts, ends, axes, steps = (*map(shapes.constant, node.inputs[1:]), None, None)[:4]
    if len(node.inputs) > 3 and axes is None:
        return None
    axes = range(len(dims)) if axes is None else [axis % len(dims) for axis in axes]
    output = list(dims)
    for i, axis in enumerate(axes):
        step = 1 if len(node.inputs) < 5 else steps[i] if steps else None
        if starts and ends and starts[i] == 0 and ends[i] >= ENDLESS and step == 1:
            continue
        if starts and ends and step and isinstance(dims[axis], int):
            output[axis] = len(range(dims[axis])[starts[i] : ends[i] : step])
        else:
            output[axis] = shapes.new_symbol(node.outputs[0], axis)
    return tuple(output)


def tile(shapes: ShapeTable, node: ir.Node, dims: Dims, _: Dims) -> Dims | None:
    """Multiplies each axis by its repeats: (B, T) by [1, 3] gives (B, 3 T)."""
    repeats = shapes.data.get(node.inputs[1])
    if repeats is None:
        return None
    return tuple(product(pair) for pair in zip(dims, repeats.flat, strict=True))


def pad(shapes: ShapeTable, node: ir.Node, dims: Dims, *_: Dims | None) -> Dims:
    """Sizes grow by the padding on both sides: (B, T) by [0, 1, 0, 2] gives (B, T + 3)."""
    widths = shapes.constant(node.inputs[1])
    if widths is None or len(widths) != 2 * len(dims):
        return shapes.new_symbols(node.outputs[0], len(dims))
    pairs = zip(widths[: len(dims)], widths[len(dims) :], strict=True)
    return tuple(total(size, sum(pair)) for size, pair in zip(dims, pairs, strict=True))


def constant_of_shape(shapes: ShapeTable, node: ir.Node, _: Dims) -> Dims | None:
    """Returns the values of the input."""
    target = shapes.data.get(node.inputs[0])
    return None if target is None else tuple(target.flat)


def range_(shapes: ShapeTable, node: ir.Node, *_: Dims | None) -> Dims:
    """Returns the end if the range is from 0 in steps of 1, else a symbol."""
    start, stop, step = (shapes.data.get(value) for value in node.inputs)
    if start is not None and stop is not None and step is not None:
        if start.flat[0] == 0 and step.flat[0] == 1:
            return (stop.flat[0],)
    return shapes.new_symbols(node.outputs[0], 1)


def conv(
    shapes: ShapeTable, node: ir.Node, dims: Dims, filters: Dims, *_: Dims | None
) -> Dims | None:
    """(B, C, S) by filters (N, C / groups, k) gives (B, N, S'), S' by strides and padding."""
    if len(dims) != len(filters):
        return None
    return (dims[0], filters[0], *_window_sizes(shapes, node, dims, filters[2:]))


def pool(shapes: ShapeTable, node: ir.Node, dims: Dims) -> Dims | None:
    """(B, C, S) becomes (B, C, S'), S' by the window, strides and padding."""
    window = attribute(node, "kernel_shape", None)
    if window is None or attribute(node, "ceil_mode", 0):
        return None
    return (*dims[:2], *_window_sizes(shapes, node, dims, window))


def _window_sizes(
    shapes: ShapeTable, node: ir.Node, dims: Dims, window: Sequence[Size]
) -> list[Size]:
    """Returns the sizes of the axes of space after a sliding window."""
    rank = len(dims) - 2
    strides = attribute(node, "strides", (1,) * rank)
    dilations = attribute(node, "dilations", (1,) * rank)
    pads = attribute(node, "pads", (0,) * (2 * rank))
    mode = attribute(node, "auto_pad", "NOTSET")
    same, sizes = mode.startswith("SAME"), []
    for axis, size in enumerate(dims[2:]):
        lost = None  # how much shorter the axis gets with a stride of 1
        if same:
            lost = 0
        elif isinstance(window[axis], int):
            lost = dilations[axis] * (window[axis] - 1)
            lost -= 0 if mode == "VALID" else pads[axis] + pads[axis + rank]
        if lost == 0 and strides[axis] == 1:
            sizes.append(size)
        elif lost is not None and isinstance(size, int):
            sizes.append((size - lost - 1) // strides[axis] + 1)
        else:
            sizes.append(shapes.new_symbol(node.outputs[0], axis + 2))
    return sizes


def broadcast(shapes: ShapeTable, node: ir.Node, *inputs: Dims) -> Dims:
    """Broadcasts several inputs: (B, 1, D) and (T, 1) give (B, T, D)."""
    rank = max(map(len, inputs))
    output = []
    for axis in range(rank):
        sizes = [dims[axis - rank] for dims in inputs if len(dims) >= rank - axis]
        output.append(broadcast_size(sizes, shapes.new_symbol(node.outputs[0], axis)))
    return tuple(output)


def expand(shapes: ShapeTable, node: ir.Node, dims: Dims, target: Dims) -> Dims | None:
    """Stretches the input to a target: an axis of 1 takes the target's size.

    (B, 1, 1, T) expanded to [1, 1, T, 1] is (B, 1, T, T).
    """
    sizes, rank = shapes.data.get(node.inputs[1]), target[0]
    if not isinstance(rank, int) or len(dims) > rank:
        return None
    known = shapes.new_symbols(node.outputs[0], rank) if sizes is None else tuple(sizes.flat)
    return broadcast(shapes, node, dims, known)


def same_as_first(shapes: ShapeTable, node: ir.Node, dims: Dims, *_: Dims | None) -> Dims:
    """Keeps the shape of the first input."""
    return dims


def reduce(shapes: ShapeTable, node: ir.Node, dims: Dims, *_: Dims | None) -> Dims | None:
    """Reduces `axes`, which is an attribute or a second input."""
    axes = attribute(node, "axes", None)
    if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = shapes.constant(node.inputs[1])
        if axes is None:
            return None
    axes = range(len(dims)) if axes is None else axes
    return replace_axes(dims, axes, (1,) if attribute(node, "keepdims", 1) else ())


def arg_extreme(shapes: ShapeTable, node: ir.Node, dims: Dims) -> Dims:
    """ArgMax and ArgMin: one index for an axis."""
    kept = (1,) if attribute(node, "keepdims", 1) else ()
    return replace_axes(dims, [attribute(node, "axis", 0)], kept)


def matmul(shapes: ShapeTable, node: ir.Node, left: Dims, right: Dims) -> Dims | None:
    """Multiplies (..., M, K) by (..., K, N); FusedMatMul may transpose the second."""
    if len(left) < 2 or len(right) < 2 or attribute(node, "transA", 0):
        return None
    columns = right[-2 if attribute(node, "transB", 0) else -1]
    if len(right) == 2:
        return (*left[:-1], columns)
    return (*broadcast(shapes, node, left[:-2], right[:-2]), left[-2], columns)


def skip_layer_normalization(
    shapes: ShapeTable, node: ir.Node, dims: Dims, *_: Dims | None
) -> list[Dims]:
    """ONNX Runtime's residual + norm: the norm first, the sum last, statistics between them."""
    return [dims, (), (), dims]


def multi_head_attention(
    shapes: ShapeTable, node: ir.Node, query: Dims, key: Dims, value: Dims, *rest: Dims
) -> list[Dims]:
    """ONNX Runtime's attention: the output (B, T, H K), and caches longer by the new keys."""
    size = value[2] if len(value) == 3 else product([value[1], value[3]])
    pasts = rest[3:5]
    return [(*query[:2], size)] + [(*past[:2], total(past[2], key[1]), past[3]) for past in pasts]


def packed_attention(
    shapes: ShapeTable, node: ir.Node, dims: Dims, weights: Dims, *_: Dims | None
) -> Dims | None:
    """ONNX Runtime's attention with its projections, (D, 3 H K): (B, T, D) gives (B, T, H K)."""
    size = quotient(weights[1], 3)
    return None if size is None else (*dims[:2], size)


def einsum(shapes: ShapeTable, node: ir.Node, *inputs: Dims) -> Dims | None:
    """Finds the size of each letter of the output in an input: abc,cde->abde."""
    subscripts, arrow, output = attribute(node, "equation", "").replace(" ", "").partition("->")
    if not arrow or "." in subscripts:
        return None
    sizes = {}
    for letters, dims in zip(subscripts.split(","), inputs, strict=True):
        for letter, size in zip(letters, dims, strict=True):
            sizes.setdefault(letter, []).append(size)
    symbols = [shapes.new_symbol(node.outputs[0], axis) for axis in range(len(output))]
    return tuple(
        broadcast_size(sizes[letter], new) for letter, new in zip(output, symbols, strict=True)
    )


def gather(shapes: ShapeTable, node: ir.Node, dims: Dims, index: Dims) -> Dims:
    """Picks rows (V, D) at indices (B, T): (B, T, D)."""
    return replace_axes(dims, [attribute(node, "axis", 0)], index)


def gather_nd(shapes: ShapeTable, node: ir.Node, dims: Dims, index: Dims) -> Dims | None:
    """Picks parts of (B, V, D) at indices (B, T, 1), with one batch axis: (B, T, D)."""
    if not isinstance(index[-1], int):
        return None
    return (*index[:-1], *dims[attribute(node, "batch_dims", 0) + index[-1] :])


def gather_elements(shapes: ShapeTable, node: ir.Node, dims: Dims, index: Dims) -> Dims:
    """Picks one element for each index."""
    return index


def non_zero(shapes: ShapeTable, node: ir.Node, dims: Dims) -> Dims:
    """Finds an index of each axis for every element that is not 0."""
    return (len(dims), shapes.new_symbol(node.outputs[0], 1))


def top_k(shapes: ShapeTable, node: ir.Node, dims: Dims, _: Dims) -> list[Dims] | None:
    """Values and indices: `k` replaces the size of an axis."""
    count = shapes.data.get(node.inputs[1])
    if count is None:
        return None
    return [replace_axes(dims, [attribute(node, "axis", -1)], (count.flat[0],))] * 2


def rnn(shapes: ShapeTable, node: ir.Node, dims: Dims, *_: Dims | None) -> list[Dims] | None:
    """LSTM and others: (S, B, D) gives all states (S, 1 or 2, B, H) and the last (1 or 2, B, H)."""
    size = attribute(node, "hidden_size", None)
    if size is None or attribute(node, "layout", 0):
        return None
    directions = 2 if attribute(node, "direction", "forward") == "bidirectional" else 1
    last = (directions, dims[1], size)
    return [(dims[0], *last), last, last]


_ELEMENTWISE = """
    Add And BitShift Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Or Pow Sub
    Sum Where Xor
""".split()
_SAME_SHAPE = """
    Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization Cast Ceil Celu Clip Cos Cosh CumSum Elu
    Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LayerNormalization LeakyRelu Log
    LogSoftmax Neg Not PRelu Reciprocal Relu ReverseSequence Round ScatterND Selu Shrink Sigmoid
    Sign Sin Sinh Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Trilu
""".split()
_REDUCE = """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare
""".split()

Rule = Callable[..., Dims | list[Dims] | None]
# The rule of each operator, by its name in ONNX, or in ONNX Runtime for those that `fuse` writes.
RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, broadcast),
    **dict.fromkeys(_SAME_SHAPE, same_as_first),
    **dict.fromkeys(_REDUCE, reduce),
    "ArgMax": arg_extreme,
    "ArgMin": arg_extreme,
    "Attention": packed_attention,
    "AveragePool": pool,
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "Conv": conv,
    "Einsum": einsum,
    "Expand": expand,
    "Flatten": flatten,
    "FusedMatMul": matmul,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "GRU": rnn,
    "LSTM": rnn,
    "MatMul": matmul,
    "MaxPool": pool,
    "MultiHeadAttention": multi_head_attention,
    "NonZero": non_zero,
    "Pad": pad,
    "RNN": rnn,
    "Range": range_,
    "Reshape": reshape,
    "SkipLayerNormalization": skip_layer_normalization,
    "Slice": slice_,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "TopK": top_k,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
