"""Channels stay first between convolutions, as ONNX has them, though Keras has them last.

tf2onnx writes a Transpose before and after every convolution and pooling. Those between two of them
cancel, once all that stands between reads numbers with the channels first.

Why not a library: the optimizer of tf2onnx 1.17 works on the whole graph, attention included,
before the rules of `fuse` have seen it. ONNX Runtime moves them when it loads a file, but does not
always find the norms behind convolutions then.

Shapes: B batch, S all axes of space, C channels.
"""

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.nodes import add_initializer, attribute

# They treat each number alone.
ELEMENTWISE = {
    "Abs", "Add", "Cast", "Clip", "Div", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish",
    "LeakyRelu", "Log", "Max", "Min", "Mul", "Neg", "Pow", "Reciprocal", "Relu", "Selu", "Sigmoid",
    "Softplus", "Softsign", "Sqrt", "Sub", "Tanh", "Where",
}  # fmt: skip
# What a mean or maximum over all of space is called.
GLOBAL = {"ReduceMax": "GlobalMaxPool", "ReduceMean": "GlobalAveragePool"}


def keep_channels_first(graph, known):
    """Takes away each Transpose that only undoes an earlier one.

    before   y = Conv(Transpose(Relu(Add(Transpose(Conv(x)), bias))))          bias (C,)
    after    y = Conv(Relu(Add(Conv(x), Reshape(bias, [C, 1, 1]))))

    A mean over space becomes a GlobalAveragePool. What else reads numbers with the channels last
    gets them from a Transpose behind the last node.

    Args:
        graph: the outer `onnx_ir.Graph` of a model.
        known: `shapes.Known` of it as it is now.
    """
    found = _ChannelsFirst(graph, known)
    for node in list(graph):
        if node.op_type == "Transpose" and _order(node) == _first(len(_order(node))):
            twin = found.twin(node.inputs[0])
            if twin is not None and not node.outputs[0].is_graph_output():
                node.outputs[0].replace_all_uses_with(twin)
        elif node.op_type in GLOBAL:
            found.pool(node)


class _ChannelsFirst:
    """Finds for values (B, S, C) the same numbers as (B, C, S).

    Args:
        graph, known: as for `keep_channels_first`.
    """

    def __init__(self, graph, known):
        self._graph, self._known, self._failed = graph, known, set()

    def twin(self, value):
        """The same numbers with the channels first, or `None` where they are not to be had."""
        node, dims = value.producer(), self._known.dims.get(value)
        if node is None or node.graph is not self._graph or value in self._failed:
            return None
        if node.op_type == "Transpose":
            return node.inputs[0] if _order(node) == _last(len(_order(node))) else None
        turned = dims is not None and len(dims) > 2 and not value.is_graph_output()
        if turned and node.op_type in ELEMENTWISE:
            turned = self._turn_inputs(node, len(dims))
        elif turned and node.op_type == "Concat":
            turned = self._turn_concat(node, len(dims))
        elif turned and node.op_type == "Pad":
            turned = self._turn_pad(node, len(dims))
        else:
            turned = False
        if not turned:
            self._failed.add(value)
            return None
        self._give_back(value, dims)
        return value

    def pool(self, node):
        """Writes a mean or maximum over all of space, (B, S, C) to (B, C), as a pooling."""
        dims, axes = self._known.dims.get(node.inputs[0]), attribute(node, "axes", None)
        if dims is None or axes is None or node.outputs[0].is_graph_output():
            return
        space = list(range(1, len(dims) - 1))
        twin = None
        if space and sorted(axis % len(dims) for axis in axes) == space:
            twin = self.twin(node.inputs[0])
        if twin is None:
            return
        make = ir.tape.Tape()
        pooled = make.op(GLOBAL[node.op_type], [twin])  # (B, C, 1)
        if attribute(node, "keepdims", 1):
            pooled = make.op("Transpose", [pooled], {"perm": _last(len(dims))})
        else:
            axes = add_initializer(self._graph, f"{node.name}/space", np.array(space) + 1)
            pooled = make.op("Squeeze", [pooled, axes])
        self._known.dims[pooled] = self._known.dims.get(node.outputs[0])
        node.append(list(make.nodes))
        node.outputs[0].replace_all_uses_with(pooled)

    def _give_back(self, value, dims):
        """Puts a Transpose behind a value that has the channels first now, for who reads it."""
        make = ir.tape.Tape()
        last = make.op("Transpose", [value], {"perm": _last(len(dims))})
        last.type, self._known.dims[last] = value.type, dims
        value.shape = None
        value.replace_all_uses_with(last)
        make.nodes[0].replace_input_with(0, value)
        value.producer().append(list(make.nodes))

    def _turn_inputs(self, node, rank, find=None):
        """Lets a node read all of its inputs with the channels first; whether it can.

        Args:
            node, rank: the node, and how many axes its output has.
            find: function that gives an input so, or `None`. Defaults to `None`: `_operand`.
        """
        inputs, find = [], find or self._operand
        for index in range(len(node.inputs)):
            # To turn one input may change another, so each is looked up in its turn.
            value = node.inputs[index]
            inputs.append(None if value is None else find(value, rank))
            if value is not None and inputs[-1] is None:
                return False
        for index, value in enumerate(inputs):
            node.replace_input_with(index, value)
        return True

    def _operand(self, value, rank):
        """An input of a node of this rank, to be read where the channels are first; or `None`.

        It may be stretched: a scalar, a number a channel (C,) or (B, 1, C).
        """
        dims = self._known.dims.get(value)
        if dims is None or all(size == 1 for size in dims):
            return None if dims is None else value
        if all(size == 1 for size in dims[:-1]):
            return self._reshape(value, [dims[-1]] + [1] * (rank - 2))
        if len(dims) != rank:
            return None
        twin = self.twin(value)
        if twin is None and all(size == 1 for size in dims[1:-1]) and isinstance(dims[-1], int):
            twin = self._reshape(value, [0, dims[-1]] + [1] * (rank - 2))
        return twin

    def _reshape(self, value, target):
        """A Reshape behind a value, or before all nodes for what none of them gives."""
        if not all(isinstance(size, int) for size in target):
            return None
        make = ir.tape.Tape()
        shape = add_initializer(self._graph, f"{value.name}/channels_first", np.array(target))
        turned = make.op("Reshape", [value, shape])
        turned.type = value.type
        node = value.producer()
        (self._graph[0].prepend if node is None else node.append)(list(make.nodes))
        return turned

    def _turn_concat(self, node, rank):
        """The axis of the channels is the second one now, those of space come behind it."""
        turned = self._turn_inputs(node, rank, lambda value, _: self.twin(value))
        if turned:
            axis = _first(rank).index(attribute(node, "axis", 0) % rank)
            node.attributes["axis"] = ir.AttrInt64("axis", axis)
        return turned

    def _turn_pad(self, node, rank):
        """The widths of a Pad come in the new order of the axes."""
        pads = self._known.constant(node.inputs[1])
        twin = None if pads is None or len(pads) != 2 * rank else self.twin(node.inputs[0])
        if twin is not None:
            order = [*_first(rank), *(axis + rank for axis in _first(rank))]
            turned = np.array([pads[axis] for axis in order])
            node.replace_input_with(0, twin)
            name = f"{node.name}/channels_first"
            node.replace_input_with(1, add_initializer(self._graph, name, turned))
        return twin is not None


def _order(node):
    """The axes of a Transpose as a list."""
    return list(attribute(node, "perm", ()))


def _last(rank):
    """The order that puts the channels last: (B, C, S) -> (B, S, C)."""
    return [0, *range(2, rank), 1]


def _first(rank):
    """The order that puts the channels first: (B, S, C) -> (B, C, S)."""
    return [0, rank - 1, *range(1, rank - 1)]
