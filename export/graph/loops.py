"""Passes over loops: what a step has to carry, to compute, and to read.

tf2onnx hands every weight to a `Loop` as state, though no step changes it. So ONNX Runtime can
neither fold nor pack nor quantise it. Here state that stays the same becomes a constant of the
graph around the loop, and what depends on nothing in the loop is computed before it.
"""

import onnx_ir as ir

from keras_transformer.export.graph.nodes import RANDOM, all_nodes, attribute, has_graphs


def keep_loop_state(graph):
    """Takes out of every loop's state what never changes, or what nobody reads.

    before   y, w_after = Loop(x, w) { x_next = f(x_now, w_now); w_next = Identity(w_now) }
    after    y          = Loop(x)    { x_next = f(x_now, w) }
             and what read w_after reads w
    """
    for node in list(graph):
        if node.op_type == "Loop":
            keep_loop_state(node.attributes["body"].value)  # loops in the loop first
            _shrink(node)


def _shrink(loop):
    """Replaces one loop by a loop with the state that is needed."""
    body = loop.attributes["body"].value
    # Each slot: the value that enters, that of a step's start, that of its end, and the last one.
    slots = list(
        zip(loop.inputs[2:], body.inputs[2:], body.outputs[1:], loop.outputs, strict=False)
    )
    same = [slot for slot in slots if _is_constant(*slot)]
    keep = [slot for slot in slots if slot not in same and not _is_unread(*slot)]
    if len(keep) == len(slots):
        return
    # What a body collects over all steps comes behind its state.
    results = [body.outputs[0], *(slot[2] for slot in keep), *body.outputs[1 + len(slots) :]]
    outputs = [slot[3] for slot in keep] + list(loop.outputs[len(slots) :])
    inputs = [*body.inputs[:2], *(slot[1] for slot in keep)]
    body.inputs.clear()
    body.inputs.extend(inputs)
    body.outputs.clear()
    body.outputs.extend(results)
    for first, state, _, last in same:
        state.replace_all_uses_with(first)
        last.replace_all_uses_with(first)
    entering = [*loop.inputs[:2], *(slot[0] for slot in keep)]
    smaller = ir.Node(loop.domain, "Loop", entering, num_outputs=len(outputs), name=loop.name)
    loop.graph.insert_after(loop, smaller)
    for old, new in zip(outputs, smaller.outputs, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    del loop.attributes["body"]  # a graph belongs to one node
    loop.graph.remove(loop, safe=True)
    smaller.attributes["body"] = ir.AttrGraph("body", body)


def _is_constant(first, state, result, last):
    """Whether each step hands a state on as it is."""
    return _source(result) in (first, state) and not last.is_graph_output()


def _is_unread(first, state, result, last):
    """Whether neither a step nor what comes after the loop reads a state."""
    read = state.uses() or state.is_graph_output()  # by a step, or by another state of the next
    return not (read or last.uses() or last.is_graph_output())


def _source(value):
    """What `value` is a copy of."""
    while value.producer() is not None and value.producer().op_type == "Identity":
        value = value.producer().inputs[0]
    return value


def hoist(graph):
    """Moves out of each loop what depends on nothing in it; returns how many nodes.

    before   Loop { keys = MatMul(memory, w); ... }
    after    keys = MatMul(memory, w); Loop { ... }
    """
    changed = 0
    for loop in list(graph):
        if loop.op_type != "Loop":
            continue
        body = loop.attributes["body"].value
        changed += hoist(body)  # what leaves an inner loop may leave this one, too
        for node in list(body):
            inside = any(value is not None and value.graph is body for value in node.inputs)
            if inside or node.op_type in RANDOM or has_graphs(node) or not node.inputs:
                continue
            if any(output in node.outputs for output in body.outputs):
                continue
            body.remove(node)
            graph.insert_before(loop, node)
            changed += 1
    return changed


def hoist_rows(graph, known):
    """Computes for all steps at once, before a loop, what each makes of its own row of something.

    before   Loop { y = MatMul(Gather(xs, step), w) }
    after    ys = MatMul(xs, w); Loop { y = Gather(ys, step) }

    Returns:
        How many nodes were moved.
    """
    changed = 0
    for loop in [node for node in graph if node.op_type == "Loop"]:
        body = loop.attributes["body"].value
        changed += hoist_rows(body, known)
        for row in [node for node in body if _is_row_of_step(node, body, known)]:
            for user in {user for user, _ in row.outputs[0].uses()}:
                if user.graph is body and _is_row_by_row(user, row.outputs[0], known):
                    _hoist_row(user, row, loop)
                    changed += 1
    return changed


def _is_row_of_step(node, body, known):
    """Whether a node takes from what is computed before the loop the row of a step's number."""
    if node.op_type != "Gather" or attribute(node, "axis", 0):
        return False
    rows, step = node.inputs
    return (
        rows.graph is not body
        and rows.const_value is None  # of a table all rows may be far more than there are steps
        and step in body.inputs
        and known.dims.get(step) == ()
    )


def _is_row_by_row(node, row, known):
    """Whether a node does the same to a row as to each of many rows, with values of outside."""
    if node.op_type not in ("MatMul", "Add"):
        return False
    (other,) = [value for value in node.inputs if value is not row] or (row,)
    one, two = known.dims.get(row), known.dims.get(other)
    if other is row or other.graph is row.graph or one is None or two is None:
        return False
    if node.op_type == "MatMul":
        return node.inputs[0] is row and len(two) == 2
    return len(two) <= len(one)


def _hoist_row(node, row, loop):
    """Puts one node before the loop, and in its place a Gather of its step's row."""
    rows, step = row.inputs
    inputs = [rows if value is row.outputs[0] else value for value in node.inputs]
    before = ir.Node("", node.op_type, inputs, name=node.name)
    loop.graph.insert_before(loop, before)
    after = ir.Node("", "Gather", [before.outputs[0], step], name=row.name)
    node.graph.insert_before(node, after)
    old, new = node.outputs[0], after.outputs[0]
    before.outputs[0].name, before.outputs[0].type = f"{old.name}/rows", old.type
    new.name, new.type, new.shape = old.name, old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)


def sink_weights(main):
    """Moves weights into the step that alone reads them; products get copies of shared ones.

    ONNX Runtime packs the constants of a graph for its products. Those of the graph around it are
    packed, too, and yet a product of one row takes several times as long; and those two graphs
    further out, as around the steps of a search, are not.
    """
    for loop in all_nodes(main):
        if loop.op_type == "Loop":
            for value in list(main.initializers.values()):
                _sink(value, main, loop.attributes["body"].value)


def _sink(value, main, body):
    """Moves one weight into `body`, or a copy where others read it as well."""
    readers = {user for user, _ in value.uses()}
    inside = [user for user in readers if user.graph is body]
    if len(inside) == len(readers) > 0:
        del main.initializers[value.name]
        body.register_initializer(value)
        return
    products = [user for user in inside if user.op_type in ("MatMul", "FusedMatMul")]
    if products:
        copy = ir.val(f"{value.name}/step", const_value=value.const_value)
        body.register_initializer(copy)
    for user in products:
        user.replace_input_with(list(user.inputs).index(value), copy)
