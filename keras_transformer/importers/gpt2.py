"""GPT-2 in Hugging Face's layout, as a `CausalTransformer`.

GPT-2 is the decoder of the paper without cross-attention, pre-norm, with learned positions. It does
not multiply its embedding by √D, so the importer divides the matrix by √D and multiplies the last
norm by it. The importer also splits the one matrix of queries, keys and values. GPT-2 has neither a
padding nor an unknown token, and one token, `<|endoftext|>`, begins and ends a text.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer.importers import checkpoint, mapping, pieces
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import CausalTransformer
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.text.vocabularies import with_tokenizers
from keras_transformer.types import Array, Ids, StrPath

# Defaults of keys that `config.json` may omit.
DEFAULTS: dict[str, Any] = {
    "activation_function": "gelu_new",
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "layer_norm_epsilon": 1e-5,
    "n_inner": None,
    "resid_pdrop": 0.1,
    "tie_word_embeddings": True,
}
LAYERS = "n_layer"
SIZES = ("vocab_size", "n_embd", "n_head", "n_positions")
SPECIAL = ("bos_token_id", "eos_token_id")
# The logit bias of rows that GPT-2 lacks. Its logits are about -100; the bias must be far below.
NEVER = -1e4
FIXED = {
    "add_cross_attention": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
}


def load_model(folder: StrPath, order: Ids | None = None, **options: Any) -> CausalTransformer:
    """Loads a `CausalTransformer` from a GPT-2 folder in Hugging Face's layout.

    Its ids are in our order.

    Args:
        folder: str or path-like, with `config.json` and `model.safetensors` (or
            `pytorch_model.bin`).
        order: (V,) integers, the origin's id of each of our rows. Defaults to `row_order` of the
            configuration.
        **options: arguments of `CausalTransformer` that do not change weights, such as `dropout`,
            `dtype` or `name`.

    Returns:
        `CausalTransformer`.

    Raises:
        OSError: a file is missing.
        ValueError: another architecture; a tensor that is missing, left over or misshapen; a
            truncated file, or a pickle with code.

    Example:

    >>> model = load_model("gpt2")  # doctest: +SKIP
    """
    config = read_config(folder)
    tensors, path = checkpoint.read_tensors(folder), pathlib.Path(folder) / "config.json"
    checkpoint.check_sizes(path, config, tensors, (*SIZES, "n_inner"), [LAYERS])
    order = row_order(config) if order is None else order
    arrays = mapped_weights(config, tensors, order)
    model = CausalTransformer(
        len(order),
        config["n_layer"],
        config["n_embd"],
        config["n_head"],
        config["n_inner"],
        **{
            "dropout": config["resid_pdrop"],
            "attention_dropout": config["attn_pdrop"],
            "activation": checkpoint.activation(config, "activation_function"),
            "norm_first": True,
            "positions": LearnedPositionEncoding(config["n_positions"]),
            "use_bias": True,
            "epsilon": config["layer_norm_epsilon"],
            "tie_output": config["tie_word_embeddings"],
            "output_bias": True,
            **options,
        },
    )
    mapping.assign_weights(model, arrays)
    return model


def load(folder: StrPath, **options: Any) -> tuple[CausalTransformer, JsonTokenizer]:
    """Loads the model of `load_model`, and the tokenizer of `tokenizer.json` with our ids.

    Args:
        folder: str or path-like.
        **options: as in `load_model`.

    Returns:
        `(model, tokenizer)`.
    """
    model = load_model(folder, **options)
    config = pieces.read_tokenizer(pathlib.Path(folder) / "tokenizer.json")
    return with_tokenizers(model, pieces.renumbered_json(config, row_order(read_config(folder))))


def read_config(folder: StrPath) -> dict[str, Any]:
    """Reads and checks the complete configuration of a GPT-2 folder."""
    needed = (*SIZES, LAYERS, *SPECIAL)
    config = checkpoint.read_config(folder, "gpt2", needed, DEFAULTS, FIXED)
    config["n_inner"] = config["n_inner"] or 4 * config["n_embd"]
    return config


def row_order(config: Mapping[str, Any]) -> Ids:
    """Returns the origin's ids of our rows, (V,)."""
    begin, end = config["bos_token_id"], config["eos_token_id"]
    return mapping.row_order(config["vocab_size"], None, None, begin, end)


def mapped_weights(
    config: Mapping[str, Any], tensors: Mapping[str, Array], order: Ids
) -> dict[str, Array]:
    """Checks GPT-2's tensors, and returns a dict from our path to array."""
    prefix, d_model = "transformer.", config["n_embd"]
    if "wte.weight" in tensors:  # saved without the language model head
        tensors = {f"{prefix}{name}": array for name, array in tensors.items()}
    table, kernel = f"{prefix}wte.weight", "lm_head.weight"
    shape = config["vocab_size"], d_model
    targets = {table: mapping.Target(shape), **_blocks(config, prefix)}
    length = config["n_positions"]
    positions = mapping.Target((length, d_model), ("target_positions/embeddings",))
    targets[f"{prefix}wpe.weight"] = positions
    targets |= mapping.norm(f"{prefix}ln_f", d_model, "decoder_norm")
    copies = {kernel: table}
    if not config["tie_word_embeddings"]:
        targets[kernel], copies = mapping.Target(shape), {}
    masks = [
        f"{prefix}h.{i}.attn.{name}"
        for i in range(config["n_layer"])
        for name in ("bias", "masked_bias")
    ]
    tensors = mapping.checked(tensors, targets, copies, masks)

    arrays = mapping.mapped(tensors, targets)
    return arrays | mapping.embedding_weights(
        {"token_embedding": (tensors[table], order)},
        kernel=None if config["tie_word_embeddings"] else tensors[kernel],
        scale=d_model**-0.5,
        last_norm=mapping.norm_weights(arrays, "decoder_norm"),
        never=NEVER,
    )


def _blocks(config: Mapping[str, Any], prefix: str) -> mapping.Targets:
    """Returns the targets of the blocks. GPT-2's matrices are (inputs, outputs), like ours."""
    d_model, d_ff = config["n_embd"], config["n_inner"]
    targets: mapping.Targets = {}
    for i in range(config["n_layer"]):
        theirs, ours = f"{prefix}h.{i}", f"decoder_block_{i}"
        inside = [f"{ours}/self_attention/{name}" for name in ("query", "key", "value")]
        for name, inputs, outputs, paths in (
            ("attn.c_attn", d_model, 3 * d_model, inside),
            ("attn.c_proj", d_model, d_model, [f"{ours}/self_attention/output"]),
            ("mlp.c_fc", d_model, d_ff, [f"{ours}/feed_forward/hidden"]),
            ("mlp.c_proj", d_ff, d_model, [f"{ours}/feed_forward/output"]),
        ):
            targets |= mapping.linear(f"{theirs}.{name}", inputs, outputs, *paths, transposed=False)
        targets |= mapping.norm(f"{theirs}.ln_1", d_model, f"{ours}/self_attention_norm")
        targets |= mapping.norm(f"{theirs}.ln_2", d_model, f"{ours}/feed_forward_norm")
    return targets
