"""Convolutions that hold the norm behind them: one operator for what Keras has in two layers.

What a batch norm does after training is a product and a sum with a number for each channel, so it
can be done to the filters instead. That is computed in float64 and rounded once, which is closer to
exact numbers than the layers by themselves.

Why not a library: onnxscript 0.7 has a rule for a `BatchNormalization` behind a convolution, which
tf2onnx does not write for Keras' layer, and computes in float32. ONNX Runtime folds products and
sums when it loads a file, in float32 too, and only where no Transpose stands between.

Shapes: B batch, C channels, one for each filter, S axes of space.
"""

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.folding import calculated
from keras_transformer.export.graph.nodes import (
    RANDOM,
    add_initializer,
    all_nodes,
    constant,
    has_graphs,
)


def fuse_convolutions(model, known):
    """Gives every convolution constant filters that do what is done to its channels after it.

    before   y = Add(Mul(Conv(x, Transpose(w), b), scale), offset)         scale, offset (C, 1, 1)
    after    y = Conv(x, w scale, b scale + offset)

    A norm behind something else becomes one operator.

    Args:
        model: `onnx_ir.Model` as `keep_channels_first` leaves it.
        known: `shapes.Known` of it as it is now.
    """
    made, numbers = {}, _Numbers(model)
    for node in all_nodes(model.graph):
        if node.op_type == "Conv" and node.inputs[1] in known.dims:
            _fuse(node, known.dims[node.inputs[1]], numbers, made)
    for node in all_nodes(model.graph):
        if node.op_type == "Mul":
            for value in node.inputs:
                _write_norm(model, node, value, known.dims.get(value, ()), numbers)


def _fuse(conv, dims, numbers, made):
    """Folds into one convolution what is done to each of its channels, as far as that goes.

    Args:
        conv: the node.
        dims: shape of its filters.
        numbers: `_Numbers`.
        made: the new filters and offsets so far, by what they were made of: layers are shared.
    """
    if any(numbers.of(value) is None for value in conv.inputs[1:]):
        return
    steps, last = [], conv
    while (step := _step(last, dims[0], len(dims), numbers)) is not None:
        last, operand = step
        steps.append((last.op_type, operand))
    key = (conv.inputs[1:], *steps)
    if key not in made:
        made[key] = _filters(conv.inputs[1:], steps, dims, numbers)
    conv.resize_inputs(1 + len(made[key]))
    for index, value in enumerate(made[key]):
        conv.replace_input_with(1 + index, value)
    last.outputs[0].replace_all_uses_with(conv.outputs[0])


def _step(node, channels, rank, numbers):
    """The Add or Mul that alone reads a node, and its number for each channel; or `None`."""
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or node.outputs[0].is_graph_output():
        return None
    reader, index = uses[0]
    if reader.op_type not in ("Add", "Mul") or reader.graph is not node.graph:
        return None
    operand = reader.inputs[1 - index]
    if reader.outputs[0].is_graph_output():
        return None
    return (reader, operand) if numbers.are_of_channels(operand, channels, rank) else None


def _filters(inputs, steps, dims, numbers):
    """Filters, and offset where there is one, of a convolution that does some steps as well.

    Args:
        inputs: the convolution's own filters and offset.
        steps: pairs of an operator and the value that it adds or multiplies by.
        dims, numbers: as for `_fuse`.
    """
    if not steps and all(constant(value) is not None for value in inputs):
        return inputs
    filters, *offset = map(numbers.of, inputs)
    offset = offset[0] if offset else np.zeros(dims[0])
    for op_type, operand in steps:
        number = numbers.of(operand).reshape(-1)
        if op_type == "Add":
            offset = offset + number
        else:
            offset, filters = offset * number, filters * number.reshape(-1, *[1] * (len(dims) - 1))
    needed = len(inputs) > 1 or any(op_type == "Add" for op_type, _ in steps)
    made = [numbers.weight(inputs[0], "filters", filters)]
    return made + ([numbers.weight(inputs[0], "offset", offset)] if needed else [])


def _write_norm(model, product, x, dims, numbers):
    """Writes a product and a sum with numbers for each channel as one operator.

    before   y = Add(Mul(x, scale), offset)                                scale, offset (C, 1, 1)
    after    y = BatchNormalization(x, scale, offset, 0, 1, epsilon=0)

    When ONNX Runtime loads a file, it keeps its own order of numbers around that operator, and lets
    it do the activation behind it, too.

    Args:
        model, product: the model and the Mul.
        x, dims: one of its inputs, and that one's shape.
        numbers: `_Numbers`.
    """
    channels, rank = dims[1] if len(dims) > 2 else None, len(dims)
    scale = product.inputs[1 if x is product.inputs[0] else 0]
    if not isinstance(channels, int) or not numbers.are_of_channels(scale, channels, rank):
        return
    step = _step(product, channels, rank, numbers)
    if step is None or scale is x:
        return
    add, offset = step
    arrays = [np.broadcast_to(numbers.of(value).reshape(-1), channels) for value in (scale, offset)]
    inputs = [
        numbers.weight(scale, "scale", arrays[0]),
        numbers.weight(scale, "offset", arrays[1]),
        add_initializer(model.graph, "zeros", np.zeros(channels, np.float32)),
        add_initializer(model.graph, "ones", np.ones(channels, np.float32)),
    ]
    make = ir.tape.Tape()
    norm = make.op("BatchNormalization", [x, *inputs], {"epsilon": 0.0})
    norm.type = add.outputs[0].type
    add.append(list(make.nodes))
    add.outputs[0].replace_all_uses_with(norm)


class _Numbers:
    """What depends on weights and other constants only, in float64.

    Args:
        model: `onnx_ir.Model`.
    """

    def __init__(self, model):
        self._model, self._arrays = model, {}
        self._fixed = set()
        for node in model.graph:
            plain = len(node.outputs) == 1 and not has_graphs(node)
            if plain and node.op_type not in RANDOM and all(map(self._is_fixed, node.inputs)):
                self._fixed.add(node.outputs[0])

    def _is_fixed(self, value):
        return value is not None and (constant(value) is not None or value in self._fixed)

    def of(self, value):
        """The numbers of a value as an array, or `None` where they depend on an input."""
        if value not in self._arrays and self._is_fixed(value):
            tensor = constant(value)
            if tensor is None:
                node = value.producer()
                inputs = {item.name: self.of(item) for item in node.inputs}
                self._arrays[value] = calculated(node, self._model, inputs)
            else:
                array = tensor.numpy()
                exact = array.astype(np.float64) if array.dtype == np.float32 else array
                self._arrays[value] = exact
        return self._arrays.get(value)

    def are_of_channels(self, value, channels, rank):
        """Whether a value holds a number for each channel: (C, 1, 1) in four axes, or a scalar."""
        array = self.of(value)
        if array is None or array.ndim > rank:
            return False
        shape = (1,) * (rank - array.ndim) + array.shape
        return shape[1] in (1, channels) and shape[:1] + shape[2:] == (1,) * (rank - 1)

    def weight(self, value, what, array):
        """A new weight of the model in float32, in the place of a value that weights give."""
        while value.producer() is not None:  # down to a weight: its path is the name
            value = next(item for item in value.producer().inputs if self._is_fixed(item))
        name = f"{value.name}/{what}"
        return add_initializer(self._model.graph, name, array.astype(np.float32), weight=True)
