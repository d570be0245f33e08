"""OpenNMT-py's translation models, from the state dicts of a checkpoint ("model" and "generator").

They are the paper's model, pre-norm, with its sinusoids and with biases in attention and on the
logits. Only names and the order of special ids differ. Sources have no end token in OpenNMT-py,
unless the training data had one; with `reads_end=False` the model masks out the end token that
`Translator` adds.

The states are dicts of arrays, `{name: tensor.numpy() for name, tensor in state.items()}`.
"""

import re
from collections.abc import Mapping
from typing import Any

from keras_transformer.importers.tables import Table, count_layers, equal, shape_of
from keras_transformer.models import Transformer
from keras_transformer.types import Array

UNKNOWN, PAD, BEGIN, END = range(4)  # ids of every vocabulary of OpenNMT-py
SPECIAL = PAD, UNKNOWN, BEGIN, END  # for `mapping.row_order`
EPSILON = 1e-6
TABLE = "{}.embeddings.make_embedding.emb_luts.0.weight"
ATTENTION = {
    "linear_query": "query",
    "linear_keys": "key",
    "linear_values": "value",
    "final_linear": "output",
}
BLOCKS = {"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"}
TENSORS = {
    **{
        f"{start}.#.self_attn.{theirs}.*": f"{side}_block_#/self_attention/{ours}"
        for side, start in BLOCKS.items()
        for theirs, ours in ATTENTION.items()
    },
    **{
        f"{BLOCKS['decoder']}.#.context_attn.{theirs}.*": f"decoder_block_#/cross_attention/{ours}"
        for theirs, ours in ATTENTION.items()
    },
    **{
        f"{start}.#.feed_forward.{theirs}.*": f"{side}_block_#/{ours}"
        for side, start in BLOCKS.items()
        for theirs, ours in {
            "w_1": "feed_forward/hidden",
            "w_2": "feed_forward/output",
            "layer_norm": "feed_forward_norm",
        }.items()
    },
    f"{BLOCKS['encoder']}.#.layer_norm.*": "encoder_block_#/self_attention_norm",
    f"{BLOCKS['decoder']}.#.layer_norm_1.*": "decoder_block_#/self_attention_norm",
    f"{BLOCKS['decoder']}.#.layer_norm_2.*": "decoder_block_#/cross_attention_norm",
    "@.layer_norm.*": "@_norm",
    TABLE.format("encoder"): "source_embedding/embeddings",
    TABLE.format("decoder"): "target_embedding/embeddings",
    "generator.weight": "target_embedding/output_kernel",
    "generator.bias": "target_embedding/output_bias",
}


def load_model(
    state: Mapping[str, Array], generator: Mapping[str, Array], num_heads: int, **options: Any
) -> Transformer:
    """Makes a `Transformer` with the weights of an OpenNMT-py translation model.

    The states determine sizes and tied matrices. Ids are in our order: `SPECIAL`
    has OpenNMT-py's ids of padding, unknown, begin and end.

    Args:
        state: dict from name to array, "model" in the checkpoint.
        generator: dict from name to array, "generator" in the checkpoint: `weight` and `bias`, or
            `0.weight` and `0.bias`.
        num_heads: int, heads of each attention ("heads").
        **options: other arguments of `Transformer` that do not change weights, such as
            `activation`, `dropout` or `dtype`.

    Raises:
        ValueError: a weight is missing, left over or misshapen.

    Example:

    >>> model = load_model(state, generator, num_heads=8)  # doctest: +SKIP
    """
    generator = {f"generator.{name.removeprefix('0.')}": w for name, w in generator.items()}
    state = {_current_name(name): array for name, array in {**state, **generator}.items()}
    advice = "Pass the states of an OpenNMT-py model."
    tables = [TABLE.format(side) for side in BLOCKS]
    (source, d_model), (target, _) = (shape_of(state, name, 2, advice) for name in tables)
    d_ff, _ = shape_of(state, f"{BLOCKS['encoder']}.0.feed_forward.w_1.weight", 2, advice)
    shape_of(state, "generator.weight", 2, advice)
    copies = equal(state, {tables[1]: tables[0], "generator.weight": tables[1]})
    sizes = [source] if tables[1] in copies else [source, target]
    table = Table(
        TENSORS,
        sizes={"D": d_model, "F": d_ff},
        layers={side: count_layers(state, f"{start}.") for side, start in BLOCKS.items()},
        num_heads=num_heads,
        special=[(size, *SPECIAL) for size in sizes],
        copies=copies,
        spare=r"(encoder|decoder)\.embeddings\.make_embedding\.pe\.pe",
        settings={"norm_first": True, "epsilon": EPSILON},
    )
    return table.build(state, options)


def _current_name(name: str) -> str:
    """Returns the present name of a tensor; norms once had other names."""
    return re.sub(r"\.b_2$", ".bias", re.sub(r"\.a_2$", ".weight", name))
