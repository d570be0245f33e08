"""Graph passes that change no number: what is left is what a run has to compute.

`simplify` repeats four passes until none finds anything: constants (`folding`), plain reshapes and
nodes that do nothing (`no_ops`), and what may leave a loop (`loops`). Each starts from fresh
knowledge of shapes (`shapes`).

Why not a library, tried on a beam search of two layers, 1,006 nodes as converted, 419 of them in a
step: onnxscript 0.7's optimizer leaves 752 (372) after 4 s, onnxslim 0.1.98 765 (403) after 15 s,
this module 588 (242) after 0.2 s. onnxsim 0.8.1 writes a file that ONNX Runtime refuses. None of
them takes constants out of a loop's state; after ours has done that they leave 638, 675 and none.
"""

import onnx_ir as ir
from onnx_ir.passes import common

from keras_transformer.export.graph.einsums import multiply_matrices
from keras_transformer.export.graph.empty_batches import positive_axes
from keras_transformer.export.graph.folding import fold_constants
from keras_transformer.export.graph.loops import hoist, hoist_rows, keep_loop_state
from keras_transformer.export.graph.no_ops import plain_reshapes, remove_no_ops
from keras_transformer.export.graph.nodes import RANDOM, has_graphs
from keras_transformer.export.graph.shapes import Known

# Attributes that Python can compare.
PLAIN = (
    ir.AttributeType.FLOAT, ir.AttributeType.FLOATS, ir.AttributeType.INT, ir.AttributeType.INTS,
    ir.AttributeType.STRING,
)  # fmt: skip


def simplify(model, hoisting=True):
    """Applies all passes to an `onnx_ir.Model` in place, until nothing changes.

    Args:
        model: as converted, or changed since by another pass.
        hoisting: whether loops hand out what could be done before them, and the graph is to be
            written. Patterns are easier to find while all of their nodes are in one graph, so
            fusion asks for `False`.

    Returns:
        What is then known of its shapes, a `shapes.Known`.
    """
    for step in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        step_over_copies,
    ):
        step(model)
    multiply_matrices(model.graph)
    keep_loop_state(model.graph)
    while True:
        clean(model)
        known = Known(model.graph)
        changed = fold_constants(model, known)
        changed += plain_reshapes(model.graph, known)
        changed += remove_no_ops(model.graph, known)
        if hoisting:
            changed += hoist(model.graph) + hoist_rows(model.graph, known)
        if not changed:
            break
    positive_axes(model.graph, known)
    if hoisting:
        common.NameFixPass()(model)  # hoisting puts names of two graphs into one
        common.RemoveUnusedOpsetsPass()(model)
    return known


def clean(model):
    """Removes what nobody reads and what is there twice."""
    for step in (
        step_over_copies,
        common.DeduplicateInitializersPass(size_limit=8),  # shapes and the like, not weights
        merge_equal,
        common.RemoveUnusedNodesPass(),
    ):
        step(model)
    keep_loop_state(model.graph)


def step_over_copies(model):
    """Removes each Identity, but those that give a graph an output of another graph.

    before   y = Neg(Identity(x))
    after    y = Neg(x)
    """
    for graph in model.graphs():
        for node in [node for node in graph if node.op_type == "Identity"]:
            value, output = node.inputs[0], node.outputs[0]
            if output.is_graph_output():
                maker = value.producer()
                if maker is None or maker.graph is not graph or value.is_graph_output():
                    continue
                value.name = output.name
                value.shape = value.shape if output.shape is None else output.shape
            value.type = output.type if value.type is None else value.type
            value.shape = output.shape if value.shape is None else value.shape
            output.replace_all_uses_with(value, replace_graph_outputs=True)
            graph.remove(node, safe=True)


def merge_equal(model):
    """Lets equal nodes of a graph be one; ONNX IR's own pass does not look into loops.

    before   a = Shape(x); b = Shape(x); y = Add(a, b)
    after    a = Shape(x); y = Add(a, a)
    """
    for graph in model.graphs():
        seen = {}
        for node in list(graph):
            if node.op_type in RANDOM or has_graphs(node):
                continue
            alike = seen.setdefault((node.op_identifier(), node.inputs, len(node.outputs)), [])
            same = next((other for other in alike if _have_equal_attributes(node, other)), None)
            if same is None:
                alike.append(node)
                continue
            pairs = list(zip(node.outputs, same.outputs, strict=True))
            # The model's outputs keep their names, and each output of a loop is another value.
            if any(
                old.is_graph_output() and (graph is model.graph or new.is_graph_output())
                for old, new in pairs
            ):
                continue
            for old, new in pairs:
                old.replace_all_uses_with(new, replace_graph_outputs=True)
            graph.remove(node, safe=True)


def _have_equal_attributes(one, other):
    """Whether two nodes of one operator do the same."""
    return one.attributes.keys() == other.attributes.keys() and all(
        _is_same(item, other.attributes[name]) for name, item in one.attributes.items()
    )


def _is_same(one, other):
    """Whether two attributes of one name have the same value. Tensors are slow to compare."""
    if one.type != other.type or one.type not in PLAIN:
        return str(ir.to_proto(one)) == str(ir.to_proto(other))
    return one.value == other.value
