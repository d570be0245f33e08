"""Small helpers on nodes and values of `onnx_ir` that every pass needs."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

# The domain of ONNX Runtime's own operators.
MICROSOFT = "com.microsoft"
# Operators that give other results at each run.
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"}


def all_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Lists the nodes of a graph and of all graphs inside, in order; changes do not affect it."""
    return list(graph.all_nodes())


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """Returns the value of a node's attribute, or `default` if it is not set."""
    item = node.attributes.get(name)
    return default if item is None else item.value


def has_graphs(node: ir.Node) -> bool:
    """Returns whether a node contains graphs, as Loop and If do."""
    return any(item.type == ir.AttributeType.GRAPH for item in node.attributes.values())


def constant(value: ir.Value) -> ir.TensorProtocol | None:
    """Returns the tensor of an initializer, or `None` for a value that is computed or fed."""
    return value.const_value if value.is_initializer() else None


def number(value: ir.Value | None) -> float | None:
    """Returns the number in a constant of one element, or `None`."""
    tensor = None if value is None else value.const_value
    return float(tensor.numpy().flat[0]) if tensor is not None and tensor.size == 1 else None


def is_number(value: ir.Value, expected: float) -> bool:
    """Returns whether a value is a constant of one element that equals `expected`."""
    return constant(value) is not None and number(value) == expected


def producer(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """Returns the node that computes a value if it is one of `operators`, else `None`."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in operators else None


def only_reader(value: ir.Value, *operators: str) -> ir.Node | None:
    """Returns a value's only reader if it is one of `operators` in the same graph, else `None`."""
    readers = [node for node, _ in value.uses()]
    if len(readers) != 1 or value.is_graph_output():
        return None
    here = readers[0].graph is value.producer().graph
    return readers[0] if here and readers[0].op_type in operators else None


def other_input(node: ir.Node, value: ir.Value) -> ir.Value:
    """Returns the input of a node of two that is not `value`; `value` itself if both are."""
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def add_initializer(
    graph: ir.Graph, name: str, array: npt.ArrayLike, weight: bool = False
) -> ir.Value:
    """Adds an initializer to `graph`; the name gets a number if it is taken.

    Args:
        graph: the graph that will hold it.
        name: wanted name.
        array: its content.
        weight: whether it is a weight of the model. Weights are never folded into other constants,
            so that the file holds them as they were trained.
    """
    base, count = name, 0
    while name in graph.initializers:
        count += 1
        name = f"{base}_{count}"
    value = ir.val(name, const_value=ir.tensor(np.asarray(array), name=name))
    if weight:
        value.meta["weight"] = True
    graph.register_initializer(value)
    return value


def integers(tape: ir.tape.Tape, *items: int) -> ir.Value:
    """Writes a constant vector of int64 as a node."""
    return tape.op("Constant", [], {"value": ir.tensor(np.array(items, np.int64))})


def substitute(old: ir.Value, new: ir.Value) -> None:
    """Makes all readers of a value read another one, which gets the name, type and shape."""
    new.name, new.type, new.shape = old.name, old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def replace_node(node: ir.Node, tape: ir.tape.Tape, result: ir.Value) -> None:
    """Replaces a node by the nodes of a tape; `result` is its new first output."""
    node.prepend(list(tape.nodes))
    substitute(node.outputs[0], result)
    node.graph.remove(node, safe=True)


def is_float32(value: ir.Value) -> bool:
    """Returns whether a value is float32, by its dtype or the dtypes that it comes from.

    Values without a noted dtype have the dtype of their first input; an unknown one counts as
    float32.
    """
    while value is not None and value.dtype is None:
        node = value.producer()
        if node is None or not node.inputs:
            return True
        if node.op_type == "Cast":
            return node.attributes["to"].value == ir.DataType.FLOAT
        value = node.inputs[0]
    return value is None or value.dtype == ir.DataType.FLOAT
