"""Graph passes that change no number: what is left is what a run has to compute.

tf2onnx hands every weight to a `Loop` as state and leaves it there, computes shapes that are known,
and repeats in each step what could be done once. Here weights come back into the loop's body as
constants of the outer scope (only so can a runtime prepack or quantise them), shapes become
constants, and what depends on nothing in the loop moves out of it.
"""

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes import common

from keras_transformer.export.graph.shapes import Known, Size, attribute

# Results of folding beyond this many elements would make the file larger than what they replace.
LARGEST_FOLDED = 1 << 16
# Operators that give something else each time.
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"}


def simplify(model, hoisting=True):
    """Applies all passes to an `onnx_ir.Model` in place, until nothing changes.

    Returns what is then known of its shapes. Patterns are easier to find while all of their nodes
    are in one graph: `hoisting=False` leaves in the loop what could be done before it.
    """
    for step in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.IdentityEliminationPass(),
    ):
        step(model)
    keep_loop_state(model.graph)
    while True:
        clean(model)
        known = Known(model.graph)
        changed = fold_constants(model, known)
        changed += plain_reshapes(model.graph, known)
        changed += remove_no_ops(model.graph, known)
        changed += hoist(model.graph) if hoisting else 0
        if not changed:
            common.NameFixPass()(model)  # hoisting puts names of two graphs into one
            common.RemoveUnusedOpsetsPass()(model)
            return known


def clean(model):
    """Removes what nobody reads and what is there twice."""
    for step in (
        common.IdentityEliminationPass(),
        common.DeduplicateInitializersPass(size_limit=8),  # shapes and the like, not weights
        merge_equal,
        common.RemoveUnusedNodesPass(),
    ):
        step(model)
    keep_loop_state(model.graph)


def merge_equal(model):
    """Lets equal nodes of a graph be one; ONNX IR's own pass does not look into loops."""
    for graph in model.graphs():
        first = {}
        for node in list(graph):
            if node.op_type in RANDOM or _has_graphs(node):
                continue
            attributes = sorted(str(ir.to_proto(item)) for item in node.attributes.values())
            key = node.op_identifier(), node.inputs, len(node.outputs), *attributes
            same = first.setdefault(key, node)
            pairs = list(zip(node.outputs, same.outputs, strict=True))
            # The model's outputs keep their names, and each output of a loop is another value.
            if same is node or any(
                old.is_graph_output() and (graph is model.graph or new.is_graph_output())
                for old, new in pairs
            ):
                continue
            for old, new in pairs:
                old.replace_all_uses_with(new, replace_graph_outputs=True)
            graph.remove(node, safe=True)


def all_nodes(graph):
    """Nodes of a graph and of all graphs inside, in order, as a list that survives changes."""
    return list(ir.traversal.RecursiveGraphIterator(graph))


def keep_loop_state(graph):
    """Takes out of every loop's state what never changes, or what nobody reads."""
    for node in list(graph):
        if node.op_type == "Loop":
            keep_loop_state(node.attributes["body"].value)  # loops in the loop first
            _shrink_loop(node)


def _shrink_loop(node):
    body = node.attributes["body"].value
    slots = list(
        zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], node.outputs, strict=False)
    )
    same = [
        slot for slot in slots if _source(slot[2]) in slot[:2] and not slot[3].is_graph_output()
    ]
    unread = [
        slot
        for slot in slots
        if not (slot[1].uses() or slot[3].uses() or slot[3].is_graph_output())
    ]
    keep = [slot for slot in slots if slot not in same and slot not in unread]
    if len(keep) == len(slots):
        return
    results = [body.outputs[0], *(slot[2] for slot in keep), *body.outputs[1 + len(slots) :]]
    outputs = [slot[3] for slot in keep] + list(node.outputs[len(slots) :])
    inputs = [*body.inputs[:2], *(slot[1] for slot in keep)]
    body.inputs.clear()
    body.inputs.extend(inputs)
    body.outputs.clear()
    body.outputs.extend(results)
    for first, state, _, output in same:
        state.replace_all_uses_with(first)
        output.replace_all_uses_with(first)
    smaller = ir.Node(
        node.domain,
        "Loop",
        [*node.inputs[:2], *(slot[0] for slot in keep)],
        num_outputs=len(outputs),
        name=node.name,
    )
    node.graph.insert_after(node, smaller)
    for old, new in zip(outputs, smaller.outputs, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    del node.attributes["body"]
    node.graph.remove(node, safe=True)
    smaller.attributes["body"] = ir.AttrGraph("body", body)


def _source(value):
    """What `value` is a copy of."""
    while value.producer() is not None and value.producer().op_type == "Identity":
        value = value.producer().inputs[0]
    return value


def fold_constants(model, known):
    """Puts constants in the place of what depends on constants only."""
    changed, main = 0, model.graph
    for node in all_nodes(main):
        if node.op_type in RANDOM or len(node.outputs) != 1 or _has_graphs(node):
            continue
        output = node.outputs[0]
        array = None
        contents = known.data.get(output)
        if contents is not None and not any(isinstance(item, Size) for item in contents.flat):
            array = np.array(contents.tolist(), dtype=_integer_type(node, output))
        elif all(value is None or _constant(value) is not None for value in node.inputs):
            array = _evaluate(node, model)
        if array is None or output.is_graph_output():
            continue
        constant = ir.Value(name=f"{output.name}/constant", const_value=ir.tensor(array))
        constant.dtype, constant.shape = constant.const_value.dtype, constant.const_value.shape
        main.register_initializer(constant)
        output.replace_all_uses_with(constant)
        node.graph.remove(node, safe=True)
        changed += 1
    return changed


def _has_graphs(node):
    return any(item.type == ir.AttributeType.GRAPH for item in node.attributes.values())


def _integer_type(node, output):
    if output.dtype is not None:
        return output.dtype.numpy()
    if node.op_type == "Cast":
        return ir.DataType(node.attributes["to"].value).numpy()
    return np.int64 if node.op_type in ("Shape", "Size") else _dtype_of(node)


def _dtype_of(node):
    first = next(value for value in node.inputs if value is not None)
    return np.int64 if first.dtype is None else first.dtype.numpy()


def _constant(value):
    return value.const_value if value.is_initializer() else None


def _evaluate(node, model):
    """The output of a node with constant inputs as an array, or `None` where it is too large."""
    inputs = {value.name: _constant(value) for value in node.inputs if value is not None}
    if any(value is not None and value.meta.get("weight") for value in node.inputs):
        return None  # runtimes fold these too, and the file keeps the weights as they were trained
    if any(tensor.size > LARGEST_FOLDED for tensor in inputs.values()):
        return None
    if node.op_type in ("Expand", "ConstantOfShape", "Tile", "Range"):
        return None
    proto = onnx.helper.make_graph(
        [ir.to_proto(node)],
        "fold",
        [onnx.helper.make_tensor_value_info(name, int(tensor.dtype), list(tensor.shape))
         for name, tensor in inputs.items()],
        [onnx.helper.make_empty_tensor_value_info(node.outputs[0].name)],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid(*item) for item in model.opset_imports.items()]
    evaluator = ReferenceEvaluator(onnx.helper.make_model(proto, opset_imports=opsets))
    (result,) = evaluator.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    return np.asarray(result)


def plain_reshapes(graph, known):
    """Lets every Reshape read what was reshaped before it, and makes its target a constant.

    A constant can say all but one size: 0 stands for the input's own size, -1 for what is left.
    """
    changed = 0
    for node in all_nodes(graph):
        if not _is_reshape(node):
            continue
        value, target = node.inputs[0], known.dims.get(node.outputs[0])
        if target is None or 0 in target:
            continue
        if _is_reshape(value.producer()):
            value = value.producer().inputs[0]
        elif node.op_type != "Reshape" or _constant(node.inputs[1]) is not None:
            continue
        dims = known.dims.get(value)
        sizes = None if dims is None else _target(dims, target)
        if sizes is not None:
            node.op_type = "Reshape"
            node.replace_input_with(0, value)
            node.replace_input_with(1, constant(graph, f"{node.name}/target", sizes))
            changed += 1
    return changed


def _is_reshape(node):
    return (
        node is not None
        and node.op_type in ("Reshape", "Squeeze", "Unsqueeze")
        and len(node.inputs) == 2
        and not attribute(node, "allowzero", 0)
    )


def _target(dims, target):
    """A constant that reshapes `dims` to `target`, or `None` where two sizes are open."""
    sizes = [size if isinstance(size, int) else -1 for size in target]
    for i, size in enumerate(target):
        if sizes.count(-1) > 1 and sizes[i] == -1 and i < len(dims) and dims[i] == size:
            sizes[i] = 0
    return sizes if sizes.count(-1) <= 1 else None


def constant(graph, name, numbers, dtype=np.int64):
    """A new initializer of `graph`."""
    tensor = ir.tensor(np.array(numbers, dtype=dtype))
    base, number = name, 0
    while name in graph.initializers:
        number += 1
        name = f"{base}_{number}"
    value = ir.Value(name=name, const_value=tensor, shape=tensor.shape)
    value.dtype = tensor.dtype
    graph.register_initializer(value)
    return value


def remove_no_ops(graph, known):
    """Steps over nodes that pass on their input: same type, same shape, same order."""
    changed = 0
    for node in all_nodes(graph):
        if not node.outputs or node.outputs[0].is_graph_output() or not node.inputs:
            continue
        value, output = node.inputs[0], node.outputs[0]
        if _is_no_op(node, known):
            output.replace_all_uses_with(value)
            node.graph.remove(node, safe=True)
            changed += 1
        elif node.op_type == "Gather" and _negative_index(node.inputs[1]) is not None:
            # Indices below 0 count from the end in Gather itself.
            node.replace_input_with(1, _negative_index(node.inputs[1]))
            changed += 1
    return changed


def _is_no_op(node, known):
    value, output = node.inputs[0], node.outputs[0]
    before, after = known.dims.get(value), known.dims.get(output)
    if node.op_type == "Cast":
        indices = value.producer() is not None and value in value.producer().outputs[1:]
        dtype = ir.DataType.INT64 if indices and value.producer().op_type == "TopK" else value.dtype
        return dtype is not None and dtype == node.attributes["to"].value
    if node.op_type == "Transpose":
        order = attribute(node, "perm", None)
        return order is not None and list(order) == sorted(order)
    if node.op_type in ("Reshape", "Expand", "Unsqueeze", "Squeeze"):
        return before is not None and before == after
    if node.op_type == "Slice":
        starts = known.constant(node.inputs[1])
        whole = before is not None and before == after and starts is not None and not any(starts)
        return whole and (
            len(node.inputs) < 5 or known.constant(node.inputs[4]) == [1] * len(starts)
        )
    if node.op_type == "And":
        return node.inputs[0] is node.inputs[1]
    if node.op_type == "Concat":
        return len(node.inputs) == 1
    if node.op_type in ("Add", "Mul", "Div", "Sub") and before is not None and before == after:
        return _is_all(node.inputs[1], 0 if node.op_type in ("Add", "Sub") else 1)
    return False


def _is_all(value, number):
    tensor = _constant(value)
    return tensor is not None and tensor.size == 1 and tensor.numpy().flat[0] == number


def _negative_index(value):
    """`i` where `value` is `where(i < 0, i + size, i)` in tf2onnx's words, else `None`.

    These are `cast(i < 0) * (i + size) + i * cast(not(i < 0))`.
    """
    sum_ = value.producer()
    if sum_ is None or sum_.op_type != "Add":
        return None
    chosen, other = (item.producer() for item in sum_.inputs)
    if chosen is None or other is None or chosen.op_type != "Mul" or other.op_type != "Mul":
        return None
    index, shifted = other.inputs[0], chosen.inputs[1].producer()
    below = _below_zero(chosen.inputs[0], index)
    inverse = other.inputs[1].producer()
    inverse = inverse and inverse.op_type == "Cast" and inverse.inputs[0].producer()
    if not below or shifted is None or shifted.op_type != "Add" or shifted.inputs[0] is not index:
        return None
    if not inverse or inverse.op_type != "Not" or inverse.inputs[0] is not below:
        return None
    return index


def _below_zero(value, index):
    """The value of `index < 0` that was cast to `value`, or `None`."""
    cast = value.producer()
    less = cast and cast.op_type == "Cast" and cast.inputs[0].producer()
    if not less or less.op_type != "Less" or not _is_all(less.inputs[1], 0):
        return None
    compared = less.inputs[0].producer()
    same = less.inputs[0] is index or (
        compared is not None and compared.op_type == "Cast" and compared.inputs[0] is index
    )
    return cast.inputs[0] if same else None


def hoist(graph):
    """Moves out of each loop what depends on nothing in it."""
    changed = 0
    for loop in list(graph):
        if loop.op_type != "Loop":
            continue
        body = loop.attributes["body"].value
        changed += hoist(body)
        for node in list(body):
            inside = any(value is not None and value.graph is body for value in node.inputs)
            if inside or node.op_type in RANDOM or _has_graphs(node) or not node.inputs:
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
    those two graphs further out: from there a product of few rows takes twice as long.
    """
    for loop in all_nodes(main):
        if loop.op_type == "Loop" and loop.graph is not main:
            for value in list(main.initializers.values()):
                _sink(value, main, loop.attributes["body"].value)


def _sink(value, main, body):
    readers = {user for user, _ in value.uses()}
    inside = [user for user in readers if user.graph is body]
    if len(inside) == len(readers) > 0:
        del main.initializers[value.name]
        body.register_initializer(value)
        return
    for user in inside:
        if user.op_type in ("MatMul", "FusedMatMul"):
            copy = ir.Value(name=f"{value.name}/step", const_value=value.const_value)
            copy.dtype, copy.shape = value.dtype, value.shape
            body.register_initializer(copy)
            user.replace_input_with(list(user.inputs).index(value), copy)
