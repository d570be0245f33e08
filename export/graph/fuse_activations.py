"""Activations that ONNX has one operator for."""

from keras_transformer.export.graph.fuse_rule import Rule
from keras_transformer.export.graph.nodes import is_number, number


def activation_rules(known):
    """Functions of single numbers."""
    return [HardSigmoid.rule(known)]


class HardSigmoid(Rule):
    """A straight line between 0 and 1, half of Keras' `hard_silu`, which MobileNetV3 has.

    before   y = Mul(Clip(Add(x, 3), 0, 6), 1/6)
    after    y = HardSigmoid(x, alpha=1/6, beta=3/6)
    """

    def pattern(self, op, x, offset, low, high, slope):
        return op.Mul(op.Clip(op.Add(x, offset), low, high), slope)

    def check(self, context, offset, low, high, slope, **_):
        numbers = [number(value) for value in (offset, high, slope)]
        ends_at_one = None not in numbers and abs(numbers[1] * numbers[2] - 1) < 1e-6
        return is_number(low, 0) and ends_at_one

    def rewrite(self, op, x, offset, slope, **_):
        alpha = number(slope)
        return op.HardSigmoid(x, alpha=alpha, beta=alpha * number(offset))
