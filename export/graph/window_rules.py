"""Shapes after operators that slide a window over space: convolutions and pooling.

What a rule is, and the table of all of them, is in `shape_rules`.

Shapes in the examples: B batch, C channels, S length of an axis of space.
"""

from keras_transformer.export.graph.nodes import attribute


def conv(known, node):
    """(B, C, S) by filters (N, C / groups, k): (B, N, S'), S' by strides and padding."""
    dims, filters = (known.dims.get(value) for value in node.inputs[:2])
    if dims is None or filters is None or len(dims) != len(filters):
        return None
    return (dims[0], filters[0], *_slid(known, node, dims, filters[2:]))


def pool(known, node):
    """(B, C, S): (B, C, S'), S' by the window, strides and padding."""
    dims, window = known.dims.get(node.inputs[0]), attribute(node, "kernel_shape", None)
    if dims is None or window is None or attribute(node, "ceil_mode", 0):
        return None
    return (*dims[:2], *_slid(known, node, dims, window))


def global_pool(known, node):
    """(B, C, S) becomes (B, C, 1)."""
    dims = known.dims.get(node.inputs[0])
    return None if dims is None else (*dims[:2], *(1 for _ in dims[2:]))


def _slid(known, node, dims, window):
    """Sizes of the axes of space after a window went over them."""
    rank = len(dims) - 2
    strides = attribute(node, "strides", (1,) * rank)
    dilations = attribute(node, "dilations", (1,) * rank)
    pads = attribute(node, "pads", (0,) * (2 * rank))
    mode = attribute(node, "auto_pad", "NOTSET")
    sizes = []
    for axis, size in enumerate(dims[2:]):
        stride, reach = strides[axis], None
        if isinstance(window[axis], int):
            reach = dilations[axis] * (window[axis] - 1)  # from a window's first entry to its last
        if mode.startswith("SAME") and (stride == 1 or isinstance(size, int)):
            sizes.append(size if stride == 1 else -(-size // stride))
            continue
        missing = None if reach is None else reach - pads[axis] - pads[axis + rank]
        missing = reach if mode == "VALID" else missing
        if missing == 0 and stride == 1 and not mode.startswith("SAME"):
            sizes.append(size)
        elif missing is not None and isinstance(size, int):
            sizes.append((size - missing - 1) // stride + 1)
        else:
            sizes.append(known.fresh(node.outputs[0], axis + 2))
    return sizes
