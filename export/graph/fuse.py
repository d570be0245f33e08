"""Fusion of our own subgraphs into ONNX's and ONNX Runtime's operators, by pattern rewriting.

What Keras and tf2onnx write for a layer norm is twelve nodes, for an attention about fifteen. A
decoding step is bound by the number of nodes wherever the model is small, so each pattern of ours
becomes the one operator that does the same: `LayerNormalization` of ONNX, and of the domain
`com.microsoft` `MultiHeadAttention` (with the decoder's growing cache where there is one),
`FusedMatMul` (products with a transposed matrix) and, for GPUs, `SkipLayerNormalization` (residual
+ norm).

The rules stand by subject in `fuse_activations`, `fuse_attention`, `fuse_norms`,
`fuse_projections` and `fuse_selections`; what a rule is made of is in `fuse_rule`. A new rule is a
class there and an entry in its list of rules.

Why not rules that exist: onnxscript 0.7's `optimize_for_ort` fuses nothing of a converted model of
ours, no norm and no attention (449 nodes of a forward pass are left, 180 after these rules), nor
does ONNX Runtime's transformer optimizer. Both know the graphs that PyTorch's exporters write.
"""

import contextlib
import warnings

from onnxscript.rewriter import pattern

from keras_transformer.export.graph.channels_first import keep_channels_first
from keras_transformer.export.graph.fuse_activations import activation_rules
from keras_transformer.export.graph.fuse_attention import attention_rules, cached_attention_rules
from keras_transformer.export.graph.fuse_convolutions import fuse_convolutions
from keras_transformer.export.graph.fuse_norms import norm_rules, residual_rules, sum_residuals
from keras_transformer.export.graph.fuse_projections import (
    logits_rules,
    pack_projections,
    product_rules,
)
from keras_transformer.export.graph.fuse_selections import condition_rules, index_rules
from keras_transformer.export.graph.nodes import MICROSOFT, all_nodes
from keras_transformer.export.graph.simplify import simplify


@contextlib.contextmanager
def optional(model):
    """Undoes what is done to an `onnx_ir.Model` inside, where that fails, and warns.

    Fused or not, the file computes the same, and the proof that follows holds either to Keras.
    """
    before = model.clone()
    for name, value in model.graph.initializers.items():
        before.graph.initializers[name].meta.update(value.meta)
    try:
        yield
    except Exception as error:  # of any kind: the file is right without fusion
        warnings.warn(
            f"Fusing blocks failed: {type(error).__name__}: {str(error)[:100]}. The file is "
            "written without, so it is slower. Please report it with the model's configuration.",
            stacklevel=3,
        )
        model.graph = before.graph
        simplify(model)


def fuse_blocks(model, skip_norms=False):
    """Rewrites the blocks of an `onnx_ir.Model` in place; the results stay as they are.

    Args:
        model: result of `simplify` with `hoisting=False`.
        skip_norms: whether residual + norm become one operator, which wins on GPUs only.
    """

    def flat_rules(known):
        return product_rules(known) + condition_rules(known) + activation_rules(known)

    steps = [index_rules, flat_rules, norm_rules, cached_attention_rules, attention_rules]
    steps.append(flat_rules)  # attention has left new places for these
    if skip_norms:
        steps.append(residual_rules)
    steps.append(logits_rules)
    known = simplify(model, hoisting=False)
    for rules in steps:
        # Each set of rules sees what the one before has left, with fresh knowledge of shapes.
        while pattern.RewriteRuleSet(rules(known)).apply_to_model(model):
            known = simplify(model, hoisting=False)
    pack_projections(model.graph)
    if any(node.op_type == "Conv" for node in all_nodes(model.graph)):
        keep_channels_first(model.graph, simplify(model, hoisting=False))
        fuse_convolutions(model, simplify(model, hoisting=False))
    if not skip_norms:
        sum_residuals(model.graph)
    model.graph.opset_imports.setdefault(MICROSOFT, 1)
