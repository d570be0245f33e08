"""The shape of an operator's outputs from those of its inputs: one rule for each operator.

A rule is a function `(known, node)`. It returns the shape of the only output as a tuple of sizes,
or a list with one shape for each output, or `None` where the inputs say too little. `known` is the
`shapes.Known` that asks: `known.dims` has the shapes so far, `known.data` the contents of small
integer tensors, and `known.fresh(value, axis)` names an axis of which nothing is known.

An operator without a rule is no error. Its outputs then have the shape that the file declares, or
none, and the passes leave alone what reads them. A new operator is one function, here or in
`layout_rules` or `window_rules`, and one line in `RULES`.
"""

from keras_transformer.export.graph import layout_rules as layout
from keras_transformer.export.graph import window_rules as window
from keras_transformer.export.graph.nodes import attribute
from keras_transformer.export.graph.sizes import common, product, quotient, total


def broadcast(known, node):
    """Element-wise operators of several inputs: (B, 1, D) and (T, 1) give (B, T, D)."""
    shapes = [known.dims.get(value) for value in node.inputs]
    if any(shape is None for shape in shapes):
        return None
    rank = max(map(len, shapes))
    dims = []
    for axis in range(rank):
        sizes = [shape[axis - rank] for shape in shapes if len(shape) >= rank - axis]
        dims.append(common(sizes, known.fresh(node.outputs[0], axis)))
    return tuple(dims)


def same_as_first(known, node):
    """Operators that change numbers, and no shape."""
    return known.dims.get(node.inputs[0])


def reduce(known, node):
    """Sums, means and products along `axes`, which is an attribute or a second input."""
    dims = known.dims.get(node.inputs[0])
    axes = attribute(node, "axes", None)
    if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = known.constant(node.inputs[1])
        if axes is None:
            return None
    if dims is None:
        return None
    axes = range(len(dims)) if axes is None else [axis % len(dims) for axis in axes]
    if attribute(node, "keepdims", 1):
        return tuple(1 if axis in axes else size for axis, size in enumerate(dims))
    return tuple(size for axis, size in enumerate(dims) if axis not in axes)


def arg_extreme(known, node):
    """ArgMax and ArgMin: one index in the place of an axis."""
    dims, axis = known.dims.get(node.inputs[0]), attribute(node, "axis", 0)
    if dims is None:
        return None
    kept = (1,) if attribute(node, "keepdims", 1) else ()
    return (*dims[: axis % len(dims)], *kept, *dims[axis % len(dims) + 1 :])


def matmul(known, node):
    """(..., M, K) times (K, N), or times (..., K, N) of the same rank."""
    left, right = (known.dims.get(value) for value in node.inputs[:2])
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    if len(right) == 2:
        return (*left[:-1], right[-1])
    if len(left) != len(right):
        return None
    pairs = enumerate(zip(left[:-2], right[:-2], strict=True))
    batch = [common(pair, known.fresh(node.outputs[0], axis)) for axis, pair in pairs]
    return (*batch, left[-2], right[-1])


def fused_matmul(known, node):
    """ONNX Runtime's product with a matrix that may be transposed."""
    left, right = (known.dims.get(value) for value in node.inputs)
    if left is None or right is None or len(right) != 2 or attribute(node, "transA", 0):
        return None
    return (*left[:-1], right[0 if attribute(node, "transB", 0) else 1])


def skip_layer_normalization(known, node):
    """ONNX Runtime's residual + norm: the norm first, the sum last, statistics between them."""
    dims = known.dims.get(node.inputs[0])
    return None if dims is None else [dims, (), (), dims]


def multi_head_attention(known, node):
    """ONNX Runtime's attention: the output (B, T, H K), and caches longer by the new keys."""
    query, key, value = (known.dims.get(value) for value in node.inputs[:3])
    if query is None or key is None or value is None:
        return None
    size = value[2] if len(value) == 3 else product([value[1], value[3]])
    if len(node.outputs) == 1:
        return (*query[:2], size)
    pasts = [known.dims.get(value) for value in node.inputs[6:8]]
    if None in pasts:
        return None
    caches = [(*past[:2], total(past[2], key[1]), past[3]) for past in pasts]
    return [(*query[:2], size), *caches]


def packed_attention(known, node):
    """ONNX Runtime's attention with its projections, (D, 3 H K): (B, T, D) gives (B, T, H K)."""
    dims, weights = (known.dims.get(value) for value in node.inputs[:2])
    size = None if weights is None else quotient(weights[1], 3)
    return None if dims is None or size is None else (*dims[:2], size)


def einsum(known, node):
    """The size that each letter of the output has in an input: abc,cde->abde."""
    shapes = [known.dims.get(value) for value in node.inputs]
    inputs, arrow, output = attribute(node, "equation", "").replace(" ", "").partition("->")
    if not arrow or "." in inputs or any(shape is None for shape in shapes):
        return None
    sizes = {}
    for letters, shape in zip(inputs.split(","), shapes, strict=True):
        for letter, size in zip(letters, shape, strict=True):
            sizes.setdefault(letter, []).append(size)
    axes = enumerate(output)
    return tuple(common(sizes[letter], known.fresh(node.outputs[0], axis)) for axis, letter in axes)


def gather(known, node):
    """Rows (V, D) at indices (B, T): (B, T, D)."""
    dims, index = (known.dims.get(value) for value in node.inputs)
    if dims is None or index is None:
        return None
    axis = attribute(node, "axis", 0) % len(dims)
    return (*dims[:axis], *index, *dims[axis + 1 :])


def gather_nd(known, node):
    """Parts of (B, V, D) at indices (B, T, 1), with one batch axis: (B, T, D)."""
    dims, index = (known.dims.get(value) for value in node.inputs)
    if dims is None or index is None or not isinstance(index[-1], int):
        return None
    return (*index[:-1], *dims[attribute(node, "batch_dims", 0) + index[-1] :])


def gather_elements(known, node):
    """One element for each index."""
    return known.dims.get(node.inputs[1])


def non_zero(known, node):
    """An index of each axis, for as many elements as there are."""
    dims = known.dims.get(node.inputs[0])
    return None if dims is None else (len(dims), known.fresh(node.outputs[0], 1))


def top_k(known, node):
    """Values and indices: `k` in the place of an axis."""
    dims, count = known.dims.get(node.inputs[0]), known.data.get(node.inputs[1])
    if dims is None or count is None:
        return None
    axis = attribute(node, "axis", -1) % len(dims)
    return [(*dims[:axis], count.flat[0], *dims[axis + 1 :])] * 2


def recurrent(known, node):
    """LSTM and others: (S, B, D) gives all states (S, 1 or 2, B, H) and the last (1 or 2, B, H)."""
    dims, size = known.dims.get(node.inputs[0]), attribute(node, "hidden_size", None)
    if dims is None or size is None or attribute(node, "layout", 0):
        return None
    directions = 2 if attribute(node, "direction", "forward") == "bidirectional" else 1
    last = (directions, dims[1], size)
    return [(dims[0], *last), last, last]


_ELEMENTWISE = (
    "Add", "And", "BitShift", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
    "Max", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip
_SAME_SHAPE = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization",
    "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "CumSum", "Elu", "Erf", "Exp", "Floor",
    "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu",
    "Log", "LogSoftmax", "Neg", "Not", "PRelu", "Reciprocal", "Relu", "ReverseSequence", "Round",
    "ScatterND", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax", "Softplus",
    "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu", "Trilu",
)  # fmt: skip
_REDUCE = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

# The rule of each operator, by its name in ONNX, or in ONNX Runtime for those that `fuse` writes.
RULES = {
    **dict.fromkeys(_ELEMENTWISE, broadcast),
    **dict.fromkeys(_SAME_SHAPE, same_as_first),
    **dict.fromkeys(_REDUCE, reduce),
    "ArgMax": arg_extreme,
    "ArgMin": arg_extreme,
    "Attention": packed_attention,
    "AveragePool": window.pool,
    "Concat": layout.concat,
    "ConstantOfShape": layout.constant_of_shape,
    "Conv": window.conv,
    "Einsum": einsum,
    "Expand": layout.expand,
    "Flatten": layout.flatten,
    "FusedMatMul": fused_matmul,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "GRU": recurrent,
    "GlobalAveragePool": window.global_pool,
    "GlobalMaxPool": window.global_pool,
    "LSTM": recurrent,
    "MatMul": matmul,
    "MaxPool": window.pool,
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
