"""Shapes after operators that move, cut and repeat numbers, one rule for each operator.

What a rule is, and the table of all of them, is in `shape_rules`. These here read the *contents* of
integer tensors (the target of a Reshape, the bounds of a Slice), which `contents` follows.

Shapes in the examples: B batch, T positions, H heads, K size of a head.
"""

from keras_transformer.export.graph.nodes import attribute
from keras_transformer.export.graph.sizes import product, quotient, total

# No axis is this long: tf2onnx and TensorFlow write this or more for "up to the end".
ENDLESS = 10**9


def reshape(known, node):
    """The contents of the target, with 0 for the input's own size and -1 for what is left.

    (B, T, H, K) reshaped to [0, 0, -1] is (B, T, H K): the product of all sizes, over B T.
    """
    dims, target = known.dims.get(node.inputs[0]), known.data.get(node.inputs[1])
    if target is None:  # its length is the new rank
        shape = known.dims.get(node.inputs[1])
        rank = shape[0] if shape and isinstance(shape[0], int) else None
        return None if rank is None else known.all_fresh(node.outputs[0], rank)
    target = list(target.flat)
    for axis, size in enumerate(target):
        if size == 0 and not attribute(node, "allowzero", 0):
            target[axis] = dims[axis] if dims else known.fresh(node.outputs[0], axis)
    if -1 in target:
        axis = target.index(-1)
        rest = product(target[:axis] + target[axis + 1 :])
        size = None if dims is None else quotient(product(dims), rest)
        target[axis] = known.fresh(node.outputs[0], axis) if size is None else size
    return tuple(target)


def flatten(known, node):
    """(B, T, D) becomes (B, T D): the axes before `axis` are one, and so are those from it on."""
    dims, axis = known.dims.get(node.inputs[0]), attribute(node, "axis", 1)
    return None if dims is None else (product(dims[:axis]), product(dims[axis:]))


def transpose(known, node):
    """The axes in the order of `perm`, or turned around."""
    dims = known.dims.get(node.inputs[0])
    if dims is None:
        return None
    order = attribute(node, "perm", range(len(dims) - 1, -1, -1))
    return tuple(dims[axis] for axis in order)


def unsqueeze(known, node):
    """(B, T) with axes [1] becomes (B, 1, T)."""
    dims, axes = known.dims.get(node.inputs[0]), known.constant(node.inputs[1])
    if dims is None or axes is None:
        return None
    rank = len(dims) + len(axes)
    axes, rest = {axis % rank for axis in axes}, iter(dims)
    return tuple(1 if axis in axes else next(rest) for axis in range(rank))


def squeeze(known, node):
    """(B, 1, T) with axes [1] becomes (B, T); without axes all of size 1 go."""
    dims = known.dims.get(node.inputs[0])
    if dims is None:
        return None
    if len(node.inputs) > 1:
        axes = known.constant(node.inputs[1])
    else:
        plain = all(isinstance(size, int) for size in dims)
        axes = [axis for axis, size in enumerate(dims) if size == 1] if plain else None
    if axes is None:
        return None
    axes = {axis % len(dims) for axis in axes}
    return tuple(size for axis, size in enumerate(dims) if axis not in axes)


def concat(known, node):
    """The inputs' sizes of one axis are added; all other axes are those of the first.

    A cache (B, H, S, K) with a new token (B, H, 1, K) is (B, H, S + 1, K), S + 1 a new unknown.
    """
    shapes = [known.dims.get(value) for value in node.inputs]
    if any(shape is None for shape in shapes):
        return None
    axis = attribute(node, "axis", 0) % len(shapes[0])
    length = shapes[0][axis]
    for shape in shapes[1:]:
        length = total(length, shape[axis])
    return (*shapes[0][:axis], length, *shapes[0][axis + 1 :])


def split(known, node):
    """Parts of an axis, of given sizes or of equal ones: (B, T, 3 D) gives three of (B, T, D)."""
    dims = known.dims.get(node.inputs[0])
    sizes = known.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if dims is None:
        return None
    axis = attribute(node, "axis", 0) % len(dims)
    if sizes is None:
        part = quotient(dims[axis], len(node.outputs))
        if part is None:
            return None
        sizes = [part] * len(node.outputs)
    return [(*dims[:axis], size, *dims[axis + 1 :]) for size in sizes]


def slice_(known, node):
    """An axis from a start to an end: itself where that is all of it, else a number or unknown."""
    dims = known.dims.get(node.inputs[0])
    starts, ends, axes, steps = [
        known.constant(value) for value in [*node.inputs[1:], None, None][:4]
    ]
    if dims is None or (len(node.inputs) > 3 and axes is None):
        return None
    axes = range(len(dims)) if axes is None else [axis % len(dims) for axis in axes]
    dims = list(dims)
    for i, axis in enumerate(axes):
        step = 1 if len(node.inputs) < 5 else steps[i] if steps else None
        whole = starts and ends and starts[i] == 0 and ends[i] >= ENDLESS and step == 1
        if whole:
            continue
        if starts and ends and step and isinstance(dims[axis], int):
            dims[axis] = len(range(dims[axis])[starts[i] : ends[i] : step])
        else:
            dims[axis] = known.fresh(node.outputs[0], axis)
    return tuple(dims)


def expand(known, node):
    """The input stretched to a target: an axis of 1 takes the target's size.

    (B, 1, 1, T) expanded to [1, 1, T, 1] is (B, 1, T, T).
    """
    target = known.data.get(node.inputs[1])
    dims = known.dims.get(node.inputs[0])
    if target is None or dims is None or len(dims) > target.size:
        return None
    dims = (1,) * (target.size - len(dims)) + tuple(dims)
    expanded = []
    for axis, (size, new) in enumerate(zip(dims, target.flat, strict=True)):
        if size == 1 or size == new:
            expanded.append(new)
        else:
            expanded.append(size if new == 1 else known.fresh(node.outputs[0], axis))
    return tuple(expanded)


def tile(known, node):
    """Each axis as many times as the repeats say: (B, T) by [1, 3] gives (B, 3 T)."""
    dims, repeats = known.dims.get(node.inputs[0]), known.data.get(node.inputs[1])
    if dims is None or repeats is None:
        return None
    return tuple(product(pair) for pair in zip(dims, repeats.flat, strict=True))


def pad(known, node):
    """Sizes grow by what is put before and behind: (B, T) by [0, 1, 0, 2] gives (B, T + 3)."""
    dims, widths = known.dims.get(node.inputs[0]), known.constant(node.inputs[1])
    if dims is None:
        return None
    if widths is None or len(widths) != 2 * len(dims):
        return known.all_fresh(node.outputs[0], len(dims))
    pairs = zip(widths[: len(dims)], widths[len(dims) :], strict=True)
    return tuple(total(size, sum(pair)) for size, pair in zip(dims, pairs, strict=True))


def constant_of_shape(known, node):
    """The contents of the input."""
    target = known.data.get(node.inputs[0])
    return None if target is None else tuple(target.flat)


def range_(known, node):
    """From 0 in steps of 1 there are as many numbers as the end says."""
    start, stop, step = (known.data.get(value) for value in node.inputs)
    if start is not None and stop is not None and step is not None:
        if start.flat[0] == 0 and step.flat[0] == 1:
            return (stop.flat[0],)
    return known.all_fresh(node.outputs[0], 1)
