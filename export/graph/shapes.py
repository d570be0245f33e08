"""Symbolic shape inference for an ONNX graph, loops included.

Converted Keras code computes each shape at run time, with about ten small nodes instead of one
constant. To find these, the inference follows sizes through the graph as products of symbols
(`shape_data`). `docs/library.md` says why no existing inference does this.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.shape_data import (
    INTEGERS,
    Dims,
    ShapeTable,
    depends_on,
    propagate,
)
from keras_transformer.export.graph.shape_rules import RULES

# Larger integer tensors are data, not shapes.
LARGEST = 64
# Operators whose rules infer the rank of the output even if the inputs' shapes are unknown.
FROM_VALUES = ("Range", "Reshape")


class InferredShapes(ShapeTable):
    """Shapes and small integer values of a graph and of its loops' bodies.

    Args:
        graph: the graph, which is read once. Create a new object after a change.
    """

    def __init__(self, graph: ir.Graph) -> None:
        super().__init__()
        for value in [*graph.inputs, *graph.initializers.values()]:
            self._declare(value)
        self._visit(graph)

    def _declare(self, value: ir.Value) -> None:
        """Takes over constants and declared shapes; unnamed axes become symbols."""
        tensor = value.const_value
        if tensor is not None:
            self.dims[value] = tuple(int(size) for size in tensor.shape)
            if tensor.size <= LARGEST and tensor.dtype in INTEGERS:
                self.data[value] = np.array(tensor.numpy().tolist(), dtype=object)
        elif value.shape is not None and value not in self.dims:
            self.dims[value] = tuple(
                size if isinstance(size, int) else self.new_symbol(value, axis)
                for axis, size in enumerate(value.shape)
            )

    def _visit(self, graph: ir.Graph) -> None:
        """Infers the nodes in order, so that the shapes of their inputs are known."""
        for value in graph.initializers.values():
            self._declare(value)
        for node in graph:
            if node.op_type == "Loop":
                self._infer_loop(node)
                continue
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    for value in attribute.value.inputs:
                        self._declare(value)
                    self._visit(attribute.value)
            self._infer(node)

    def _infer_loop(self, node: ir.Node) -> None:
        """Finds by induction which axes of a loop's state keep their size.

        First every axis is assumed to keep its initial size. If the body then gives another size,
        as for a cache that grows, the axis gets a symbol and the body is inferred again. The
        remaining sizes hold before the first step and after each.
        """
        body = node.attributes["body"].value
        state, results = body.inputs[2:], body.outputs[1:]
        for value in body.inputs[:2]:  # number of the step, and whether to continue
            self.dims[value] = ()
        for value, initial in zip(state, node.inputs[2:], strict=True):
            self.dims[value] = self.dims.get(initial)
        changed = True
        while changed:
            self._visit(body)
            pairs = zip(state, results, strict=False)
            changed = any([self._generalize(value, result) for value, result in pairs])
        for value, before in zip(node.outputs, state, strict=False):
            # After zero steps the state is the initial one, so an axis that changes is unknown.
            dims = self.dims.get(before)
            self.dims[value] = dims and tuple(
                self.new_symbol(value, axis) if depends_on(size, before.name) else size
                for axis, size in enumerate(dims)
            )
        collected = zip(node.outputs[len(state) :], results[len(state) :], strict=True)
        for value, result in collected:  # one result per step
            dims = self.dims.get(result)
            self.dims[value] = dims and (
                self.new_symbol(value, 0),
                *self._outside(value, dims, body),
            )

    def _outside(self, value: ir.Value, dims: Dims, body: ir.Graph) -> Iterator:
        """Yields sizes of a step's result; symbols if they depend on the state of the step."""
        for axis, size in enumerate(dims):
            changes = any(depends_on(size, state.name) for state in body.inputs)
            yield self.new_symbol(value, axis + 1) if changes else size

    def _generalize(self, state: ir.Value, result: ir.Value) -> bool:
        """Makes symbols of the axes that a step changes; returns whether there were any."""
        before, after = self.dims[state], self.dims.get(result)
        if before is None:
            return False
        if after is None or len(after) != len(before):
            after = (None,) * len(before)
        self.dims[state] = tuple(
            size if size == new else self.new_symbol(state, axis)
            for axis, (size, new) in enumerate(zip(before, after, strict=True))
        )
        return self.dims[state] != before

    def _infer(self, node: ir.Node) -> None:
        """Records the shapes of one node's outputs, and the values of small integer tensors."""
        for value in node.outputs:  # a loop's body is inferred more than once
            self.dims.pop(value, None)
            self.data.pop(value, None)
        inputs = [None if value is None else self.dims.get(value) for value in node.inputs]
        unknown = any(
            value is not None and dims is None
            for value, dims in zip(node.inputs, inputs, strict=True)
        )
        rule = RULES.get(node.op_type)
        dims = None
        if rule is not None and (not unknown or node.op_type in FROM_VALUES):
            dims = rule(self, node, *inputs)
        sizes = self.data.get(node.inputs[0]) if node.inputs else None
        if node.op_type == "Split" and dims and sizes is not None and sizes.ndim == 1:
            parts = np.split(sizes, np.cumsum([size for (size,) in dims])[:-1].astype(int))
            self.data.update(zip(node.outputs, parts, strict=True))
        data = propagate(self, node, None if isinstance(dims, list) else dims)
        if data is not None and data.size <= LARGEST:
            self.data[node.outputs[0]], dims = data, data.shape
        if dims is not None:
            outputs = dims if isinstance(dims, list) else [dims]
            self.dims.update(zip(node.outputs, outputs, strict=False))
        else:
            for value in node.outputs:
                if value.shape is not None:
                    self._declare(value)
