"""Rewrites sums of products (Einsum) as products of matrices.

ONNX Runtime packs products of matrices for speed, `quantize` reduces them, and `fuse` looks for
them. Einsum supports none of this, and crashes ONNX Runtime if the batch is empty.

Shapes: B batch, T queries, S keys, D d_model, H heads, K size of a head.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.nodes import (
    add_initializer,
    all_nodes,
    attribute,
    only_reader,
    replace_node,
)
from keras_transformer.export.graph.shape_data import product
from keras_transformer.export.graph.shapes import InferredShapes


def multiply_matrices(graph: ir.Graph) -> None:
    """Writes every Einsum as MatMul, or as Mul if nothing is summed.

    An Einsum that reads an axis twice, such as a diagonal, stays as it is.
    """
    _multiply_weights(graph)
    sums = [node for node in all_nodes(graph) if node.op_type == "Einsum"]
    shapes = InferredShapes(graph) if sums else None
    for node in sums:
        letters = _letters(node, shapes)
        if letters is not None:
            _write_sum(graph, node, *letters)


def _equation(node: ir.Node) -> tuple[list[str], str]:
    """Returns the letters of each input and of the output of an Einsum as written."""
    inputs, arrow, output = attribute(node, "equation", "").replace(" ", "").partition("->")
    return inputs.split(",") if arrow else [], output


def _letters(node: ir.Node, shapes: InferredShapes) -> tuple[list[str], str] | None:
    """Returns the same with letters for "...", or `None` if inputs cannot be multiplied."""
    inputs, output = _equation(node)
    ranks = {
        len(shapes.dims.get(value) or ()) - len(letters) + 3
        for value, letters in zip(node.inputs, inputs, strict=False)
        if "." in letters
    }
    if len(inputs) not in (1, 2) or len(ranks) > 1 or any(rank < 0 for rank in ranks):
        return None
    free = "".join(chr(ord("A") + axis) for axis in range(max(ranks, default=0)))
    inputs, output = [item.replace("...", free) for item in inputs], output.replace("...", free)
    return None if any(len(set(item)) < len(item) for item in inputs) else (inputs, output)


def _write_sum(graph: ir.Graph, node: ir.Node, inputs: list[str], output: str) -> None:
    """Replaces one Einsum by a product.

    before   y = Einsum("btnh,bsnh->bnts", q, k)
    after    y = MatMul(Transpose(q, [0, 2, 1, 3]), Transpose(k, [0, 2, 3, 1]))

    Args:
        graph: the outer graph.
        node: the Einsum.
        inputs, output: the letters, from `_letters`.
    """
    writer = _AxisWriter(graph, node.name)
    values = []
    for i, letters in enumerate(inputs):
        kept = "".join(inputs[:i] + inputs[i + 1 :]) + output
        values.append(writer.sum(node.inputs[i], letters, kept))
    result, letters = writer.multiply(*values, output) if len(values) == 2 else values[0]
    result = writer.tape.op("Identity", [writer.order(result, letters, output)])
    replace_node(node, writer.tape, result)


class _AxisWriter:
    """Writes operators on arrays whose axes have letters; a blank is an axis of size 1.

    Args:
        graph: the outer graph.
        name: prefix of constants.
    """

    def __init__(self, graph: ir.Graph, name: str | None) -> None:
        self.graph, self.name, self.tape = graph, name, ir.tape.Tape()

    def _integers(self, items: Sequence[int]) -> ir.Value:
        return add_initializer(self.graph, f"{self.name}/axes", np.array(items, np.int64))

    def sum(self, value: ir.Value, letters: str, kept: str) -> tuple[ir.Value, str]:
        """Sums over the axes that are not in `kept`; also returns the letters of the others."""
        summed = [axis for axis, letter in enumerate(letters) if letter not in kept]
        if summed:
            value = self.tape.op("ReduceSum", [value, self._integers(summed)], {"keepdims": 0})
        return value, "".join(letter for letter in letters if letter in kept)

    def order(self, value: ir.Value, letters: str, wanted: str) -> ir.Value:
        """Reorders the axes of a value, and adds blanks."""
        present = wanted.replace(" ", "")
        if letters != present:
            perm = [letters.index(letter) for letter in present]
            value = self.tape.op("Transpose", [value], {"perm": perm})
        blanks = [axis for axis, letter in enumerate(wanted) if letter == " "]
        return self.tape.op("Unsqueeze", [value, self._integers(blanks)]) if blanks else value

    def multiply(
        self, left: tuple[ir.Value, str], right: tuple[ir.Value, str], output: str
    ) -> tuple[ir.Value, str]:
        """Multiplies two pairs of a value and its letters; returns the result and its letters."""
        (one, x), (two, y) = left, right
        batch = "".join(letter for letter in output if letter in x and letter in y)
        rows = "".join(letter for letter in output if letter not in y)
        columns = "".join(letter for letter in output if letter not in x)
        inner = "".join(letter for letter in x if letter not in output)
        if not inner:
            one, two = (
                self.order(value, axes, "".join(c if c in axes else " " for c in output))
                for value, axes in (left, right)
            )
            return self.tape.op("Mul", [one, two]), output
        one = self.order(one, x, batch + (rows or " ") + inner)
        two = self.order(two, y, batch + inner + (columns or " "))
        first, groups = len(batch), [len(rows) or 1, len(inner), len(columns) or 1]
        sizes = [
            self._sizes(one, first, first + groups[0]),
            self._sizes(two, first + groups[1], first + groups[1] + groups[2]),
        ]
        # Without a batch, MatMul takes any number of axes for rows.
        one = self._merge(one, first, *([groups[0]] if batch else [1] * groups[0]), groups[1])
        two = self._merge(two, first, *groups[1:])
        result = self.tape.op("MatMul", [one, two])
        if (batch and groups[0] > 1) or groups[2] > 1:
            shape = [self._sizes(result, 0, first), *sizes]
            shape = self.tape.op("Concat", shape, {"axis": 0})
            result = self.tape.op("Reshape", [result, shape], {"allowzero": 1})
        blanks = [first] * (not rows) + [first + groups[0]] * (not columns)
        if blanks:
            result = self.tape.op("Squeeze", [result, self._integers(blanks)])
        return result, batch + rows + columns

    def _sizes(self, value: ir.Value, start: int, end: int) -> ir.Value:
        return self.tape.op("Shape", [value], {"start": start, "end": end})

    def _merge(self, value: ir.Value, first: int, *counts: int) -> ir.Value:
        """Merges groups of axes of a value, from axis `first` on, into one axis each."""
        if max(counts) == 1:
            return value
        parts = [self._sizes(value, 0, first)]
        for count in counts:
            size = self._sizes(value, first, first + count)
            parts.append(self.tape.op("ReduceProd", [size], {"keepdims": 1}))
            first += count
        shape = self.tape.op("Concat", parts, {"axis": 0})
        return self.tape.op("Reshape", [value, shape], {"allowzero": 1})


def _multiply_weights(graph: ir.Graph) -> None:
    """Writes every Einsum whose weight can be a matrix as MatMul.

    before   y = Einsum("btd,dhk->bthk", x, w)               w (D, H, K)
    after    y = Reshape(MatMul(x, w), [0, 0, H, K])         w (D, H K)

    before   y = Einsum("bthk,hkd->btd", x, w)               w (H, K, D)
    after    y = MatMul(Reshape(x, [0, 0, H K]), w)          w (H K, D)

    A weight that other nodes read in its own shape stays unchanged.
    """
    for weight in list(graph.initializers.values()):
        readers = [user for user, _ in weight.uses()]
        summed = {_summed_axes(node, weight) for node in readers}
        if len(summed) != 1 or (axes := summed.pop()) is None:
            continue
        before, after = weight.const_value.shape[:axes], weight.const_value.shape[axes:]
        _reshape_weight(weight, product(before), product(after))
        bias = _shared_bias([node.outputs[0] for node in readers], after)
        if bias is not None:
            _reshape_weight(bias, product(after))
        for node in readers:
            _write_product(graph, node, before, after, bias)


def _summed_axes(node: ir.Node, weight: ir.Value) -> int | None:
    """Counts the axes, last of x and first of the weight, that are summed; else `None`."""
    if node.op_type != "Einsum" or len(node.inputs) != 2 or node.inputs[1] is not weight:
        return None
    inputs, output = _equation(node)
    if (
        len(inputs) != 2
        or "." in "".join(inputs)
        or any(len(set(item)) < len(item) for item in inputs)
    ):
        return None
    x, w = inputs
    axes = len(set(x) & set(w))
    kept = x[: len(x) - axes] + w[axes:]
    return axes if 0 < axes < len(w) and x.endswith(w[:axes]) and output == kept else None


def _reshape_weight(weight: ir.Value, *shape: int) -> None:
    array = weight.const_value.numpy().reshape(shape)
    weight.const_value, weight.shape = ir.tensor(array, name=weight.name), ir.Shape(shape)


def _shared_bias(outputs: list[ir.Value], sizes: Sequence[int]) -> ir.Value | None:
    """Returns the bias of these sizes that is added to each output and nothing else, or `None`."""
    adds = [only_reader(output, "Add") for output in outputs]
    bias = adds[0].inputs[1] if adds[0] else None
    if bias is None or bias.const_value is None or tuple(bias.const_value.shape) != tuple(sizes):
        return None
    alone = {user for user, _ in bias.uses()} == set(adds)
    return bias if alone and all(add.inputs[1] is bias for add in adds) else None


def _write_product(
    graph: ir.Graph,
    node: ir.Node,
    before: Sequence[int],
    after: Sequence[int],
    bias: ir.Value | None,
) -> None:
    """Replaces one Einsum by a product, and the Add behind it as well if there is a bias."""
    tape, x = ir.tape.Tape(), node.inputs[0]
    places = [0] * (len(_equation(node)[0][0]) - len(before))  # 0 keeps the input's size

    def reshaped(value: ir.Value, sizes: Sequence[int]) -> ir.Value:
        target = np.array([*places, *sizes], np.int64)
        target = add_initializer(graph, f"{node.name}/target", target)
        return tape.op("Reshape", [value, target])

    if len(before) > 1:
        x = reshaped(x, [product(before)])
    y, last = tape.op("MatMul", [x, node.inputs[1]]), node
    if bias is not None:
        last = only_reader(node.outputs[0], "Add")
        y = tape.op("Add", [y, bias])
    if len(after) > 1:
        y = reshaped(y, after)
    replace_node(last, tape, y)
    if last is not node:
        node.graph.remove(node, safe=True)
