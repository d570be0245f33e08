"""fairseq's translation models, from the state dict of a checkpoint ("model" in it).

They are the paper's model, post-norm or pre-norm, with biases in attention. The importer stores
fairseq's sinusoids (all sines, then all cosines) or learned positions (after two unused rows) as a
table of positions. It puts the rows of the vocabulary in our order. A decoder of fairseq starts
with the end token, so the row of the begin token is a copy of it.

The state is a dict of arrays, `{name: w.numpy() for name, w in checkpoint["model"].items()}`. The
checkpoint also holds pickled settings. Reading them runs code, so read only files that you trust.
"""

from collections.abc import Mapping
from typing import Any

from keras_transformer.importers.tables import Table, count_layers, equal, half_sinusoids, shape_of
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import Transformer
from keras_transformer.types import Array

BEGIN, PAD, END, UNKNOWN = range(4)  # ids of every dictionary of fairseq
SPECIAL = PAD, UNKNOWN, END, END  # for `mapping.row_order`
OFFSET = PAD + 1  # fairseq's first position
# Hugging Face's Marian and Whisper also use these names.
NAMES = {
    "@.layers.#.self_attn.q_proj.*": "@_block_#/self_attention/query",
    "@.layers.#.self_attn.k_proj.*": "@_block_#/self_attention/key",
    "@.layers.#.self_attn.v_proj.*": "@_block_#/self_attention/value",
    "@.layers.#.self_attn.out_proj.*": "@_block_#/self_attention/output",
    "@.layers.#.self_attn_layer_norm.*": "@_block_#/self_attention_norm",
    "decoder.layers.#.encoder_attn.q_proj.*": "decoder_block_#/cross_attention/query",
    "decoder.layers.#.encoder_attn.k_proj.*": "decoder_block_#/cross_attention/key",
    "decoder.layers.#.encoder_attn.v_proj.*": "decoder_block_#/cross_attention/value",
    "decoder.layers.#.encoder_attn.out_proj.*": "decoder_block_#/cross_attention/output",
    "decoder.layers.#.encoder_attn_layer_norm.*": "decoder_block_#/cross_attention_norm",
    "@.layers.#.fc1.*": "@_block_#/feed_forward/hidden",
    "@.layers.#.fc2.*": "@_block_#/feed_forward/output",
    "@.layers.#.final_layer_norm.*": "@_block_#/feed_forward_norm",
    "@.layer_norm.*": "@_norm",
    "encoder.embed_positions.weight": "source_positions/embeddings",
    "decoder.embed_positions.weight": "target_positions/embeddings",
}
TENSORS = {
    **NAMES,
    "encoder.embed_tokens.weight": "source_embedding/embeddings",
    "decoder.embed_tokens.weight": "target_embedding/embeddings",
    "decoder.output_projection.weight": "target_embedding/output_kernel",
}
SIDES = ("encoder", "decoder")


def load_model(
    state: Mapping[str, Array],
    num_heads: int,
    max_length: int = 1024,
    scale_embedding: bool = True,
    **options: Any,
) -> Transformer:
    """Makes a `Transformer` with the weights of a fairseq translation model.

    The state determines sizes, tied matrices and pre-norm. Ids are in our order: `SPECIAL` has
    fairseq's ids of padding, unknown, begin and end.

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
    advice = "Pass the state of a fairseq translation model."
    embeddings = [f"{side}.embed_tokens.weight" for side in SIDES]
    (source, d_model), (target, _) = (shape_of(state, name, 2, advice) for name in embeddings)
    d_ff, _ = shape_of(state, "encoder.layers.0.fc1.weight", 2, advice)
    output = "decoder.output_projection.weight"
    state = {output: state[embeddings[1]], **state}  # tied files may lack it
    copies = equal(state, {embeddings[1]: embeddings[0], output: embeddings[1]})
    positions = _positions(state, max_length, d_model)
    length = min(map(len, positions.values()))
    norm_first = "encoder.layer_norm.weight" in state
    sizes = [source] if embeddings[1] in copies else [source, target]
    table = Table(
        TENSORS,
        sizes={"D": d_model, "F": d_ff, "P": length, "Q": length},
        layers={side: count_layers(state, f"{side}.layers.") for side in SIDES},
        num_heads=num_heads,
        special=[(size, *SPECIAL) for size in sizes],
        copies=copies,
        spare=r"(encoder|decoder)\.(version|embed_positions\._float_tensor)",
        without="" if norm_first else r"(en|de)coder_norm/\w+",
        scale=1.0 if scale_embedding else d_model**-0.5,
        settings={"norm_first": norm_first, "positions": LearnedPositionEncoding(length)},
    )
    return table.build(
        {**state, **{name: array[:length] for name, array in positions.items()}}, options
    )


def _positions(state: Mapping[str, Array], max_length: int, d_model: int) -> dict[str, Array]:
    """Returns the tables of positions (L, D) by their names, from fairseq's first position."""
    names = [f"{side}.embed_positions.weight" for side in SIDES]
    if names[0] in state:
        return {name: state[name][OFFSET:] for name in names}
    return dict.fromkeys(names, half_sinusoids(max_length, d_model, d_model // 2 - 1, OFFSET))
