"""Selections, as ONNX has them: by a condition, by one index a row, and of the smallest integers.

A beam search is full of them: which hypotheses go on, where each comes from, which rows are left.

Shapes: B batch, N entries of a row, W chosen ones.
"""

from keras_transformer.export.graph.fuse_rule import Rule
from keras_transformer.export.graph.nodes import attribute, number


def index_rules(known):
    """Choice of one element for each index, and integers put in order."""
    return [PickedElements.rule(known), Ascending.rule(known)]


def condition_rules(known):
    """Choice by a condition."""
    # The steps of a recurrent layer choose by one condition several times: its casts are shared.
    return [Chosen.rule(known, remove_nodes=False)]


class PickedElements(Rule):
    """One element of its row for each index, which `ops.take_along_axis` becomes.

    before   y = GatherND(x, Unsqueeze(indices, -1), batch_dims=1)      x (B, N), indices (B, W)
    after    y = GatherElements(x, indices, axis=1)
    """

    def pattern(self, op, x, indices, axes):
        return op.GatherND(x, op.Unsqueeze(indices, axes), _outputs=["picked"])

    def check(self, context, x, indices, axes, picked):
        dims, rows = self.known.dims.get(x), self.known.dims.get(indices)
        batch_dims = attribute(picked.producer(), "batch_dims", 0)
        return bool(dims and rows and len(dims) == len(rows) == batch_dims + 1) and (
            number(axes) in (-1, len(rows))
        )

    def rewrite(self, op, x, indices, axes, picked):
        return op.GatherElements(x, indices, axis=len(self.known.dims[x]) - 1)


class Ascending(Rule):
    """The smallest numbers in order, for which TensorFlow has no operator.

    before   y = Neg(TopK(Neg(x), count))
    after    y = TopK(x, count, largest=0)
    """

    def pattern(self, op, x, count):
        values, _ = op.TopK(op.Neg(x), count, _outputs=["values", "indices"])
        return op.Neg(values)

    def check(self, context, values, indices, **_):
        return not indices.uses() and attribute(values.producer(), "largest", 1) == 1

    def rewrite(self, op, x, count, values, **_):
        axis = attribute(values.producer(), "axis", -1)
        return op.TopK(x, count, axis=axis, largest=0, _outputs=2)[0]


class Chosen(Rule):
    """One of two numbers, by a condition.

    before   y = Add(Mul(Cast(condition), one), Mul(other, Cast(Not(condition))))
    after    y = Where(condition, one, other)
    """

    def pattern(self, op, condition, one, other):
        return op.Add(
            op.Mul(op.Cast(condition, _outputs=["yes"]), one),
            op.Mul(other, op.Cast(op.Not(condition), _outputs=["no"])),
        )

    def rewrite(self, op, condition, one, other, **_):
        return op.Where(condition, one, other)
