"""OpenNMT-py's translation models, from the state dicts of a checkpoint ("model" and "generator").

They are the paper's model, pre-norm, with its sinusoids and with biases in attention and on the
logits. Only names and the order of special ids differ. Sources have no end token in OpenNMT-py,
unless the training data had one; with `reads_end=False` the model masks out the end token that
`Translator` adds.

The states are dicts of arrays, `{name: tensor.numpy() for name, tensor in state.items()}`.

Shapes: D d_model, F d_ff, U OpenNMT-py's vocabulary, V ours.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.importers import mapping
from keras_transformer.models import Transformer
from keras_transformer.types import Array, Ids

UNKNOWN, PAD, BEGIN, END = range(4)  # ids of every vocabulary of OpenNMT-py
EPSILON = 1e-6
TABLE = "{}.embeddings.make_embedding.emb_luts.0.weight"
SPARE = re.compile(r"(encoder|decoder)\.embeddings\.make_embedding\.pe\.pe")
ATTENTION = {
    "linear_query": "query",
    "linear_keys": "key",
    "linear_values": "value",
    "final_linear": "output",
}
# Of each side: the prefix of its blocks, and the norms of its attentions.
SIDES = {
    "encoder": ("encoder.transformer", {"self_attn": "layer_norm"}),
    "decoder": (
        "decoder.transformer_layers",
        {"self_attn": "layer_norm_1", "context_attn": "layer_norm_2"},
    ),
}
OURS = {"self_attn": "self_attention", "context_attn": "cross_attention"}


def load_model(
    state: Mapping[str, Array], generator: Mapping[str, Array], num_heads: int, **options: Any
) -> Transformer:
    """Makes a `Transformer` with the weights of an OpenNMT-py translation model.

    The states determine sizes and tied matrices. Ids are in our order; `row_order` gives
    OpenNMT-py's ids.

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
    tables = [TABLE.format(side) for side in ("encoder", "decoder")]
    hidden = "encoder.transformer.0.feed_forward.w_1.weight"
    generator = {f"generator.{name.removeprefix('0.')}": w for name, w in generator.items()}
    state = {_current_name(name): array for name, array in {**state, **generator}.items()}
    for name in (*tables, hidden, "generator.weight"):
        if name not in state or state[name].ndim != 2:
            raise ValueError(
                f"{name} is missing or no matrix. Pass the states of an OpenNMT-py model."
            )
    source, target = (state[name] for name in tables)
    shared = np.array_equal(source, target)
    tied = np.array_equal(state["generator.weight"], target)
    orders = [row_order(len(table)) for table in (source, target)]
    d_model, d_ff = source.shape[1], len(state[hidden])
    layers = [mapping.count_layers(state, prefix) for prefix, _ in SIDES.values()]
    targets = _targets(layers, d_model, d_ff)
    shapes = {tables[0]: source.shape, tables[1]: (len(target), d_model)}
    shapes |= {"generator.weight": target.shape, "generator.bias": (len(target),)}
    targets |= {name: mapping.Target(shape) for name, shape in shapes.items()}
    mapping.checked(state, targets, spare=[name for name in state if SPARE.fullmatch(name)])
    settings = {
        "norm_first": True,
        "use_bias": True,
        "epsilon": EPSILON,
        "tie_output": tied,
        "output_bias": True,
        "target_vocab_size": None if shared else len(orders[1]),
    }
    model = Transformer(
        len(orders[0]), tuple(layers), d_model, num_heads, d_ff, **settings | options
    )
    names = ["token_embedding"] if shared else ["source_embedding", "target_embedding"]
    embeddings = zip((source, target), orders, strict=True)
    arrays = mapping.mapped(state, targets) | mapping.embedding_weights(
        dict(zip(names, embeddings, strict=False)),
        state["generator.bias"],
        kernel=None if tied else state["generator.weight"],
    )
    mapping.assign_weights(model, arrays)
    return model


def row_order(size: int) -> Ids:
    """Returns OpenNMT-py's ids of our rows, (V,), for a vocabulary of `size` ids."""
    return mapping.row_order(size, PAD, UNKNOWN, BEGIN, END)


def _current_name(name: str) -> str:
    """Returns the present name of a tensor; norms once had other names."""
    return re.sub(r"\.b_2$", ".bias", re.sub(r"\.a_2$", ".weight", name))


def _targets(layers: Sequence[int], d_model: int, d_ff: int) -> mapping.Targets:
    """Returns the targets of blocks and norms."""
    targets: mapping.Targets = {}
    for (side, (prefix, attentions)), count in zip(SIDES.items(), layers, strict=True):
        targets |= mapping.norm(f"{side}.layer_norm", d_model, f"{side}_norm")
        for i in range(count):
            theirs, ours = f"{prefix}.{i}", f"{side}_block_{i}"
            for part, norm in attentions.items():
                name = f"{ours}/{OURS[part]}"
                for linear, projection in ATTENTION.items():
                    path = f"{name}/{projection}"
                    targets |= mapping.linear(f"{theirs}.{part}.{linear}", d_model, d_model, path)
                targets |= mapping.norm(f"{theirs}.{norm}", d_model, f"{name}_norm")
            block, path = f"{theirs}.feed_forward", f"{ours}/feed_forward"
            targets |= mapping.linear(f"{block}.w_1", d_model, d_ff, f"{path}/hidden")
            targets |= mapping.linear(f"{block}.w_2", d_ff, d_model, f"{path}/output")
            targets |= mapping.norm(f"{block}.layer_norm", d_model, f"{path}_norm")
    return targets
