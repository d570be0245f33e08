"""What the rules of fusion share: their base class, and helpers to look at heads and vectors.

A rule has three methods that onnxscript's rewriter calls, and a docstring with the graph before and
after:

- `pattern` writes the nodes that are looked for, as if it computed them. Its arguments match any
  value. A result that later methods ask for gets a name by `_outputs`.
- `check` gets all of these as values of the graph, by name, and says whether the rule may be
  applied. What it has to know of shapes is in `self.known`, a `shapes.Known`.
- `rewrite` writes the nodes that take their place.

Shapes: B batch, T queries, S keys, H heads, K size of a head, D d_model, V vocabulary.
"""

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import pattern

from keras_transformer.export.graph.nodes import attribute
from keras_transformer.export.graph.sizes import product

# Operators that only give numbers another shape.
VIEWS = ("Reshape", "Squeeze", "Unsqueeze")


class Rule(pattern.RewriteRuleClassBase):
    """A rewrite of a small subgraph, which knows the shapes of the graph that it is applied to.

    Args:
        known: `shapes.Known` of the graph as it is now.
        remove_nodes: whether the matched nodes go; `False` where others may read them as well.
    """

    def __init__(self, known, remove_nodes=True):
        super().__init__(remove_nodes=remove_nodes)
        self.known = known


def integers(op, *items):
    """A constant vector of int64, inside a rule's `rewrite`."""
    return op.Constant(value=ir.tensor(np.array(items, np.int64)))


def vector(value):
    """The weight of shape (D,) behind `value`, which may be a reshaped view of it; or `None`."""
    while value.producer() is not None and value.producer().op_type in VIEWS:
        value = value.producer().inputs[0]
    if value.const_value is None or len(value.const_value.shape) != 1:
        return None
    return value


def heads(known, value):
    """Number and size of the heads of (B, T, H, K), where they are known; else `None`."""
    dims = known.dims.get(value)
    if dims is None or len(dims) != 4 or not all(isinstance(size, int) for size in dims[2:]):
        return None
    return dims[2:]


def is_order(value, *order):
    """Whether a Transpose puts the axes in this order."""
    return list(attribute(value.producer(), "perm", [])) == list(order)


def are_heads_first(*values):
    """Whether each of these Transposes puts heads before positions, or back."""
    return all(is_order(value, 0, 2, 1, 3) for value in values)


def join_heads(op, x, known):
    """(B, T, H, K) -> (B, T, H K)"""
    return op.Reshape(x, integers(op, 0, 0, product(known.dims[x][2:])))


def split_heads(op, x, count, size):
    """(B, T, H K) -> (B, T, H, K)"""
    return op.Reshape(x, integers(op, 0, 0, count, size))
