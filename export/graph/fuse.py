"""Fusion of blocks into single operators of ONNX and ONNX Runtime.

Keras and tf2onnx write a layer norm as twelve nodes and an attention as about fifteen. For small
models the time of a decoding step depends on the number of nodes. So each such subgraph becomes one
operator: `LayerNormalization` of ONNX, and of the domain `com.microsoft` `MultiHeadAttention` and
`Attention`, `FusedMatMul` (products with a transposed matrix), `Gelu` and, for GPUs,
`SkipLayerNormalization` (residual + norm).

The fusions are in `fuse_attention`, `fuse_norms`, `fuse_products` and `fuse_patterns`. Some are
patterns: to add one, write a class and put it in `fuse_blocks`. Others are functions of the graph
and its shapes. `docs/library.md` says why existing rules do not help.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence

import keras
import onnx_ir as ir
from onnxscript.rewriter import pattern

from keras_transformer.export.graph import fuse_attention, fuse_norms, fuse_products
from keras_transformer.export.graph.fuse_patterns import (
    Ascending,
    Gelu,
    HardSigmoid,
    PickedElements,
    Rule,
)
from keras_transformer.export.graph.nodes import MICROSOFT, all_nodes
from keras_transformer.export.graph.shapes import InferredShapes
from keras_transformer.export.graph.simplify import simplify
from keras_transformer.export.staging import quoted
from keras_transformer.layers.attention import MultiHeadAttention

# Layers, and the operators that each of them becomes.
FUSED = {
    (keras.layers.LayerNormalization,): ("LayerNormalization", "SkipLayerNormalization"),
    (MultiHeadAttention, keras.layers.MultiHeadAttention): ("Attention", "MultiHeadAttention"),
}


@contextlib.contextmanager
def optional(model: ir.Model) -> Iterator[None]:
    """Undoes changes to a model in the context if they raise, and warns.

    The file computes the same without fusion, and the proof compares it with Keras anyway.
    """
    before = model.clone()
    for name, value in model.graph.initializers.items():
        before.graph.initializers[name].meta.update(value.meta)
    try:
        yield
    except Exception as error:  # of any kind: the file is right without fusion
        warnings.warn(
            f"Fusing blocks failed: {quoted(error, 100)} The file has no "
            "fused blocks, so it is slower. Please report it with the model's configuration.",
            stacklevel=3,
        )
        model.graph = before.graph
        simplify(model)


def fuse_blocks(model: ir.Model, precision: str = "float32") -> None:
    """Rewrites the blocks of a model in place; the results stay the same.

    Args:
        model: result of `simplify` with `hoisting=False`.
        precision: precision that the model will have. float16 is for GPUs, where residual + norm
            are faster as one operator. In float32, encoders use operators for large batches on
            CPUs, which reduced precisions do not have.
    """
    if precision == "float16":
        finish = fuse_norms.fuse_residuals
    else:
        finish = fuse_norms.sum_residuals
    steps = [
        _patterns(PickedElements, Ascending),
        _patterns(Gelu, HardSigmoid),
        fuse_products.multiply_vectors,
        _patterns(fuse_norms.LayerNorm, fuse_norms.FoldedLayerNorm, fuse_norms.RootMeanSquareNorm),
        _patterns(fuse_norms.UnshiftedLayerNorm, fuse_norms.FoldedUnshiftedLayerNorm),
        fuse_attention.fuse_attention,
        fuse_products.multiply_vectors,  # the output of an attention is flat now
        _patterns(fuse_products.Logits),
    ]
    shapes = simplify(model, hoisting=False)
    for step in steps:
        while step(model, shapes):
            shapes = simplify(model, hoisting=False)
    fuse_attention.pack_projections(model.graph, shapes, project=precision == "float32")
    finish(model.graph, simplify(model, hoisting=False))
    model.graph.opset_imports.setdefault(MICROSOFT, 1)
    shapes = simplify(model)
    if precision == "float32":
        fuse_products.flatten_networks(model.graph, shapes)
        fuse_norms.sum_biases(model.graph)
        simplify(model)


def warn_of_unfused(model: keras.Model, graphs: Sequence[ir.Graph]) -> None:
    """Warns if a model has layer norms or attention, and none of them became an operator.

    The results are the same without fusion, so the proof does not show it.
    """
    operators = {node.op_type for graph in graphs for node in all_nodes(graph)}
    layers = model._flatten_layers()
    for kinds, names in FUSED.items():
        # A subclass may compute something else, and position encodings in attention are not fused.
        found = [
            layer
            for layer in layers
            if type(layer) in kinds and getattr(layer, "positions", None) is None
        ]
        if found and operators.isdisjoint(names):
            warnings.warn(
                f"The model has {len(found)} layers of the kind {kinds[-1].__name__}, such as "
                f"{found[0].path!r}, and 0 of them became one operator. The results are right, but "
                "the file is slower. Either these layers have an option that fusion does not "
                f"support, such as another axis, or Keras {keras.__version__} computes them in an "
                "unknown order; please report the latter.",
                stacklevel=3,
            )


def _patterns(*rules: type[Rule]) -> Callable[[ir.Model, InferredShapes], int]:
    """Returns a step that applies some rules and counts the rewrites."""

    def apply(model: ir.Model, shapes: InferredShapes) -> int:
        instances = [rule.rule(shapes) for rule in rules]
        return pattern.RewriteRuleSet(instances).apply_to_model(model)

    return apply
