"""Keeps channels first between convolutions, as in ONNX; Keras has them last.

tf2onnx writes a Transpose before and after every convolution and pooling. Two of them cancel if all
operators between them can read numbers with channels first. `docs/library.md` describes what ONNX
Runtime's passes leave.

Shapes: B batch, S all axes of space, C channels.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.nodes import add_initializer, attribute, is_float32
from keras_transformer.export.graph.shape_data import Dims
from keras_transformer.export.graph.shapes import InferredShapes

# Element-wise operators.
ELEMENTWISE = set(
    """
    Abs Add Cast Clip Div Elu Erf Exp Gelu HardSigmoid HardSwish LeakyRelu Log Max Min Mul Neg Pow
    Reciprocal Relu Selu Sigmoid Softplus Softsign Sqrt Sub Tanh Where
    """.split()
)
# A reduction over all of space -> the equivalent pooling.
GLOBAL = {"ReduceMax": "GlobalMaxPool", "ReduceMean": "GlobalAveragePool"}


def keep_channels_first(graph: ir.Graph, shapes: InferredShapes) -> None:
    """Removes each Transpose that only undoes an earlier one.

    before   y = Conv(Transpose(Relu(Add(Transpose(Conv(x)), bias))))          bias (C,)
    after    y = Conv(Relu(Add(Conv(x), Reshape(bias, [C, 1, 1]))))

    A mean over space becomes a GlobalAveragePool. Nodes that need channels last read them from a
    Transpose after the last node.

    Args:
        graph: the outer graph of a model.
        shapes: its shapes.
    """
    layout = _ChannelsFirst(graph, shapes)
    for node in list(graph):
        if node.op_type == "Transpose" and _order(node) == _first(len(_order(node))):
            value = layout.find(node.inputs[0])
            if value is not None and not node.outputs[0].is_graph_output():
                node.outputs[0].replace_all_uses_with(value)
        elif node.op_type in GLOBAL:
            layout.pool(node)


class _ChannelsFirst:
    """Converts values (B, S, C) to channels first, (B, C, S).

    Args:
        graph, shapes: as for `keep_channels_first`.
    """

    def __init__(self, graph: ir.Graph, shapes: InferredShapes) -> None:
        self._graph, self._shapes, self._failed = graph, shapes, set()

    def find(self, value: ir.Value) -> ir.Value | None:
        """Returns the same numbers with channels first, or `None` if that is not possible."""
        node, dims = value.producer(), self._shapes.dims.get(value)
        if node is None or node.graph is not self._graph or value in self._failed:
            return None
        if node.op_type == "Transpose":
            return node.inputs[0] if _order(node) == _last(len(_order(node))) else None
        if dims is None or len(dims) < 3 or value.is_graph_output():
            changed = False
        elif node.op_type in ELEMENTWISE:
            changed = self._change_inputs(node, len(dims), self._operand)
        elif node.op_type == "Concat":
            changed = self._change_concat(node, len(dims))
        else:
            changed = node.op_type == "Pad" and self._change_pad(node, len(dims))
        if not changed:
            self._failed.add(value)
            return None
        self._restore(value, dims)
        return value

    def pool(self, node: ir.Node) -> None:
        """Writes a mean or maximum over all of space, (B, S, C) to (B, C), as a pooling."""
        dims, axes = self._shapes.dims.get(node.inputs[0]) or (), attribute(node, "axes", ())
        space = list(range(1, len(dims) - 1))
        if not space or sorted(axis % len(dims) for axis in axes) != space:
            return
        if not is_float32(node.inputs[0]):
            return
        if node.outputs[0].is_graph_output() or (value := self.find(node.inputs[0])) is None:
            return
        tape = ir.tape.Tape()
        pooled = tape.op(GLOBAL[node.op_type], [value])  # (B, C, 1)
        if attribute(node, "keepdims", 1):
            pooled = tape.op("Transpose", [pooled], {"perm": _last(len(dims))})
        else:
            axes = add_initializer(self._graph, f"{node.name}/space", np.array(space) + 1)
            pooled = tape.op("Squeeze", [pooled, axes])
        self._shapes.dims[pooled] = self._shapes.dims.get(node.outputs[0])
        node.append(list(tape.nodes))
        node.outputs[0].replace_all_uses_with(pooled)

    def _restore(self, value: ir.Value, dims: Dims) -> None:
        """Adds a Transpose to channels last after a changed value, for other readers."""
        transpose = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", _last(len(dims)))])
        (last,) = transpose.outputs
        last.type, self._shapes.dims[last] = value.type, dims
        value.shape = None
        value.replace_all_uses_with(last)
        transpose.replace_input_with(0, value)
        value.producer().append(transpose)

    def _change_inputs(
        self, node: ir.Node, rank: int, find: Callable[[ir.Value, int], ir.Value | None]
    ) -> bool:
        """Makes a node read its inputs with channels first; returns whether it can.

        Args:
            node, rank: the node, and the number of axes of its output.
            find: function that returns an input in this layout, or `None`.
        """
        inputs = []
        for index in range(len(node.inputs)):
            # A change of one input may change another, so the node is read again for each.
            value = node.inputs[index]
            inputs.append(None if value is None else find(value, rank))
            if value is not None and inputs[-1] is None:
                return False
        for index, value in enumerate(inputs):
            node.replace_input_with(index, value)
        return True

    def _operand(self, value: ir.Value, rank: int) -> ir.Value | None:
        """Returns a channels-first input of an element-wise node of this rank, or `None`.

        It may be broadcast: a scalar, a number per channel (C,) or (B, 1, C).
        """
        dims = self._shapes.dims.get(value)
        if dims is None or all(size == 1 for size in dims):
            return None if dims is None else value
        if all(size == 1 for size in dims[:-1]):
            return self._reshape(value, [dims[-1]] + [1] * (rank - 2))
        if len(dims) != rank:
            return None
        found = self.find(value)
        if found is None and all(size == 1 for size in dims[1:-1]):
            found = self._reshape(value, [0, dims[-1]] + [1] * (rank - 2))
        return found

    def _reshape(self, value: ir.Value, target: Sequence) -> ir.Value | None:
        """Adds a Reshape after a value, or before all nodes if no node computes the value."""
        if not all(isinstance(size, int) for size in target):
            return None
        shape = add_initializer(self._graph, f"{value.name}/channels_first", np.array(target))
        reshape, source = ir.Node("", "Reshape", [value, shape]), value.producer()
        reshape.outputs[0].type = value.type
        (self._graph[0].prepend if source is None else source.append)(reshape)
        return reshape.outputs[0]

    def _change_concat(self, node: ir.Node, rank: int) -> bool:
        """Moves the axis of a Concat to its place with channels first."""
        changed = self._change_inputs(node, rank, lambda value, _: self.find(value))
        if changed:
            axis = _first(rank).index(attribute(node, "axis", 0) % rank)
            node.attributes["axis"] = ir.AttrInt64("axis", axis)
        return changed

    def _change_pad(self, node: ir.Node, rank: int) -> bool:
        """Puts the widths of a Pad in the new order of axes."""
        pads = self._shapes.constant(node.inputs[1])
        value = None if pads is None or len(pads) != 2 * rank else self.find(node.inputs[0])
        if value is None:
            return False
        pads = np.reshape(pads, (2, rank))[:, _first(rank)].reshape(-1)
        name = f"{node.name}/channels_first"
        node.replace_input_with(0, value)
        node.replace_input_with(1, add_initializer(self._graph, name, pads))
        return True


def _order(node: ir.Node) -> list[int]:
    """Returns the axes of a Transpose."""
    return list(attribute(node, "perm", ()))


def _last(rank: int) -> list[int]:
    """Returns the order that puts channels last: (B, C, S) -> (B, S, C)."""
    return [0, *range(2, rank), 1]


def _first(rank: int) -> list[int]:
    """Returns the order that puts channels first: (B, S, C) -> (B, C, S)."""
    return [0, rank - 1, *range(1, rank - 1)]
