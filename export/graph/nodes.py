"""Small helpers on nodes and values of `onnx_ir` that every pass needs."""

import numpy as np
import onnx_ir as ir

# The domain of ONNX Runtime's own operators.
MICROSOFT = "com.microsoft"
# Operators that give something else each time.
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"}


def all_nodes(graph):
    """Nodes of a graph and of all graphs inside, in order, as a list that survives changes."""
    found = []
    for node in graph:
        found.append(node)
        for item in node.attributes.values():
            if item.type == ir.AttributeType.GRAPH:
                found += all_nodes(item.value)
    return found


def attribute(node, name, default):
    """The value of a node's attribute, or `default` where it is not set."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def has_graphs(node):
    """Whether a node holds graphs of its own, as Loop and If do."""
    return any(item.type == ir.AttributeType.GRAPH for item in node.attributes.values())


def constant(value):
    """The tensor of an initializer, or `None` for a value that is computed or fed."""
    return value.const_value if value.is_initializer() else None


def number(value):
    """The one number that a constant holds, or `None`."""
    tensor = None if value is None else value.const_value
    return float(tensor.numpy().flat[0]) if tensor is not None and tensor.size == 1 else None


def is_number(value, expected):
    """Whether a value is a constant of one element, and that is `expected`."""
    return constant(value) is not None and number(value) == expected


def add_initializer(graph, name, array, weight=False):
    """A new initializer of `graph`; the name gets a number where it is taken.

    Args:
        graph: the `onnx_ir.Graph` that will hold it.
        name: wanted name.
        array: NumPy array, or an `onnx_ir` tensor.
        weight: whether it is a weight of the model. Weights are never folded into other constants,
            so that the file holds them as they were trained.

    Returns:
        The `onnx_ir.Value`.
    """
    base, count = name, 0
    while name in graph.initializers:
        count += 1
        name = f"{base}_{count}"
    tensor = ir.tensor(np.asarray(array), name=name)
    value = ir.val(name, const_value=tensor)
    if weight:
        value.meta["weight"] = True
    graph.register_initializer(value)
    return value
