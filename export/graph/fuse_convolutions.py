"""Fuses convolutions with the norm after them: one operator for two of Keras' layers.

At inference a batch norm multiplies and adds a number per channel, so it can be applied to the
filters instead. The filters are computed in float64 and rounded once, which is more exact than the
two layers. `docs/library.md` says why no library does this.

Shapes: B batch, C channels, one per filter, S axes of space.
"""

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.folding import evaluate
from keras_transformer.export.graph.nodes import (
    RANDOM,
    add_initializer,
    all_nodes,
    constant,
    has_graphs,
    is_float32,
    only_reader,
    other_input,
)
from keras_transformer.export.graph.shape_data import Dims
from keras_transformer.export.graph.shapes import InferredShapes
from keras_transformer.types import Array


def fuse_convolutions(model: ir.Model, shapes: InferredShapes) -> None:
    """Gives every convolution constant filters that include the scale and offset after it.

    before   y = Add(Mul(Conv(x, Transpose(w), b), scale), offset)         scale, offset (C, 1, 1)
    after    y = Conv(x, w scale, b scale + offset)

    A norm after another operator becomes one operator.

    Args:
        model: model as `keep_channels_first` leaves it.
        shapes: its shapes.
    """
    filters, constants = {}, _Constants(model)
    for node in all_nodes(model.graph):
        if node.op_type == "Conv" and shapes.dims.get(node.inputs[1]) is not None:
            _fuse(node, shapes.dims[node.inputs[1]], constants, filters)
    for node in all_nodes(model.graph):
        if node.op_type == "Mul":
            for value in node.inputs:
                _write_norm(model, node, value, shapes.dims.get(value) or (), constants)


class _Constants:
    """Values that depend on weights and other constants only, in float64.

    Args:
        model: the model.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model, self._arrays, self._fixed = model, {}, set()
        for node in model.graph:
            plain = len(node.outputs) == 1 and not has_graphs(node)
            if plain and node.op_type not in RANDOM and all(map(self._is_fixed, node.inputs)):
                self._fixed.add(node.outputs[0])

    def _is_fixed(self, value: ir.Value | None) -> bool:
        return value is not None and (constant(value) is not None or value in self._fixed)

    def get(self, value: ir.Value) -> Array | None:
        """Returns the numbers of a value, or `None` if they depend on an input."""
        if value not in self._arrays and self._is_fixed(value):
            tensor = constant(value)
            if tensor is None:
                node = value.producer()
                inputs = {item.name: self.get(item) for item in node.inputs}
                self._arrays[value] = evaluate(node, self._model, inputs)
            else:
                array = tensor.numpy()
                exact = array.astype(np.float64) if array.dtype == np.float32 else array
                self._arrays[value] = exact
        return self._arrays.get(value)

    def is_per_channel(self, value: ir.Value, channels: int, rank: int) -> bool:
        """Returns whether a value is a scalar or constant per channel, (C, 1, 1) for four axes."""
        array = self.get(value)
        if array is None or array.ndim > rank:
            return False
        shape = (1,) * (rank - array.ndim) + array.shape
        return shape[1] in (1, channels) and shape[:1] + shape[2:] == (1,) * (rank - 1)

    def weight(self, value: ir.Value, suffix: str, array: Array) -> ir.Value:
        """Adds a float32 weight that replaces a value; its name is the path of the old weight."""
        while value.producer() is not None:
            value = next(item for item in value.producer().inputs if self._is_fixed(item))
        name = f"{value.name}/{suffix}"
        return add_initializer(self._model.graph, name, array.astype(np.float32), weight=True)


def _fuse(conv: ir.Node, dims: Dims, constants: _Constants, filters: dict) -> None:
    """Folds the products and sums per channel after a convolution into its filters.

    Args:
        conv: the node.
        dims: shape of its filters.
        constants: constants of the model.
        filters: the new filters and offsets so far, by their sources, because layers may be
            shared.
    """
    if any(constants.get(value) is None for value in conv.inputs[1:]):
        return
    steps, last = [], conv
    while (step := _channel_step(last, dims[0], len(dims), constants)) is not None:
        last, operand = step
        steps.append((last.op_type, operand))
    key = (conv.inputs[1:], *steps)
    if key not in filters:
        filters[key] = _filters(conv.inputs[1:], steps, len(dims), constants)
    conv.resize_inputs(1 + len(filters[key]))
    for index, value in enumerate(filters[key]):
        conv.replace_input_with(1 + index, value)
    last.outputs[0].replace_all_uses_with(conv.outputs[0])


def _channel_step(
    node: ir.Node, channels: int, rank: int, constants: _Constants
) -> tuple[ir.Node, ir.Value] | None:
    """Returns the Add or Mul that alone reads a node, and its number per channel; or `None`."""
    reader = only_reader(node.outputs[0], "Add", "Mul")
    if reader is None or reader.outputs[0].is_graph_output():
        return None
    operand = other_input(reader, node.outputs[0])
    return (reader, operand) if constants.is_per_channel(operand, channels, rank) else None


def _filters(inputs: tuple, steps: list, rank: int, constants: _Constants) -> list[ir.Value]:
    """Returns filters, and any offset, of a convolution that includes some steps.

    Args:
        inputs: the convolution's own filters and offset.
        steps: pairs of an operator and the value that it adds or multiplies by.
        rank: number of axes of the filters.
        constants: constants of the model.
    """
    if not steps and all(constant(value) is not None for value in inputs):
        return list(inputs)
    filters, *offsets = map(constants.get, inputs)
    offset = offsets[0] if offsets else np.zeros(filters.shape[0])
    for operator, operand in steps:
        number = constants.get(operand).reshape(-1)
        if operator == "Add":
            offset = offset + number
        else:
            offset, filters = offset * number, filters * number.reshape(-1, *[1] * (rank - 1))
    weights = [constants.weight(inputs[0], "filters", filters)]
    if offsets or any(operator == "Add" for operator, _ in steps):
        weights.append(constants.weight(inputs[0], "offset", offset))
    return weights


def _write_norm(
    model: ir.Model, product: ir.Node, x: ir.Value, dims: Dims, constants: _Constants
) -> None:
    """Writes a product and a sum with constants per channel as one operator.

    before   y = Add(Mul(x, scale), offset)                                scale, offset (C, 1, 1)
    after    y = BatchNormalization(x, scale, offset, 0, 1, epsilon=0)

    When ONNX Runtime loads a file, it keeps its own memory layout around that operator, and fuses
    the activation after it.

    Args:
        model, product: the model and the Mul.
        x, dims: one of its inputs, and the shape.
        constants: constants of the model.
    """
    channels, rank = dims[1] if len(dims) > 2 else None, len(dims)
    scale = other_input(product, x)
    if not is_float32(x):
        return
    if not isinstance(channels, int) or not constants.is_per_channel(scale, channels, rank):
        return
    step = _channel_step(product, channels, rank, constants)
    if step is None or scale is x:
        return
    add, offset = step
    graph = model.graph
    inputs = [x]
    for value, suffix in ((scale, "scale"), (offset, "offset")):
        array = np.broadcast_to(constants.get(value).reshape(-1), channels)
        inputs.append(constants.weight(scale, suffix, array))
    for name, array in (("zeros", np.zeros), ("ones", np.ones)):
        inputs.append(add_initializer(graph, name, array(channels, np.float32)))
    norm = ir.Node("", "BatchNormalization", inputs, [ir.AttrFloat32("epsilon", 0.0)])
    norm.outputs[0].type = add.outputs[0].type
    add.append(norm)
    add.outputs[0].replace_all_uses_with(norm.outputs[0])
