"""Passes over loops: what a step has to carry, to compute, and to read.

tf2onnx hands every weight to a `Loop` as state, though no step changes it. So ONNX Runtime can
neither fold nor pack nor quantise it. Here state that stays the same becomes a constant of the
graph around the loop, and what depends on nothing in the loop is computed before it.
"""

import onnx_ir as ir

from keras_transformer.export.graph.nodes import RANDOM, all_nodes, has_graphs


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
    return not (state.uses() or last.uses() or last.is_graph_output())


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


def sink_weights(main):
    """Moves weights into the step that alone reads them; products get copies of shared ones.

    ONNX Runtime packs the constants of a graph and of the graph around it for its products, but not
    those two graphs further out: from there a product of few rows takes twice as long. The steps of
    a search are in a loop within a loop.
    """
    for loop in all_nodes(main):
        if loop.op_type == "Loop" and loop.graph is not main:
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
