"""Fusions that are written as patterns, and their base class.

A rule has three methods that onnxscript's rewriter calls, and a docstring with the graph before and
after:

- `pattern` writes the nodes to find as if it computed them. Its arguments match any value. A result
  that the other methods need gets a name by `_outputs`.
- `check` gets all of these values of the graph by name. It returns whether the rule applies, and
  reads sizes from `self.shapes`.
- `rewrite` writes the nodes that replace them.

Shapes: B batch, N entries of a row, W chosen ones.
"""

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import pattern

from keras_transformer.export.graph.nodes import MICROSOFT, attribute, is_number, number
from keras_transformer.export.graph.shapes import InferredShapes

# Operators that only give numbers another shape.
VIEWS = ("Reshape", "Squeeze", "Unsqueeze")


class Rule(pattern.RewriteRuleClassBase):
    """Base class of rewrites of small subgraphs, with the shapes of the graph.

    Args:
        shapes: current shapes of the graph.
    """

    def __init__(self, shapes: InferredShapes) -> None:
        super().__init__(remove_nodes=False)  # others may read them; `simplify` removes the rest
        self.shapes = shapes


def vector(value: ir.Value) -> ir.Value | None:
    """Returns the weight (D,) of which `value` may be a reshaped view, or `None`."""
    while value.producer() is not None and value.producer().op_type in VIEWS:
        value = value.producer().inputs[0]
    if value.const_value is None or len(value.const_value.shape) != 1:
        return None
    return value


class PickedElements(Rule):
    """Rewrites `ops.take_along_axis`: one element of its row for each index.

    before   y = GatherND(x, Unsqueeze(indices, -1), batch_dims=1)      x (B, N), indices (B, W)
    after    y = GatherElements(x, indices, axis=1)
    """

    def pattern(self, op: Any, x: Any, indices: Any, axes: Any) -> Any:
        return op.GatherND(x, op.Unsqueeze(indices, axes), _outputs=["picked"])

    def check(
        self, context: Any, x: ir.Value, indices: ir.Value, axes: ir.Value, picked: ir.Value
    ) -> bool:
        dims, rows = self.shapes.dims.get(x), self.shapes.dims.get(indices)
        batch_dims = attribute(picked.producer(), "batch_dims", 0)
        return bool(dims and rows and len(dims) == len(rows) == batch_dims + 1) and (
            number(axes) in (-1, len(rows))
        )

    def rewrite(
        self, op: Any, x: ir.Value, indices: ir.Value, axes: ir.Value, picked: ir.Value
    ) -> ir.Value:
        return op.GatherElements(x, indices, axis=len(self.shapes.dims[x]) - 1)


class Ascending(Rule):
    """Finds the smallest numbers in order; TensorFlow has no operator for this.

    before   y = Neg(TopK(Neg(x), count))
    after    y = TopK(x, count, largest=0)
    """

    def pattern(self, op: Any, x: Any, count: Any) -> Any:
        values, _ = op.TopK(op.Neg(x), count, _outputs=["values", "indices"])
        return op.Neg(values)

    def check(
        self, context: Any, x: ir.Value, count: ir.Value, values: ir.Value, indices: ir.Value
    ) -> bool:
        return not indices.uses() and attribute(values.producer(), "largest", 1) == 1

    def rewrite(
        self, op: Any, x: ir.Value, count: ir.Value, values: ir.Value, indices: ir.Value
    ) -> ir.Value:
        axis = attribute(values.producer(), "axis", -1)
        return op.TopK(x, count, axis=axis, largest=0, _outputs=2)[0]


class HardSigmoid(Rule):
    """Fuses the hard sigmoid in Keras' `hard_silu`, which MobileNetV3 has.

    before   y = Mul(Clip(Add(x, 3), 0, 6), 1/6)
    after    y = HardSigmoid(x, alpha=1/6, beta=3/6)
    """

    def pattern(self, op: Any, x: Any, offset: Any, low: Any, high: Any, slope: Any) -> Any:
        return op.Mul(op.Clip(op.Add(x, offset), low, high), slope)

    def check(
        self,
        context: Any,
        x: ir.Value,
        offset: ir.Value,
        low: ir.Value,
        high: ir.Value,
        slope: ir.Value,
    ) -> bool:
        numbers = [number(value) for value in (offset, high, slope)]
        ends_at_one = None not in numbers and abs(numbers[1] * numbers[2] - 1) < 1e-6
        return is_number(low, 0) and ends_at_one

    def rewrite(
        self, op: Any, x: ir.Value, offset: ir.Value, low: ir.Value, high: ir.Value, slope: ir.Value
    ) -> ir.Value:
        alpha = number(slope)
        return op.HardSigmoid(x, alpha=alpha, beta=alpha * number(offset))


class Gelu(Rule):
    """Fuses the exact GELU: one pass over memory instead of six.

    before   y = Mul(Mul(1/2, x), Sub(1, Erf(Mul(Neg(x), sqrt(1/2)))))
    after    y = Gelu(x)
    """

    def pattern(self, op: Any, x: Any, half: Any, one: Any, scale: Any) -> Any:
        return op.Mul(op.Mul(half, x), op.Sub(one, op.Erf(op.Mul(op.Neg(x), scale))))

    def check(
        self, context: Any, x: ir.Value, half: ir.Value, one: ir.Value, scale: ir.Value
    ) -> bool:
        root = number(scale)
        is_root = root is not None and abs(root - 0.5**0.5) < 1e-3  # float16 rounds it
        return is_number(half, 0.5) and is_number(one, 1) and is_root

    def rewrite(
        self, op: Any, x: ir.Value, half: ir.Value, one: ir.Value, scale: ir.Value
    ) -> ir.Value:
        return op.Gelu(x, _domain=MICROSOFT)
