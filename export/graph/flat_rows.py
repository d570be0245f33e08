"""Feed-forward networks on rows: product, bias and activation are one operator for flat arrays.

Shapes: B batch, T positions, D d_model, N columns of a weight.
"""

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.fuse_rule import vector
from keras_transformer.export.graph.nodes import add_initializer

ACTIVATIONS = ("Relu", "Sigmoid", "Tanh")  # ONNX Runtime makes one operator of Gemm and these


def flatten_networks(graph, known):
    """Writes products with bias and activation, and the product that reads them, as `Gemm`.

    ONNX Runtime adds a bias while it multiplies, and applies an activation, but for matrices only.
    On CPUs a feed-forward network of a large batch takes a twentieth less time so. It is not for
    the steps of a search, where nodes cost more than numbers, nor for reduced precisions.

    before   h = Relu(Add(MatMul(x, w), b)); y = Add(MatMul(h, v), c)          x (B, T, D)
    after    h = Relu(Gemm(Reshape(x, [-1, D]), w, b)); y = Reshape(Gemm(h, v, c), [B, T, D])

    Args:
        graph: the outer `onnx_ir.Graph` of a model.
        known: `shapes.Known` of it as it is now.
    """
    rows = {}  # array (B, T, N) -> the same as (B T, N)
    shapes = {}  # (B, T), or (B, T, N), as they are known -> the vector that holds them
    for node in list(graph):
        if node.op_type != "MatMul" or len(known.dims.get(node.inputs[0]) or ()) != 3:
            continue
        add = _only_reader(node, "Add")
        if node.inputs[1].const_value is None or add is None or vector(add.inputs[1]) is None:
            continue
        activation = _only_reader(add, *ACTIVATIONS)
        if activation is None and node.inputs[0] not in rows:
            continue
        if not (activation or add).outputs[0].is_graph_output():
            _flatten(graph, known, rows, shapes, node, add, activation)


def _only_reader(node, *operators):
    """The node of one of these operators that alone reads another one's output first, or `None`."""
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or node.outputs[0].is_graph_output():
        return None
    reader, index = uses[0]
    here = reader.graph is node.graph and index == 0 and reader.op_type in operators
    return reader if here else None


def _flatten(graph, known, rows, shapes, node, add, activation):
    """Writes one product on rows; `rows` and `shapes` learn what it brings."""
    x, weight = node.inputs
    dims, columns = known.dims[x], known.dims[weight][1]
    make = ir.tape.Tape()
    if x not in rows:
        target = add_initializer(graph, f"{node.name}/rows", np.array([-1, dims[2]]))
        rows[x] = make.op("Reshape", [x, target])
    flat = make.op("Gemm", [rows[x], weight, vector(add.inputs[1])])
    if activation is not None:
        flat = make.op(activation.op_type, [flat])
    after = (*dims[:2], columns)
    if dims[:2] not in shapes:
        shapes[dims[:2]] = make.op("Shape", [x], {"start": 0, "end": 2})
    if after not in shapes:
        width = add_initializer(graph, f"{node.name}/columns", np.array([columns]))
        shapes[after] = make.op("Concat", [shapes[dims[:2]], width], {"axis": 0})
    output = make.op("Reshape", [flat, shapes[after]], {"allowzero": 1})
    rows[output], known.dims[output] = flat, after
    last = activation or add
    last.append(list(make.nodes))
    last.outputs[0].replace_all_uses_with(output)
    for old in (activation, add, node):
        if old is not None:
            graph.remove(old, safe=True)
