"""Symbolic shapes of an ONNX graph, loops included: what is known of sizes before any run.

Converted Keras code computes each shape at run time, with about ten small nodes where one constant
would do. To see that, sizes are followed through the graph as products of unknowns:
`known.dims[value]` is the shape of a value and `known.data[value]` the contents of a small integer
tensor, such as the target of a Reshape.

Why not an inference that exists, tried on a beam search of two layers with 733 values:
`onnx.shape_inference` 1.23 (also behind ONNX IR and onnxscript) gives 483 of them a shape, with a
new name for each computed size, so that two equal sizes are not seen to be equal. The symbolic
inference of ONNX Runtime 1.31 stops at the loop with a KeyError; on a forward pass it takes 0.3 s
and needs `auto_merge`, which takes sizes for equal that need not be. This module knows all 733
shapes after 0.04 s, and an export asks it some thirty times.
"""

import numpy as np
import onnx_ir as ir

from keras_transformer.export.graph.contents import INTEGERS, contents, is_plain
from keras_transformer.export.graph.shape_rules import RULES
from keras_transformer.export.graph.sizes import mentions, unknown

# Larger integer tensors are data, not shapes.
LARGEST = 64


class Known:
    """What is known of the values of a graph and of its loops' bodies.

    `dims` maps a value to its shape, a tuple of sizes (`sizes`). `data` maps a small integer tensor
    to its contents, an object array of sizes. Values of which nothing is known are in neither.

    Args:
        graph: `onnx_ir.Graph`; it is read once, and not watched for changes.
    """

    def __init__(self, graph):
        self.dims, self.data = {}, {}
        for value in [*graph.inputs, *graph.initializers.values()]:
            self._declare(value)
        self._visit(graph)

    @staticmethod
    def fresh(value, axis):
        """A size of which nothing is known but that it is this axis of this value."""
        return unknown(f"{value.name}[{axis}]")

    def all_fresh(self, value, rank):
        """A shape of which nothing is known but the number of axes."""
        return tuple(self.fresh(value, axis) for axis in range(rank))

    def constant(self, value):
        """Contents of an integer tensor that are plain numbers, as a flat list; else `None`."""
        data = None if value is None else self.data.get(value)
        return None if data is None or not is_plain(data) else [int(item) for item in data.flat]

    def _declare(self, value):
        """Takes over constants and declared shapes; unnamed axes are unknowns."""
        tensor = value.const_value
        if tensor is not None:
            self.dims[value] = tuple(int(size) for size in tensor.shape)
            if tensor.size <= LARGEST and tensor.dtype in INTEGERS:
                self.data[value] = np.array(tensor.numpy().tolist(), dtype=object)
        elif value.shape is not None and value not in self.dims:
            self.dims[value] = tuple(
                size if isinstance(size, int) else self.fresh(value, axis)
                for axis, size in enumerate(value.shape)
            )

    def _visit(self, graph):
        """Goes through the nodes in order, so that each finds its inputs known."""
        for value in graph.initializers.values():
            self._declare(value)
        for node in graph:
            if node.op_type == "Loop":
                self._follow_loop(node)
                continue
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    for value in attribute.value.inputs:
                        self._declare(value)
                    self._visit(attribute.value)
            self._infer(node)

    def _follow_loop(self, node):
        """Finds by induction which axes of a loop's state keep their size.

        First every axis is assumed to keep the size that it enters the loop with. Where the body
        then gives another size, as where a cache grows, the axis becomes an unknown of its own and
        the body is read again. What survives holds before the first step and after each.
        """
        body = node.attributes["body"].value
        state, results = body.inputs[2:], body.outputs[1:]
        for value in body.inputs[:2]:  # number of the step, and whether to go on
            self.dims[value] = ()
        for value, first in zip(state, node.inputs[2:], strict=True):
            self.dims[value] = self.dims.get(first)
        changed = True
        while changed:
            self._visit(body)
            pairs = zip(state, results, strict=False)
            changed = any([self._widen(value, result) for value, result in pairs])
        for value, before in zip(node.outputs, state, strict=False):
            # After no step at all the state is the initial one, so an axis that changes is unknown.
            dims = self.dims.get(before)
            self.dims[value] = dims and tuple(
                self.fresh(value, axis) if mentions(size, before.name) else size
                for axis, size in enumerate(dims)
            )
        collected = zip(node.outputs[len(state) :], results[len(state) :], strict=True)
        for value, result in collected:  # one of each step, as many as there were
            dims = self.dims.get(result)
            self.dims[value] = dims and (self.fresh(value, 0), *self._outside(value, dims, body))

    def _outside(self, value, dims, body):
        """Sizes of a step's result; those that the state of the step decides are unknown."""
        names = [state.name for state in body.inputs]
        for axis, size in enumerate(dims):
            changes = any(mentions(size, name) for name in names)
            yield self.fresh(value, axis + 1) if changes else size

    def _widen(self, state, result):
        """Makes unknown the axes in which a step changes the state; whether there were any."""
        before, after = self.dims[state], self.dims.get(result)
        if before is None:
            return False
        if after is None or len(after) != len(before):
            after = (None,) * len(before)
        # An axis with an unknown of its own keeps it, whatever the body makes of it.
        self.dims[state] = tuple(
            size if size == new else self.fresh(state, axis)
            for axis, (size, new) in enumerate(zip(before, after, strict=True))
        )
        return self.dims[state] != before

    def _infer(self, node):
        """Records what follows for the outputs of one node."""
        for value in node.outputs:  # a loop's body is read more than once
            self.dims.pop(value, None)
            self.data.pop(value, None)
        found = contents(self, node)
        if found is not None and found.size <= LARGEST:
            self.data[node.outputs[0]] = found
            self.dims[node.outputs[0]] = found.shape
            return
        rule = RULES.get(node.op_type)
        dims = rule(self, node) if rule else None
        if isinstance(dims, list):  # one shape for each output
            self.dims.update(zip(node.outputs, dims, strict=False))
        elif dims is not None:
            self.dims[node.outputs[0]] = tuple(dims)
        else:
            for value in node.outputs:
                if value.shape is not None:
                    self._declare(value)
