"""fairseq's translation models, from the state dict of a checkpoint ("model" in it).

They are the paper's model, post-norm or pre-norm, with biases in attention. The importer stores
fairseq's sinusoids (all sines, then all cosines) or learned positions (after two unused rows) as a
table of positions. It puts the rows of the vocabulary in our order. A decoder of fairseq starts
with the end token, so the row of the begin token is a copy of it.

The state is a dict of arrays, `{name: w.numpy() for name, w in checkpoint["model"].items()}`. The
checkpoint also holds pickled settings. Reading them runs code, so read only files that you trust.

Shapes: D d_model, F d_ff, U fairseq's vocabulary, V ours.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.importers import mapping
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import Transformer
from keras_transformer.types import Array, Ids

BEGIN, PAD, END, UNKNOWN = range(4)  # ids of every dictionary of fairseq
OFFSET = PAD + 1  # fairseq's first position
SPARE = re.compile(r"(encoder|decoder)\.(version|embed_positions\._float_tensor)")


def load_model(
    state: Mapping[str, Array],
    num_heads: int,
    max_length: int = 1024,
    scale_embedding: bool = True,
    **options: Any,
) -> Transformer:
    """Makes a `Transformer` with the weights of a fairseq translation model.

    The state determines sizes, tied matrices and pre-norm. Ids are in our order; `row_order` gives
    fairseq's ids.

    Args:
        state: dict from name to array.
        num_heads: int, heads of each attention ("encoder_attention_heads").
        max_length: int, positions in the table of sinusoids; ignored for learned positions.
            Defaults to 1024.
        scale_embedding: bool, `False` for models with "no_scale_embedding". Defaults to `True`.
        **options: other arguments of `Transformer` that do not change weights, such as
            `activation`, `dropout` or `dtype`.

    Raises:
        ValueError: a weight is missing, left over or misshapen.

    Example:

    >>> model = load_model(state, num_heads=8)  # doctest: +SKIP
    """
    sizes = _sizes(state)
    shared, tied, norm_first = sizes["shared"], sizes["tied"], sizes["norm_first"]
    orders = [row_order(size) for size in sizes["vocabularies"]]
    tables = {
        side: _positions(state, name, max_length, sizes["d_model"])
        for side, name in (("source", "encoder"), ("target", "decoder"))
    }
    targets = _targets(state, sizes)
    copies = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"} if shared else {}
    if tied:
        copies["decoder.output_projection.weight"] = "decoder.embed_tokens.weight"
    spare = [name for name in state if SPARE.fullmatch(name)]
    spare += [f"{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    arrays = mapping.mapped(mapping.checked(state, targets, copies, spare), targets)
    settings = {
        "norm_first": norm_first,
        "use_bias": True,
        "tie_output": tied,
        "output_bias": True,
        "target_vocab_size": None if shared else len(orders[1]),
        "positions": LearnedPositionEncoding(min(map(len, tables.values()))),
    }
    model = Transformer(
        len(orders[0]),
        sizes["layers"],
        sizes["d_model"],
        num_heads,
        sizes["d_ff"],
        **settings | options,
    )
    for side, table in tables.items():
        arrays[f"{side}_positions/embeddings"] = table[: model.max_length]
    names = ["token_embedding"] if shared else ["source_embedding", "target_embedding"]
    embeddings = [state[f"{side}.embed_tokens.weight"] for side in ("encoder", "decoder")]
    block = f"decoder_block_{sizes['layers'][1] - 1}/feed_forward_norm"
    arrays |= mapping.embedding_weights(
        dict(zip(names, zip(embeddings, orders, strict=True), strict=False)),
        kernel=None if tied else state["decoder.output_projection.weight"],
        scale=1.0 if scale_embedding else sizes["d_model"] ** -0.5,
        last_norm=mapping.norm_weights(arrays, "decoder_norm" if norm_first else block),
    )
    mapping.assign_weights(model, arrays)
    return model


def row_order(size: int) -> Ids:
    """Returns fairseq's ids of our rows, (V,), for a vocabulary of `size` ids."""
    return mapping.row_order(size, PAD, UNKNOWN, END, END)


def _sizes(state: Mapping[str, Array]) -> dict[str, Any]:
    """Returns sizes and settings of a model, from the shapes and names of its tensors."""
    tables = [f"{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    for name in (*tables, "encoder.layers.0.fc1.weight"):
        if name not in state or state[name].ndim != 2:
            raise ValueError(
                f"{name} is missing or no matrix. Pass the state of a fairseq translation model."
            )
    source, target = (state[name] for name in tables)
    output = state.get("decoder.output_projection.weight", target)
    layers = tuple(mapping.count_layers(state, f"{side}.layers") for side in ("encoder", "decoder"))
    return {
        "d_model": source.shape[1],
        "d_ff": state["encoder.layers.0.fc1.weight"].shape[0],
        "layers": layers,
        "vocabularies": (len(source), len(target)),
        "shared": np.array_equal(source, target),
        "tied": np.array_equal(target, output),
        "norm_first": "encoder.layer_norm.weight" in state,
    }


def _targets(state: Mapping[str, Array], sizes: Mapping[str, Any]) -> mapping.Targets:
    """Returns the targets of all tensors that must exist."""
    d_model = sizes["d_model"]
    targets = mapping.encoder_decoder_blocks("", sizes["layers"], d_model, sizes["d_ff"])
    shapes = {"encoder.embed_tokens.weight": (sizes["vocabularies"][0], d_model)}
    target = (sizes["vocabularies"][1], d_model)
    if not sizes["shared"]:
        shapes["decoder.embed_tokens.weight"] = target
    if not sizes["tied"]:
        shapes["decoder.output_projection.weight"] = target
    targets |= {name: mapping.Target(shape) for name, shape in shapes.items()}
    for side in ("encoder", "decoder"):
        if sizes["norm_first"]:
            targets |= mapping.norm(f"{side}.layer_norm", d_model, f"{side}_norm")
    return targets


def _positions(state: Mapping[str, Array], side: str, max_length: int, d_model: int) -> Array:
    """Returns the table of positions (L, D) of one side, from fairseq's first position."""
    learned = state.get(f"{side}.embed_positions.weight")
    if learned is not None:
        return learned[OFFSET:]
    half = d_model // 2
    frequencies = 10000.0 ** (-np.arange(half) / (half - 1))  # (D / 2,)
    angles = np.arange(OFFSET, OFFSET + max_length)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
