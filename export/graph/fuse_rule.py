"""The base class of fusions that are written as patterns.

A rule has three methods that onnxscript's rewriter calls, and a docstring with the graph before and
after:

- `pattern` writes the nodes to find as if it computed them. Its arguments match any value. A result
  that the other methods need gets a name by `_outputs`.
- `check` gets all of these values of the graph by name. It says whether the rule applies, and reads
  sizes from `self.shapes`.
- `rewrite` writes the nodes that replace them.
"""

import onnx_ir as ir
from onnxscript.rewriter import pattern

from keras_transformer.export.graph.shapes import InferredShapes

# Operators that only give numbers another shape.
VIEWS = ("Reshape", "Squeeze", "Unsqueeze")


class Rule(pattern.RewriteRuleClassBase):
    """A rewrite of a small subgraph, which knows the shapes of the graph that it is applied to.

    Args:
        shapes: shapes of the graph as it is now.
    """

    def __init__(self, shapes: InferredShapes) -> None:
        super().__init__(remove_nodes=False)  # others may read them; `simplify` removes the rest
        self.shapes = shapes


def vector(value: ir.Value) -> ir.Value | None:
    """The weight of shape (D,) behind `value`, which may be a reshaped view of it; or `None`."""
    while value.producer() is not None and value.producer().op_type in VIEWS:
        value = value.producer().inputs[0]
    if value.const_value is None or len(value.const_value.shape) != 1:
        return None
    return value
