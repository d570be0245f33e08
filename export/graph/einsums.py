"""Sums of products (Einsum) as products of matrices.

ONNX Runtime packs products of matrices for speed, they can be quantised, and the rules of `fuse`
look for them. Its Einsum can do nothing of this, and an empty batch ends its process.

Shapes: B batch, T queries, S keys, D d_model, H heads, K size of a head.
"""

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.nodes import add_initializer, all_nodes, attribute
from keras_transformer.export.graph.shapes import Known
from keras_transformer.export.graph.sizes import product


def multiply_matrices(graph):
    """Writes every Einsum as MatMul, or as Mul where nothing is summed.

    An Einsum that reads an axis twice, such as a diagonal, stays as it is.
    """
    _multiply_weights(graph)
    sums = [node for node in all_nodes(graph) if node.op_type == "Einsum"]
    known = Known(graph) if sums else None
    for node in sums:
        terms = _terms(known, node)
        if terms is not None:
            _write_sum(graph, node, *terms)


def _terms(known, node):
    """The axes' letters of each input and of the output of an Einsum, or `None`."""
    inputs, arrow, output = attribute(node, "equation", "").replace(" ", "").partition("->")
    inputs = inputs.split(",")
    ranks = [len(known.dims.get(value) or ()) - len(term) + 3
             for value, term in zip(node.inputs, inputs, strict=True) if "." in term]  # fmt: skip
    if not arrow or len(inputs) > 2 or len(set(ranks)) > 1 or any(rank < 0 for rank in ranks):
        return None
    free = "".join(chr(ord("A") + i) for i in range(ranks[0])) if ranks else ""
    inputs, output = [term.replace("...", free) for term in inputs], output.replace("...", free)
    return None if any(len(set(term)) < len(term) for term in inputs) else (inputs, output)


def _write_sum(graph, node, inputs, output):
    """Puts a product in the place of one Einsum.

    before   y = Einsum("btnh,bsnh->bnts", q, k)
    after    y = MatMul(Transpose(q, [0, 2, 1, 3]), Transpose(k, [0, 2, 3, 1]))

    Args:
        graph: the outer graph.
        node: the Einsum.
        inputs, output: the letters, from `_terms`.
    """
    write = _Axes(graph, node.name)
    values = []
    for i, letters in enumerate(inputs):
        kept = "".join(inputs[:i] + inputs[i + 1 :]) + output
        values.append(write.sum(node.inputs[i], letters, kept))
    result, letters = write.multiply(*values, output) if len(values) == 2 else values[0]
    result = write.make.op("Identity", [write.order(result, letters, output)])
    old = node.outputs[0]
    node.prepend(list(write.make.nodes))
    result.name, result.type, result.shape = old.name, old.type, old.shape
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)


class _Axes:
    """Writes operators on arrays whose axes have letters; a blank is an axis of size 1.

    Args:
        graph: the outer graph.
        name: prefix of constants.
    """

    def __init__(self, graph, name):
        self.graph, self.name, self.make = graph, name, ir.tape.Tape()

    def _integers(self, items):
        return add_initializer(self.graph, f"{self.name}/axes", np.array(items, np.int64))

    def sum(self, value, letters, kept):
        """The sum over the axes that are not in `kept`, and the letters of the others."""
        gone = [axis for axis, letter in enumerate(letters) if letter not in kept]
        if gone:
            value = self.make.op("ReduceSum", [value, self._integers(gone)], {"keepdims": 0})
        return value, "".join(letter for letter in letters if letter in kept)

    def order(self, value, letters, wanted):
        """The value with its axes in another order, and with blanks."""
        here = wanted.replace(" ", "")
        if letters != here:
            perm = [letters.index(letter) for letter in here]
            value = self.make.op("Transpose", [value], {"perm": perm})
        blanks = [axis for axis, letter in enumerate(wanted) if letter == " "]
        return self.make.op("Unsqueeze", [value, self._integers(blanks)]) if blanks else value

    def multiply(self, one, two, output):
        """The product of two pairs of a value and its letters; the result and its letters."""
        (one, x), (two, y) = one, two
        batch = "".join(letter for letter in output if letter in x and letter in y)
        rows = "".join(letter for letter in output if letter not in y)
        columns = "".join(letter for letter in output if letter not in x)
        inner = "".join(letter for letter in x if letter not in output)
        if not inner:
            one, two = (
                self.order(value, axes, "".join(c if c in axes else " " for c in output))
                for value, axes in ((one, x), (two, y))
            )
            return self.make.op("Mul", [one, two]), output
        one = self.order(one, x, batch + (rows or " ") + inner)
        two = self.order(two, y, batch + inner + (columns or " "))
        first = len(batch)
        groups = [len(rows) or 1, len(inner), len(columns) or 1]
        behind = [
            self._sizes(one, first, first + groups[0]),
            self._sizes(two, first + groups[1], first + groups[1] + groups[2]),
        ]
        # Without a batch MatMul takes rows of any number of axes.
        one = self._merge(one, first, *([groups[0]] if batch else [1] * groups[0]), groups[1])
        two = self._merge(two, first, *groups[1:])
        result = self.make.op("MatMul", [one, two])
        if (batch and groups[0] > 1) or groups[2] > 1:
            shape = [self._sizes(result, 0, first), *behind]
            shape = self.make.op("Concat", shape, {"axis": 0})
            result = self.make.op("Reshape", [result, shape], {"allowzero": 1})
        blanks = [first] * (not rows) + [first + groups[0]] * (not columns)
        if blanks:
            result = self.make.op("Squeeze", [result, self._integers(blanks)])
        return result, batch + rows + columns

    def _sizes(self, value, start, end):
        return self.make.op("Shape", [value], {"start": start, "end": end})

    def _merge(self, value, first, *counts):
        """Merges a number of axes of the value into one, beginning with axis `first`."""
        if max(counts) == 1:
            return value
        parts = [self._sizes(value, 0, first)]
        for count in counts:
            size = self._sizes(value, first, first + count)
            parts.append(self.make.op("ReduceProd", [size], {"keepdims": 1}))
            first += count
        shape = self.make.op("Concat", parts, {"axis": 0})
        return self.make.op("Reshape", [value, shape], {"allowzero": 1})


def _multiply_weights(graph):
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
    """Number of axes, last of x and first of the weight, that are summed over; else `None`."""
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
        or any(output.is_graph_output() for output in outputs)
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
