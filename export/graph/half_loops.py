"""float16 state of loops: caches stay in float16 between steps, and halve the memory that moves.

before   Loop(cache) { keys = half(cache); ...; cache_next = float(new_keys) }
after    Loop(half(cache)) { keys = cache; ...; cache_next = new_keys }
"""

import onnx_ir as ir


def make_cast(value, dtype):
    """A new Cast of `value`, in no graph yet."""
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(dtype))], num_outputs=1)
    node.outputs[0].dtype, node.outputs[0].shape = dtype, value.shape
    return node


def is_cast(value, dtype):
    """Whether a value comes from a Cast to `dtype`."""
    node = None if value is None else value.producer()
    return node is not None and node.op_type == "Cast" and node.attributes["to"].value == dtype


def is_half_cast(node):
    """Whether a node is a Cast to float16."""
    return node.op_type == "Cast" and node.attributes["to"].value == ir.DataType.FLOAT16


def halve_state(graph):
    """Keeps in float16 the state of loops that is only read through a Cast to it.

    Returns:
        Whether there was any.
    """
    changed = False
    for loop in list(graph):
        if loop.op_type != "Loop":
            continue
        body = loop.attributes["body"].value
        changed = halve_state(body) or changed  # loops in the loop first
        for index, state in enumerate(body.inputs[2:]):
            readers = [user for user, _ in state.uses()]
            if state.dtype != ir.DataType.FLOAT or not readers:
                continue
            if all(map(_reads_half, readers)) and is_cast(
                body.outputs[1 + index], ir.DataType.FLOAT
            ):
                _halve_slot(loop, body, index, readers)
                changed = True
    return changed


def _halve_slot(loop, body, index, readers):
    """Makes one state of a loop float16: as it enters, in each step, and as it leaves."""
    first, state = loop.inputs[2 + index], body.inputs[2 + index]
    result, last = body.outputs[1 + index], loop.outputs[index]
    for user in readers:
        _read_half(user, state)
    # New type objects: values may share one.
    state.type = ir.TensorType(ir.DataType.FLOAT16)
    body.outputs[1 + index] = result.producer().inputs[0]
    cast = make_cast(first, ir.DataType.FLOAT16)
    loop.prepend(cast)
    loop.replace_input_with(2 + index, cast.outputs[0])
    last.type = ir.TensorType(ir.DataType.FLOAT16)
    if last.uses() or last.is_graph_output():
        cast = make_cast(last, ir.DataType.FLOAT)
        loop.append(cast)
        last.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
        cast.replace_input_with(0, last)


def _reads_half(node):
    """Whether a node is a Cast to float16, or takes rows that are only read by such Casts."""
    users = [user for output in node.outputs for user, _ in output.uses()]
    return is_half_cast(node) or (
        node.op_type == "Gather" and bool(users) and all(map(is_half_cast, users))
    )


def _read_half(node, state):
    """Lets a node for which `_reads_half` holds read `state` as float16."""
    if is_half_cast(node):
        node.outputs[0].replace_all_uses_with(state)
        node.graph.remove(node, safe=True)
        return
    output = node.outputs[0]
    for user, _ in list(output.uses()):
        user.outputs[0].replace_all_uses_with(output)
        user.graph.remove(user, safe=True)
    output.type = ir.TensorType(ir.DataType.FLOAT16)
