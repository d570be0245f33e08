"""Products with weights: on vectors as they are, and queries, keys and values in one.

Keras' Dense makes its input flat, (B T, D), multiplies, and gives the rows their places back. These
reshapes stand between a product and its bias, its activation and the attention that reads it, so
they are moved out of the way first.

Shapes: B batch, T positions, H heads, K size of a head, D d_model, V vocabulary.
"""

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.fuse_rule import Rule, integers, join_heads, vector
from keras_transformer.export.graph.nodes import MICROSOFT, add_initializer, all_nodes
from keras_transformer.export.graph.sizes import product

# Stands for `query` in the name of a weight that queries, keys and values were packed into.
PACKED = "query_key_value"


def product_rules(known):
    """Products of vectors with matrices take their input as it is, without making it flat first."""
    return [
        FlatProduct.rule(known, remove_nodes=False),
        LateBias.rule(known),
        LateRelu.rule(known),
    ]


def logits_rules(known):
    """The projection to the vocabulary."""
    return [Logits.rule(known)]


class FlatProduct(Rule):
    """A product whose input was made flat for it.

    before   y = MatMul(Reshape(x, [-1, D]), w)      x of (B, T, D), or of heads (B, T, H, K)
    after    y = Reshape(MatMul(x, w), [-1, N])
    """

    def pattern(self, op, x, shape, weight):
        return op.MatMul(op.Reshape(x, shape, _outputs=["rows"]), weight)

    def check(self, context, x, weight, rows, **_):
        dims, matrix = self.known.dims.get(x), self.known.dims.get(weight)
        if not dims or not matrix or len(matrix) != 2 or len(self.known.dims.get(rows, ())) != 2:
            return False
        return len(dims) in (3, 4) and product(dims[2:]) == matrix[0]

    def rewrite(self, op, x, shape, weight, **_):
        if len(self.known.dims[x]) == 4:
            x = join_heads(op, x, self.known)
        rows = integers(op, -1, self.known.dims[weight][1])
        return op.Reshape(op.MatMul(x, weight), rows)


class _Late(Rule):
    """Something done to rows that were made flat, and that vectors in their places can have."""

    def keeps_vectors(self, x, flat):
        """Whether making it flat leaves the last axis, that of the vectors, as it is."""
        dims, rows = self.known.dims.get(x), self.known.dims.get(flat)
        return bool(dims and rows and len(rows) == 2 < len(dims) and dims[-1] == rows[-1])


class LateBias(_Late):
    """The bias behind such a product.

    before   y = Add(Reshape(x, [-1, D]), bias)
    after    y = Reshape(Add(x, bias), [-1, D])
    """

    def pattern(self, op, x, shape, bias):
        return op.Add(op.Reshape(x, shape, _outputs=["flat"]), bias)

    def check(self, context, x, flat, bias, **_):
        return self.keeps_vectors(x, flat) and vector(bias) is not None

    def rewrite(self, op, x, shape, bias, **_):
        return op.Reshape(op.Add(x, bias), shape)


class LateRelu(_Late):
    """The activation behind such a product.

    before   y = Relu(Reshape(x, [-1, D]))
    after    y = Reshape(Relu(x), [-1, D])
    """

    def pattern(self, op, x, shape):
        return op.Relu(op.Reshape(x, shape, _outputs=["flat"]))

    def check(self, context, x, flat, **_):
        return self.keeps_vectors(x, flat)

    def rewrite(self, op, x, shape, **_):
        return op.Reshape(op.Relu(x), shape)


class Logits(Rule):
    """The projection to the vocabulary, by the embedding itself.

    before   logits = MatMul(x, Transpose(embedding))      embedding of (V, D)
    after    logits = FusedMatMul(x, embedding, transB=1)
    """

    def pattern(self, op, x, embedding):
        return op.MatMul(x, op.Transpose(embedding, perm=[1, 0]))

    def check(self, context, x, embedding):
        return embedding.const_value is not None

    def rewrite(self, op, x, embedding):
        return op.FusedMatMul(x, embedding, transB=1, _domain=MICROSOFT)


def pack_projections(graph):
    """Computes queries, keys and values of a self-attention in one product, then splits them.

    before   MultiHeadAttention(x q, x k, x v)
    after    MultiHeadAttention(Split(x [q k v]))

    The values of an encoder are multiplied by 0 or 1 on the way, where a sentence is all padding. A
    layer that is used twice keeps one packed weight.
    """
    packed = {}  # weights that were put side by side -> what they became
    for node in all_nodes(graph):
        if node.op_type != "MultiHeadAttention":
            continue
        products = [None if value is None else value.producer() for value in node.inputs[:3]]
        scaled = products[2] if products[2] is not None and products[2].op_type == "Mul" else None
        if scaled is not None:
            products[2] = scaled.inputs[0].producer()
        biases = [None] * 3
        if all(item is not None and item.op_type == "Add" for item in products):
            biases = [item.inputs[1] for item in products]
            products = [item.inputs[0].producer() for item in products]
        if not all(_is_projection(item, products[0], node.graph) for item in products):
            continue
        if any(item is not None and item.const_value is None for item in biases):
            continue
        queries, keys, values = _packed_product(
            graph, products, biases, packed, before=scaled or node
        )
        node.replace_input_with(0, queries)
        node.replace_input_with(1, keys)
        if scaled is None:
            node.replace_input_with(2, values)
        else:
            scaled.replace_input_with(0, values)


def _packed_product(graph, products, biases, packed, before):
    """Writes one product in the place of three; returns its parts."""
    weights = [item.inputs[1] for item in products]
    name = weights[0].name.replace("/query/", f"/{PACKED}/")
    make = ir.tape.Tape()
    x = make.op("MatMul", [products[0].inputs[0], _joined(graph, name, weights, packed)])
    if biases[0] is not None:
        bias = _joined(graph, name.replace("kernel", "bias"), biases, packed)
        x = make.op("Add", [x, bias])
    sizes = [item.const_value.shape[1] for item in weights]
    split = add_initializer(graph, f"{name}/sizes", np.array(sizes, np.int64))
    parts = make.op_multi_out("Split", [x, split], {"axis": -1}, num_outputs=3)
    before.prepend(list(make.nodes))
    return parts


def _is_projection(node, first, graph):
    """Whether a node is a product with a weight, of the same input as `first`, for one reader."""
    return (
        node is not None
        and first is not None
        and node.op_type == "MatMul"
        and node.graph is graph
        and node.inputs[0] is first.inputs[0]
        and node.inputs[1].const_value is not None
        and len(node.outputs[0].uses()) == 1
    )


def _joined(graph, name, weights, packed):
    """Weights side by side, as a weight of `graph`; the same one for the same weights."""
    if tuple(weights) not in packed:
        array = np.concatenate([value.const_value.numpy() for value in weights], axis=-1)
        value = packed[tuple(weights)] = add_initializer(graph, name, array, weight=True)
        value.meta["packed"] = [item.name for item in weights]  # for `quantize.is_kept`
    return packed[tuple(weights)]
