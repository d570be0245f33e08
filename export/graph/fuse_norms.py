"""Fuses layer norms, and writes the residual before a norm to suit the machine.

Shapes: B batch, T positions, D d_model.
"""

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import pattern

from keras_transformer.export.graph.fuse_patterns import Rule, vector
from keras_transformer.export.graph.nodes import (
    MICROSOFT,
    all_nodes,
    attribute,
    number,
    only_reader,
    producer,
    substitute,
)
from keras_transformer.export.graph.shapes import InferredShapes


class LayerNorm(Rule):
    """Fuses the nodes of a layer norm by Keras and tf2onnx.

    before   scale = gamma / Sqrt(ReduceMean((x - mean)^2) + epsilon), mean = ReduceMean(x)
             y = (x - mean) scale + beta
    after    y = LayerNormalization(x, gamma, beta)
    """

    def pattern(self, op: Any, x: Any, gamma: Any, beta: Any, epsilon: Any) -> Any:
        return self.sum(op, x, *self.parts(op, x, gamma, epsilon), beta)

    def parts(self, op: Any, x: Any, gamma: Any, epsilon: Any) -> tuple[Any, Any, Any]:
        """Returns the mean, the deviation from it and the scale."""
        mean = op.ReduceMean(x, _outputs=["mean"])
        deviation = op.Sub(x, mean)
        variance = op.ReduceMean(op.Mul(deviation, deviation), _outputs=["variance"])
        scale = op.Mul(op.Reciprocal(op.Sqrt(op.Add(variance, epsilon))), gamma)
        return mean, deviation, scale

    def sum(self, op: Any, x: Any, mean: Any, deviation: Any, scale: Any, beta: Any) -> Any:
        """Returns the last nodes of the pattern, as Keras 3.16 orders them."""
        return op.Add(op.Mul(deviation, scale), beta)

    def check(
        self,
        context: Any,
        x: ir.Value,
        gamma: ir.Value,
        beta: ir.Value,
        epsilon: ir.Value,
        mean: ir.Value,
        variance: ir.Value,
    ) -> bool:
        dims = self.shapes.dims.get(x) or ()
        rank = len(dims)
        for value in (mean, variance):
            axes = list(attribute(value.producer(), "axes", None) or ())
            if axes not in ([rank - 1], [-1]) or not attribute(value.producer(), "keepdims", 1):
                return False
        # A group norm has other groups than entries of gamma.
        sizes = _length(gamma), _length(beta)
        return rank > 0 and number(epsilon) is not None and sizes == (dims[-1], dims[-1])

    def rewrite(
        self,
        op: Any,
        x: ir.Value,
        gamma: ir.Value,
        beta: ir.Value,
        epsilon: ir.Value,
        mean: ir.Value,
        variance: ir.Value,
    ) -> ir.Value:
        return op.LayerNormalization(
            x, vector(gamma), vector(beta), axis=-1, epsilon=number(epsilon)
        )


class FoldedLayerNorm(LayerNorm):
    """Fuses a layer norm of Keras before 3.16.

    before   y = x scale + (beta - mean scale)
    after    y = LayerNormalization(x, gamma, beta)
    """

    def sum(self, op: Any, x: Any, mean: Any, deviation: Any, scale: Any, beta: Any) -> Any:
        """Returns the last nodes of the pattern, with the mean in the offset."""
        return op.Add(op.Mul(x, scale), op.Add(op.Mul(op.Neg(mean), scale), beta))


class UnshiftedLayerNorm(LayerNorm):
    """Fuses a layer norm without beta, after those with one.

    before   y = (x - mean) scale
    after    y = LayerNormalization(x, gamma)
    """

    def pattern(self, op: Any, x: Any, gamma: Any, epsilon: Any) -> Any:
        return self.scaled(op, x, *self.parts(op, x, gamma, epsilon))

    def scaled(self, op: Any, x: Any, mean: Any, deviation: Any, scale: Any) -> Any:
        """Returns the last nodes of the pattern, as Keras 3.16 orders them."""
        return op.Mul(deviation, scale)

    def check(self, context: Any, gamma: ir.Value, **values: ir.Value) -> bool:
        return super().check(context, gamma=gamma, beta=gamma, **values)

    def rewrite(
        self,
        op: Any,
        x: ir.Value,
        gamma: ir.Value,
        epsilon: ir.Value,
        mean: ir.Value,
        variance: ir.Value,
    ) -> ir.Value:
        return op.LayerNormalization(x, vector(gamma), axis=-1, epsilon=number(epsilon))


class FoldedUnshiftedLayerNorm(UnshiftedLayerNorm):
    """Fuses a layer norm without beta of Keras before 3.16.

    before   y = x scale + (-mean scale)
    after    y = LayerNormalization(x, gamma)
    """

    def scaled(self, op: Any, x: Any, mean: Any, deviation: Any, scale: Any) -> Any:
        """Returns the last nodes of the pattern, with the mean in the offset."""
        return op.Add(op.Mul(x, scale), op.Mul(op.Neg(mean), scale))


class RootMeanSquareNorm(Rule):
    """Writes a norm without mean (arXiv 1910.07467) as ONNX Runtime's fusion expects it.

    Keras' `RMSNormalization` squares by `Mul(x, x)`, KerasHub's models by `Pow(x, 2)`.

    before   y = Mul(Mul(x, Reciprocal(Sqrt(Add(ReduceMean(Mul(x, x)), epsilon)))), gamma)
    after    y = Mul(Div(x, Sqrt(Add(ReduceMean(Pow(x, 2)), epsilon))), gamma)
    """

    def pattern(self, op: Any, x: Any, epsilon: Any, gamma: Any) -> Any:
        square = pattern.OrValue([op.Mul(x, x), op.Pow(x, pattern.Constant(2.0))])
        mean = op.ReduceMean(square, _outputs=["mean"])
        return op.Mul(op.Mul(x, op.Reciprocal(op.Sqrt(op.Add(mean, epsilon)))), gamma)

    def check(
        self, context: Any, x: ir.Value, epsilon: ir.Value, gamma: ir.Value, mean: ir.Value
    ) -> bool:
        dims = self.shapes.dims.get(x)
        length = _length(gamma)
        return length is not None and (not dims or dims[-1] == length)

    def rewrite(
        self, op: Any, x: ir.Value, epsilon: ir.Value, gamma: ir.Value, mean: ir.Value
    ) -> ir.Value:
        options = {name: item.value for name, item in mean.producer().attributes.items()}
        mean = op.ReduceMean(op.Pow(x, op.Constant(value_float=2.0)), **options)
        return op.Mul(op.Div(x, op.Sqrt(op.Add(mean, epsilon))), vector(gamma))


def _length(value: ir.Value) -> int | None:
    """Returns the number of entries of a vector of weights, or `None`."""
    weights = vector(value)
    return None if weights is None else weights.const_value.size


def fuse_residuals(graph: ir.Graph, shapes: InferredShapes) -> None:
    """Writes residual + norm as one operator, for GPUs.

    before   total = Add(x, Add(sublayer, bias)); y = LayerNormalization(total, gamma, beta)
    after    y, _, _, total = SkipLayerNormalization(x, sublayer, gamma, beta, bias)
    """
    for norm in all_nodes(graph):
        add = producer(norm.inputs[0], "Add") if norm.op_type == "LayerNormalization" else None
        if not add:
            continue
        x, y = add.inputs
        dims = shapes.dims.get(x)
        if dims is None or len(dims) != 3 or dims != shapes.dims.get(y):  # no broadcasting
            continue
        gamma, beta = (*norm.inputs[1:3], None)[:2]
        inputs = [x, y, gamma, *([] if beta is None else [beta])]
        inner = producer(y, "Add")
        bias = vector(inner.inputs[1]) if inner and only_reader(y, "Add") else None
        if bias is not None:
            inputs = [x, inner.inputs[0], gamma, beta, bias]
        tape, total = ir.tape.Tape(), add.outputs[0]
        outputs = tape.op_multi_out(
            "SkipLayerNormalization",
            inputs,
            {"epsilon": attribute(norm, "epsilon", 1e-5)},
            domain=MICROSOFT,
            num_outputs=4 if len(total.uses()) > 1 or total.is_graph_output() else 1,
        )
        add.append(list(tape.nodes))
        substitute(norm.outputs[0], outputs[0])
        norm.graph.remove(norm, safe=True)
        if len(outputs) > 1:
            substitute(total, outputs[3])
        shapes.dims.update(dict.fromkeys(outputs[::3], dims))


def sum_residuals(graph: ir.Graph, shapes: InferredShapes) -> None:
    """Writes the residual before a norm as a `Sum` of two, which is as fast as an `Add`.

    before   y = LayerNormalization(Add(x, sublayer), gamma, beta)
    after    y = LayerNormalization(Sum(x, sublayer), gamma, beta)

    On CPUs `SkipLayerNormalization` is slower than its parts: 83 us instead of 12, in ONNX Runtime
    1.31.1 on one core with 128 rows of 128 numbers. ONNX Runtime fuses an `Add` into that operator
    when it loads the file; it does not fuse a `Sum`.
    """
    for norm in all_nodes(graph):
        add = producer(norm.inputs[0], "Add") if norm.op_type == "LayerNormalization" else None
        if add:
            add.op_type = "Sum"


def sum_biases(graph: ir.Graph) -> None:
    """Adds the bias of a step's product together with the residual, which saves a node.

    before   y = Sum(x, Add(MatMul(h, w), bias))
    after    y = Sum(x, MatMul(h, w), bias)

    Reduced precisions add the bias in their products, and encoders in `Gemm`.

    Args:
        graph: the outer graph of a model. Only graphs inside it change.
    """
    for node in all_nodes(graph):
        if node.op_type != "Sum" or node.graph is graph or len(node.inputs) != 2:
            continue
        x, y = node.inputs
        add = producer(y, "Add") if only_reader(y, "Sum") else None
        if add and vector(add.inputs[1]) is not None:
            total = ir.Node("", "Sum", [x, *add.inputs], name=node.name)
            node.prepend(total)
            substitute(node.outputs[0], total.outputs[0])
            node.graph.remove(node, safe=True)
            add.graph.remove(add, safe=True)
