"""Rewrites products with weights: without reshapes, as `Gemm` for large batches, and for logits.

Keras' Dense flattens its input to (B T, D), multiplies, and restores the axes. These reshapes
separate a product from its bias, its activation and the attention that reads it.

Shapes: B batch, T positions, H heads, K size of a head, D d_model, N columns of a weight, V
vocabulary.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.fuse_patterns import Rule, vector
from keras_transformer.export.graph.nodes import (
    MICROSOFT,
    add_initializer,
    all_nodes,
    integers,
    only_reader,
    producer,
    replace_node,
)
from keras_transformer.export.graph.shape_data import product
from keras_transformer.export.graph.shapes import InferredShapes

# ONNX Runtime fuses Gemm with each of these, except for Gelu.
ACTIVATIONS = ("Gelu", "Relu", "Sigmoid", "Tanh")


def multiply_vectors(model: ir.Model, shapes: InferredShapes) -> int:
    """Makes products, biases, ReLUs and GELUs read vectors that are not flat; returns how many.

    before   y = Relu(Add(MatMul(Reshape(x, [-1, D]), w), b))            x (B, T, D) or (B, T, H, K)
    after    y = Reshape(Relu(Add(MatMul(x, w), b)), [-1, N])
    """
    changed = 0
    for node in all_nodes(model.graph):
        reshape = producer(node.inputs[0], "Reshape") if node.inputs else None
        if not reshape or not _reads_rows(node, reshape, shapes):
            continue
        tape, x = ir.tape.Tape(), reshape.inputs[0]
        dims, size = shapes.dims[x], shapes.dims[node.outputs[0]][-1]
        if len(dims) == 4 and node.op_type == "MatMul":
            x = tape.op("Reshape", [x, integers(tape, 0, 0, product(dims[2:]))])
        y = tape.op(node.op_type, [x, *node.inputs[1:]], domain=node.domain)
        y.type = node.outputs[0].type
        shapes.dims[y] = (*dims[: 2 if node.op_type == "MatMul" else -1], size)
        rows = tape.op("Reshape", [y, integers(tape, -1, size)])
        shapes.dims[rows] = shapes.dims[node.outputs[0]]
        replace_node(node, tape, rows)
        changed += 1
    return changed


def _reads_rows(node: ir.Node, reshape: ir.Node, shapes: InferredShapes) -> bool:
    """Returns whether a node of flat rows could read the vectors instead."""
    dims, rows = (shapes.dims.get(value[0]) for value in (reshape.inputs, reshape.outputs))
    if not dims or not rows or len(rows) != 2 or not isinstance(rows[-1], int):
        return False
    if node.op_type == "MatMul":
        matrix = shapes.dims.get(node.inputs[1]) or ()
        sizes = len(dims) in (3, 4) and len(matrix) == 2 and isinstance(matrix[1], int)
        return sizes and product(dims[2:]) == matrix[0]
    if len(dims) < 3 or dims[-1] != rows[-1]:
        return False
    adds_bias = node.op_type == "Add" and vector(node.inputs[1]) is not None
    return node.op_type in ("Gelu", "Relu") or adds_bias


def flatten_networks(graph: ir.Graph, shapes: InferredShapes) -> None:
    """Writes feed-forward networks as `Gemm`: product, bias and activation in one operator.

    ONNX Runtime adds a bias while it multiplies, and applies an activation, but only to matrices.
    On CPUs a feed-forward network of a large batch takes a twentieth less time. The steps of a
    search stay unchanged, because there nodes cost more than numbers.

    before   h = Relu(Add(MatMul(x, w), b)); y = Add(MatMul(h, v), c)          x (B, T, D)
    after    h = Relu(Gemm(Reshape(x, [-1, D]), w, b)); y = Reshape(Gemm(h, v, c), [B, T, D])

    Args:
        graph: the outer graph of a model.
        shapes: its shapes.
    """
    rows = {}  # array (B, T, N) -> the same as (B T, N)
    targets = {}  # sizes (B, T) or (B, T, N) -> the vector that holds them
    for node in list(graph):
        if node.op_type != "MatMul" or len(shapes.dims.get(node.inputs[0]) or ()) != 3:
            continue
        x, weight = node.inputs
        add = only_reader(node.outputs[0], "Add")
        if weight.const_value is None or len(weight.const_value.shape) != 2 or not add:
            continue
        bias = vector(add.inputs[1])
        if bias is None or list(bias.const_value.shape) != [weight.const_value.shape[1]]:
            continue
        activation = only_reader(add.outputs[0], *ACTIVATIONS)
        last = activation or add
        if (not activation and x not in rows) or last.outputs[0].is_graph_output():
            continue
        tape, dims, columns = ir.tape.Tape(), shapes.dims[x], shapes.dims[weight][1]
        if x not in rows:
            target = add_initializer(graph, f"{node.name}/rows", np.array([-1, dims[2]]))
            rows[x] = tape.op("Reshape", [x, target])
        y = tape.op("Gemm", [rows[x], weight, bias])
        y = tape.op(activation.op_type, [y], domain=activation.domain) if activation else y
        places, after = dims[:2], (*dims[:2], columns)
        if places not in targets:
            targets[places] = tape.op("Shape", [x], {"start": 0, "end": 2})
        if after not in targets:
            width = add_initializer(graph, f"{node.name}/columns", np.array([columns]))
            targets[after] = tape.op("Concat", [targets[places], width], {"axis": 0})
        output = tape.op("Reshape", [y, targets[after]], {"allowzero": 1})
        rows[output], shapes.dims[output] = y, after
        replace_node(last, tape, output)


class Logits(Rule):
    """Computes logits by the embedding without transposing it.

    before   logits = MatMul(x, Transpose(embedding))      embedding of (V, D)
    after    logits = FusedMatMul(x, embedding, transB=1)
    """

    def pattern(self, op: Any, x: Any, embedding: Any) -> Any:
        return op.MatMul(x, op.Transpose(embedding, perm=[1, 0]))

    def check(self, context: Any, x: ir.Value, embedding: ir.Value) -> bool:
        return embedding.const_value is not None

    def rewrite(self, op: Any, x: ir.Value, embedding: ir.Value) -> ir.Value:
        return op.FusedMatMul(x, embedding, transB=1, _domain=MICROSOFT)
