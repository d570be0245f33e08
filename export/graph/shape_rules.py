"""Infers the shapes of an operator's outputs from its inputs, with one rule per operator.

A rule is a function `(shapes, node, *dims)`. `dims` are the shapes of the inputs, tuples of sizes;
`None` stands for an input that is left out. A rule returns the shape of the only output, or a list
with one shape per output, or `None` if the inputs do not determine it. `shapes` is the
`ShapeTable` that is filled: `shapes.data` holds the values of small integer tensors, and
`shapes.new_symbol(value, axis)` names an axis of unknown size.

An operator without a rule is not an error. Its outputs then have the shape that the file declares,
or none, and the passes do not change their readers. To add an operator, write a function here or in
`layout_rules` and put it in `RULES`.
"""

from collections.abc import Callable

import onnx_ir as ir

from keras_transformer.export.graph import layout_rules as layout
from keras_transformer.export.graph.layout_rules import replace_axes
from keras_transformer.export.graph.nodes import attribute
from keras_transformer.export.graph.shape_data import (
    Dims,
    ShapeTable,
    broadcast_size,
    product,
    quotient,
    total,
)


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
    terms, arrow, output = attribute(node, "equation", "").replace(" ", "").partition("->")
    if not arrow or "." in terms:
        return None
    sizes = {}
    for letters, dims in zip(terms.split(","), inputs, strict=True):
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


def recurrent(shapes: ShapeTable, node: ir.Node, dims: Dims, *_: Dims | None) -> list[Dims] | None:
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
    "AveragePool": layout.pool,
    "Concat": layout.concat,
    "ConstantOfShape": layout.constant_of_shape,
    "Conv": layout.conv,
    "Einsum": einsum,
    "Expand": expand,
    "Flatten": layout.flatten,
    "FusedMatMul": matmul,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "GRU": recurrent,
    "LSTM": recurrent,
    "MatMul": matmul,
    "MaxPool": layout.pool,
    "MultiHeadAttention": multi_head_attention,
    "NonZero": non_zero,
    "Pad": layout.pad,
    "RNN": recurrent,
    "Range": layout.range_,
    "Reshape": layout.reshape,
    "SkipLayerNormalization": skip_layer_normalization,
    "Slice": layout.slice_,
    "Split": layout.split,
    "Squeeze": layout.squeeze,
    "Tile": layout.tile,
    "TopK": top_k,
    "Transpose": layout.transpose,
    "Unsqueeze": layout.unsqueeze,
}
