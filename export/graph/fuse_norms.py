"""Layer norms as one operator, and the residual before a norm as suits the machine.

Shapes: B batch, T positions, D d_model.
"""

from onnxscript.rewriter import pattern

from keras_transformer.export.graph.fuse_rule import Rule, vector
from keras_transformer.export.graph.nodes import MICROSOFT, all_nodes, attribute, number


def norm_rules(known):
    """Layer norms, and norms by the root mean square."""
    return [LayerNorm.rule(known), RootMeanSquareNorm.rule(known), PowerNorm.rule(known)]


def residual_rules(known):
    """Residual + norm, for GPUs."""
    return [PostNormWithBias.rule(known), PostNorm.rule(known), PreNorm.rule(known)]


class LayerNorm(Rule):
    """What Keras and tf2onnx write for a layer norm: twelve nodes.

    before   scale = gamma / Sqrt(ReduceMean((x - mean)^2) + epsilon), mean = ReduceMean(x)
             y = x scale + (beta - mean scale)
    after    y = LayerNormalization(x, gamma, beta)
    """

    def pattern(self, op, x, gamma, beta, epsilon):
        mean = op.ReduceMean(x, _outputs=["mean"])
        deviation = op.Sub(x, mean)
        variance = op.ReduceMean(op.Mul(deviation, deviation), _outputs=["variance"])
        scale = op.Mul(op.Reciprocal(op.Sqrt(op.Add(variance, epsilon))), gamma)
        return op.Add(op.Mul(x, scale), op.Add(op.Mul(op.Neg(mean), scale), beta))

    def check(self, context, x, gamma, beta, epsilon, mean, variance):
        dims = self.known.dims.get(x)
        axes = [attribute(value.producer(), "axes", None) for value in (mean, variance)]
        kept = [attribute(value.producer(), "keepdims", 1) for value in (mean, variance)]
        return (
            dims is not None
            and None not in axes
            and all(list(item) in ([len(dims) - 1], [-1]) for item in axes)
            and all(kept)
            and number(epsilon) is not None
            and vector(gamma) is not None
            and vector(beta) is not None
        )

    def rewrite(self, op, x, gamma, beta, epsilon, **_):
        return op.LayerNormalization(
            x, vector(gamma), vector(beta), axis=-1, epsilon=number(epsilon)
        )


class RootMeanSquareNorm(Rule):
    """A norm without mean (arXiv 1910.07467), in the words that ONNX Runtime makes one operator of.

    before   y = Mul(Mul(x, Reciprocal(Sqrt(Add(ReduceMean(Mul(x, x)), epsilon)))), gamma)
    after    y = Mul(Div(x, Sqrt(Add(ReduceMean(Pow(x, 2)), epsilon))), gamma)
    """

    def pattern(self, op, x, epsilon, gamma):
        mean = op.ReduceMean(self.square(op, x), _outputs=["mean"])
        return op.Mul(op.Mul(x, op.Reciprocal(op.Sqrt(op.Add(mean, epsilon)))), gamma)

    def square(self, op, x):
        """x squared, as Keras' `RMSNormalization` writes it."""
        return op.Mul(x, x)

    def check(self, context, gamma, **_):
        return vector(gamma) is not None

    def rewrite(self, op, x, epsilon, gamma, mean, **_):
        options = {name: item.value for name, item in mean.producer().attributes.items()}
        mean = op.ReduceMean(op.Pow(x, op.Constant(value_float=2.0)), **options)
        return op.Mul(op.Div(x, op.Sqrt(op.Add(mean, epsilon))), vector(gamma))


class PowerNorm(RootMeanSquareNorm):
    """The same where the square is `Pow(x, 2)`, as in KerasHub's models."""

    def square(self, op, x):
        return op.Pow(x, pattern.Constant(2.0))


class PostNorm(Rule):
    """The norm of a residual that nothing else reads.

    before   y = LayerNormalization(Add(x, sublayer), gamma, beta)
    after    y = SkipLayerNormalization(x, sublayer, gamma, beta)
    """

    def pattern(self, op, x, y, gamma, beta):
        return op.LayerNormalization(op.Add(x, y), gamma, beta, axis=-1, _outputs=["norm"])

    def check(self, context, x, y, **_):
        return self.are_same(x, y)

    def rewrite(self, op, x, y, gamma, beta, norm, bias=None):
        return op.SkipLayerNormalization(
            x, y, gamma, beta, *([] if bias is None else [bias]), **_options(norm)
        )

    def are_same(self, x, y):
        """Whether both are of one shape (B, T, D): the operator does not broadcast."""
        dims = self.known.dims.get(x)
        return dims is not None and len(dims) == 3 and dims == self.known.dims.get(y)


class PostNormWithBias(PostNorm):
    """The same where the sublayer ends with a bias.

    before   y = LayerNormalization(Add(x, Add(sublayer, bias)), gamma, beta)
    after    y = SkipLayerNormalization(x, sublayer, gamma, beta, bias)
    """

    def pattern(self, op, x, y, bias, gamma, beta):
        sum_ = op.Add(x, op.Add(y, bias))
        return op.LayerNormalization(sum_, gamma, beta, axis=-1, _outputs=["norm"])

    def check(self, context, x, y, bias, **_):
        return self.are_same(x, y) and vector(bias) is not None


class PreNorm(PostNorm):
    """A residual that is read by its norm and by the next residual.

    before   total = Add(x, sublayer); y = LayerNormalization(total, gamma, beta)
    after    y, _, _, total = SkipLayerNormalization(x, sublayer, gamma, beta)
    """

    def pattern(self, op, x, y, gamma, beta):
        sum_ = op.Add(x, y, _outputs=["sum_"])
        return sum_, op.LayerNormalization(sum_, gamma, beta, axis=-1, _outputs=["norm"])

    def check(self, context, x, y, sum_, **_):
        return self.are_same(x, y) and len(sum_.uses()) > 1

    def rewrite(self, op, x, y, gamma, beta, norm, **_):
        normed, _, _, sum_ = op.SkipLayerNormalization(
            x, y, gamma, beta, **_options(norm), _outputs=4
        )
        return sum_, normed


def _options(norm):
    """Attributes of the fused operator, from those of the norm in it."""
    return {"epsilon": attribute(norm.producer(), "epsilon", 1e-5), "_domain": MICROSOFT}


def sum_residuals(graph):
    """Writes the residual before a norm as a `Sum` of two, which is as fast as an `Add`.

    before   y = LayerNormalization(Add(x, sublayer), gamma, beta)
    after    y = LayerNormalization(Sum(x, sublayer), gamma, beta)

    On CPUs `SkipLayerNormalization` is slower than its parts: 83 us where they take 12, in ONNX
    Runtime 1.31.1 on one core with 128 rows of 128 numbers. ONNX Runtime would make that operator
    of an `Add` itself when it loads the file; a `Sum` it leaves alone.
    """
    for norm in all_nodes(graph):
        add = norm.inputs[0].producer() if norm.op_type == "LayerNormalization" else None
        if add is not None and add.op_type == "Add":
            add.op_type = "Sum"
