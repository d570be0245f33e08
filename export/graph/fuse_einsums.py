"""The sums of Keras' EinsumDense and MultiHeadAttention, as products and as one attention.

ONNX Runtime packs products of matrices, and they can be quantised. An Einsum is neither.

Shapes: B batch, T queries, S keys, D d_model, H heads, K size of a head.
"""

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.fuse_attention import PlainAttention
from keras_transformer.export.graph.fuse_rule import heads
from keras_transformer.export.graph.nodes import add_initializer, attribute, number
from keras_transformer.export.graph.sizes import product


def multiply_matrices(graph):
    """Writes every Einsum whose weight can be a matrix as MatMul.

    before   y = Einsum("btd,dhk->bthk", x, w)               w (D, H, K)
    after    y = Reshape(MatMul(x, w), [0, 0, H, K])         w (D, H K)

    before   y = Einsum("bthk,hkd->btd", x, w)               w (H, K, D)
    after    y = MatMul(Reshape(x, [0, 0, H K]), w)          w (H K, D)

    A weight that others read in its own shape stays as it is.
    """
    for weight in list(graph.initializers.values()):
        readers = [user for user, _ in weight.uses()]
        summed = {_summed_axes(node, weight) for node in readers}
        if len(summed) != 1 or (axes := summed.pop()) is None:
            continue
        before, after = weight.const_value.shape[:axes], weight.const_value.shape[axes:]
        matrix = weight.const_value.numpy().reshape(product(before), product(after))
        weight.const_value = ir.tensor(matrix, name=weight.name)
        weight.shape = ir.Shape(matrix.shape)
        outputs = [node.outputs[0] for node in readers]
        bias = _bias_of_all(outputs, after)
        for node in readers:
            _write_product(graph, node, before, after, bias)


def _summed_axes(node, weight):
    """How many axes, the last of x and the first of the weight, are summed over; else `None`."""
    if node.op_type != "Einsum" or len(node.inputs) != 2 or node.inputs[1] is not weight:
        return None
    letters, arrow, output = attribute(node, "equation", "").replace(" ", "").partition("->")
    x, w = letters.split(",")
    if not arrow or "." in letters or len(set(x)) < len(x) or len(set(w)) < len(w):
        return None
    axes = len(set(x) & set(w))
    kept = x[: len(x) - axes] + w[axes:]
    return axes if 0 < axes < len(w) and x.endswith(w[:axes]) and output == kept else None


def _bias_of_all(outputs, sizes):
    """The bias of these sizes that each output has, and nothing else; made flat; or `None`."""
    adds = [user for output in outputs for user, _ in output.uses()]
    bias = adds[0].inputs[1] if adds and adds[0].op_type == "Add" else None
    if (
        bias is None
        or bias.const_value is None
        or len(adds) != len(outputs)
        or {user for user, _ in bias.uses()} != set(adds)
        or any(node.op_type != "Add" or node.inputs[1] is not bias for node in adds)
        or tuple(bias.const_value.shape) != tuple(sizes)
    ):
        return None
    array = bias.const_value.numpy().reshape(-1)
    bias.const_value, bias.shape = ir.tensor(array, name=bias.name), ir.Shape(array.shape)
    return bias


def _write_product(graph, node, before, after, bias):
    """Puts the product in the place of one Einsum, and of the Add behind it if there is a bias."""
    make, x = ir.tape.Tape(), node.inputs[0]
    letters = attribute(node, "equation", "").replace(" ", "").partition(",")[0]
    places = [0] * (len(letters) - len(before))  # 0 says: as the input has it

    def reshaped(value, sizes):
        target = np.array([*places, *sizes], np.int64)
        target = add_initializer(graph, f"{node.name}/target", target)
        return make.op("Reshape", [value, target])

    if len(before) > 1:
        x = reshaped(x, [product(before)])
    y, old = make.op("MatMul", [x, node.inputs[1]]), node.outputs[0]
    if bias is not None:
        ((add, _),) = old.uses()
        y, old = make.op("Add", [y, bias]), add.outputs[0]
    if len(after) > 1:
        y = reshaped(y, after)
    node.prepend(list(make.nodes))
    y.name, y.type, y.shape = old.name, old.type, old.shape
    old.replace_all_uses_with(y, replace_graph_outputs=True)
    node.graph.remove({node, old.producer()}, safe=True)


def einsum_rules(known):
    """Keras' `MultiHeadAttention`."""
    return [KerasAttention.rule(known)]


class KerasAttention(PlainAttention):
    """Attention as Keras' layer writes it, without a mask.

    before   output = Einsum("bnts,bsnh->btnh", Softmax(scale Einsum("btnh,bsnh->bnts", q, k)), v)
    after    output = MultiHeadAttention(q, k, v)
    """

    def pattern(self, op, query, key, value, scale):
        scores = op.Mul(op.Einsum(query, key, _outputs=["scores"]), scale)
        return op.Einsum(op.Softmax(scores), value, _outputs=["output"])

    def check(self, context, query, key, value, scale, scores, output, **_):
        sizes = [heads(self.known, item) for item in (query, key, value)]
        sums = [attribute(item.producer(), "equation", "") for item in (scores, output)]
        return (
            None not in sizes
            and len(set(sizes)) == 1
            and number(scale) is not None
            and sums == ["btnh,bsnh->bnts", "bnts,bsnh->btnh"]
        )
