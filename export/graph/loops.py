"""Passes over loops: the state, nodes and weights of a step.

tf2onnx passes every weight to a `Loop` as state, though no step changes it. So ONNX Runtime cannot
fold, pack or quantize it. Here state that stays the same becomes a constant of the outer graph, and
nodes that do not depend on the step are computed before the loop.
"""

import onnx_ir as ir

from keras_transformer.export.artefact.signature import STEP_COPY
from keras_transformer.export.graph.nodes import (
    RANDOM,
    add_initializer,
    all_nodes,
    attribute,
    has_graphs,
    other_input,
    producer,
    substitute,
)
from keras_transformer.export.graph.shapes import InferredShapes

# Operators that need their weight as a constant inside their graph.
PRODUCTS = ("MatMul", "FusedMatMul", "DynamicQuantizeMatMul")


def keep_loop_state(graph: ir.Graph) -> None:
    """Removes loop state that never changes or is never read.

    before   y, w_after = Loop(x, w) { x_next = f(x_now, w_now); w_next = Identity(w_now) }
    after    y          = Loop(x)    { x_next = f(x_now, w) }
             and the readers of w_after read w
    """
    for node in list(graph):
        if node.op_type == "Loop":
            keep_loop_state(node.attributes["body"].value)  # loops in the loop first
            _shrink(node)


def _shrink(loop: ir.Node) -> None:
    """Replaces one loop by a loop with only the necessary state."""
    body = loop.attributes["body"].value
    # Each slot: the value that enters, its name in a step, the next value, and the last one.
    slots = list(
        zip(loop.inputs[2:], body.inputs[2:], body.outputs[1:], loop.outputs, strict=False)
    )
    same = [slot for slot in slots if _is_constant(*slot)]
    keep = [slot for slot in slots if slot not in same and not _is_unread(*slot)]
    if len(keep) == len(slots):
        return
    entering, inputs, results, outputs = map(list, zip(*keep, strict=True)) if keep else [[]] * 4
    # Values that a body collects over all steps come after its state.
    results = [body.outputs[0], *results, *body.outputs[1 + len(slots) :]]
    outputs = [*outputs, *loop.outputs[len(slots) :]]
    inputs = [*body.inputs[:2], *inputs]
    body.inputs.clear()
    body.inputs.extend(inputs)
    body.outputs.clear()
    body.outputs.extend(results)
    for first, state, _, last in same:
        state.replace_all_uses_with(first)
        last.replace_all_uses_with(first)
    smaller = ir.Node(
        "", "Loop", [*loop.inputs[:2], *entering], num_outputs=len(outputs), name=loop.name
    )
    loop.append(smaller)
    for old, new in zip(outputs, smaller.outputs, strict=True):
        substitute(old, new)
    del loop.attributes["body"]  # a graph belongs to one node
    loop.graph.remove(loop, safe=True)
    smaller.attributes["body"] = ir.AttrGraph("body", body)


def _is_constant(first: ir.Value, state: ir.Value, result: ir.Value, last: ir.Value) -> bool:
    """Returns whether each step passes a state on unchanged."""
    while copy := producer(result, "Identity"):
        result = copy.inputs[0]
    return result in (first, state) and not last.is_graph_output()


def _is_unread(first: ir.Value, state: ir.Value, result: ir.Value, last: ir.Value) -> bool:
    """Returns whether no node reads a state, in a step or after the loop."""
    read = state.uses() or state.is_graph_output()  # in a step, or as another state of the next
    return not (read or last.uses() or last.is_graph_output())


def hoist_invariants(graph: ir.Graph) -> int:
    """Moves loop-invariant nodes out of each loop; returns how many.

    before   Loop { keys = MatMul(memory, w); ... }
    after    keys = MatMul(memory, w); Loop { ... }
    """
    changed = 0
    for loop in [node for node in graph if node.op_type == "Loop"]:
        body = loop.attributes["body"].value
        changed += hoist_invariants(body)  # nodes from an inner loop may leave this one
        for node in list(body):
            inside = any(value is not None and value.graph is body for value in node.inputs)
            if inside or node.op_type in RANDOM or has_graphs(node) or not node.inputs:
                continue
            if any(output in node.outputs for output in body.outputs):
                continue
            body.remove(node)
            loop.prepend(node)
            changed += 1
    return changed


def hoist_row_operations(graph: ir.Graph, shapes: InferredShapes) -> int:
    """Moves operations on a step's row before a loop, where they run once for all rows.

    before   Loop { y = MatMul(Gather(xs, step), w) }
    after    ys = MatMul(xs, w); Loop { y = Gather(ys, step) }

    Returns:
        Number of nodes that were moved.
    """
    changed = 0
    for loop in [node for node in graph if node.op_type == "Loop"]:
        body = loop.attributes["body"].value
        changed += hoist_row_operations(body, shapes)
        for row in [node for node in body if _is_row_of_step(node, body, shapes)]:
            for user in {user for user, _ in row.outputs[0].uses()}:
                if user.graph is body and _is_row_by_row(user, row.outputs[0], shapes):
                    _hoist_row_operation(user, row, loop)
                    changed += 1
    return changed


def _is_row_of_step(node: ir.Node, body: ir.Graph, shapes: InferredShapes) -> bool:
    """Returns whether a node picks the step's row from a value of the outer graph."""
    if node.op_type != "Gather" or attribute(node, "axis", 0):
        return False
    rows, step = node.inputs
    return (
        rows.graph is not body
        and rows.const_value is None  # a table may have far more rows than there are steps
        and step in body.inputs
        and shapes.dims.get(step) == ()
    )


def _is_row_by_row(node: ir.Node, row: ir.Value, shapes: InferredShapes) -> bool:
    """Returns whether a node treats rows independently and reads only outer values besides."""
    if node.op_type not in ("MatMul", "Add"):
        return False
    other = other_input(node, row)
    dims, other_dims = shapes.dims.get(row), shapes.dims.get(other)
    if other is row or other.graph is row.graph or dims is None or other_dims is None:
        return False
    if node.op_type == "MatMul":
        return node.inputs[0] is row and len(other_dims) == 2
    return len(other_dims) <= len(dims)


def _hoist_row_operation(node: ir.Node, row: ir.Node, loop: ir.Node) -> None:
    """Moves one node before the loop, and puts a Gather of the step's row in its place."""
    rows, step = row.inputs
    inputs = [rows if value is row.outputs[0] else value for value in node.inputs]
    before = ir.Node("", node.op_type, inputs, name=node.name)
    loop.prepend(before)
    after = ir.Node("", "Gather", [before.outputs[0], step], name=row.name)
    node.prepend(after)
    old, all_rows = node.outputs[0], before.outputs[0]
    all_rows.name, all_rows.type = f"{old.name}/rows", old.type
    substitute(old, after.outputs[0])
    node.graph.remove(node, safe=True)


def sink_weights(main: ir.Graph) -> None:
    """Moves weights into the step or branch that alone reads them; products reshape shared ones.

    ONNX Runtime packs a constant for products in its own graph and in that graph's loops, but not
    in nested loops, such as the steps of a search. In the step, ONNX Runtime folds a Reshape to the
    same shape to a constant when the session opens. So the file holds a shared weight once. (An
    Identity is removed before it is folded.) `MappedModel` recognises the Reshape by the name of
    its output, and makes the product read the weight in the file.

    before   Gather(w, ids); Loop { y = MatMul(x, w) }
    after    Gather(w, ids); Loop { w/step = Reshape(w, shape); y = MatMul(x, w/step) }
    """
    for node in all_nodes(main):
        for name in ("body", "then_branch", "else_branch"):
            if node.op_type in ("Loop", "If") and name in node.attributes:
                for value in list(main.initializers.values()):
                    _sink(value, main, node.attributes[name].value)


def _sink(value: ir.Value, main: ir.Graph, body: ir.Graph) -> None:
    """Moves one weight into `body`, or reshapes it there if other nodes also read it."""
    readers = {user for user, _ in value.uses()}
    inside = [user for user in readers if user.graph is body]
    if len(inside) == len(readers) > 0:
        del main.initializers[value.name]
        body.register_initializer(value)
        return
    products = [user for user in inside if user.op_type in PRODUCTS]
    if products:
        shape = add_initializer(body, f"{value.name}/shape", value.const_value.shape.numpy())
        reshape = ir.Node("", "Reshape", [value, shape])
        body.insert_before(body[0], reshape)
        copy = reshape.outputs[0]
        copy.name, copy.type, copy.shape = f"{value.name}{STEP_COPY}", value.type, value.shape
    for user in products:
        user.replace_input_with(list(user.inputs).index(value), copy)
