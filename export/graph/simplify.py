"""Graph passes that remove unnecessary nodes and change no number.

`simplify` repeats some passes until nothing changes: constants, reshapes and nodes without effect
(`folding`), and nodes that may leave a loop (`loops`). Each starts from newly inferred shapes.
`docs/library.md` compares this with existing optimizers.
"""

import onnx_ir as ir
from onnx_ir.passes import common

from keras_transformer.export.graph.einsums import multiply_matrices
from keras_transformer.export.graph.empty_batches import positive_axes
from keras_transformer.export.graph.folding import (
    broadcast_views,
    fold_constants,
    plain_reshapes,
    remove_no_ops,
)
from keras_transformer.export.graph.loops import (
    hoist_invariants,
    hoist_row_operations,
    keep_loop_state,
)
from keras_transformer.export.graph.shapes import InferredShapes


def simplify(model: ir.Model, hoisting: bool = True) -> InferredShapes:
    """Applies all passes to a model in place, until nothing changes.

    Args:
        model: as converted, or changed since by another pass.
        hoisting: whether nodes that do not depend on a loop leave it, broadcast values lose axes,
            and names become unique. Patterns are easier to find while all of their nodes are in
            one graph and their values have all axes, so fusion passes `False`.

    Returns:
        The shapes of the simplified graph.
    """
    for step in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        remove_copies,
    ):
        step(model)
    multiply_matrices(model.graph)
    keep_loop_state(model.graph)
    changed = 1
    while changed:
        clean(model)
        shapes = InferredShapes(model.graph)
        changed = fold_constants(model, shapes)
        changed += plain_reshapes(model.graph, shapes)
        changed += remove_no_ops(model.graph, shapes)
        if hoisting:
            changed += hoist_invariants(model.graph) + hoist_row_operations(model.graph, shapes)
            changed += broadcast_views(model.graph, shapes)
    positive_axes(model.graph, shapes)
    if hoisting:
        common.NameFixPass()(model)  # hoisting mixes names of two graphs
        common.RemoveUnusedOpsetsPass()(model)
    return shapes


def clean(model: ir.Model, constants: bool = True) -> None:
    """Removes unused and duplicate nodes and state of loops.

    Args:
        model: changed in place.
        constants: whether to also merge equal constants of up to 8 numbers, such as shapes.
            Defaults to `True`. The products of an int8 graph need separate constants; see
            `quantize`.
    """
    remove_copies(model)
    if constants:
        common.DeduplicateInitializersPass(size_limit=8)(model)
    for graph in model.graphs():  # the pass itself does not visit the bodies of loops
        outputs = [(value.type, value.shape) for value in graph.outputs]
        body = ir.Model(graph, ir_version=model.ir_version)
        common.CommonSubexpressionEliminationPass()(body)
        for value, (dtype, shape) in zip(graph.outputs, outputs, strict=True):
            value.type, value.shape = value.type or dtype, value.shape or shape
    common.RemoveUnusedNodesPass()(model)
    keep_loop_state(model.graph)


def remove_copies(model: ir.Model) -> None:
    """Removes each Identity, except those that make a value of another graph an output.

    before   y = Neg(Identity(x))
    after    y = Neg(x)
    """
    for graph in model.graphs():
        for node in [node for node in graph if node.op_type == "Identity"]:
            value, output = node.inputs[0], node.outputs[0]
            if output.is_graph_output():
                source = value.producer()
                if source is None or source.graph is not graph or value.is_graph_output():
                    continue
                value.name = output.name
                value.shape = value.shape if output.shape is None else output.shape
            value.type = output.type if value.type is None else value.type
            value.shape = output.shape if value.shape is None else value.shape
            output.replace_all_uses_with(value, replace_graph_outputs=True)
            graph.remove(node, safe=True)
