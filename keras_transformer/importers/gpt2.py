"""GPT-2 in Hugging Face's layout, as a `CausalTransformer`.

GPT-2 is the decoder of the paper without cross-attention, pre-norm, with learned positions. It does
not multiply its embedding by √D, so the importer divides the matrix by √D and multiplies the last
norm by it. The importer also splits the one matrix of queries, keys and values. GPT-2 has neither a
padding nor an unknown token, and one token, `<|endoftext|>`, begins and ends a text.

A folder holds `config.json`, `model.safetensors` (or `pytorch_model.bin`) and `tokenizer.json`.
"""

import functools
import pathlib
from typing import Any

from keras_transformer.importers import checkpoint
from keras_transformer.importers.encoder_decoders import json_vocabulary
from keras_transformer.importers.mapping import NEVER_LOW
from keras_transformer.importers.tables import Arrays, Loader, ModelLoader, Origin, RowOrders, Table
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import CausalTransformer

__all__ = ["load", "load_model", "row_orders"]

# GPT-2's matrices are (inputs, outputs), like ours.
TENSORS = {
    "transformer.wte.weight": "token_embedding/embeddings",
    "transformer.wpe.weight": "target_positions/embeddings",
    "transformer.h.#.ln_1.*": "decoder_block_#/self_attention_norm",
    "transformer.h.#.attn.c_attn.*": "decoder_block_#/self_attention/{query,key,value}",
    "transformer.h.#.attn.c_proj.*": "decoder_block_#/self_attention/output",
    "transformer.h.#.ln_2.*": "decoder_block_#/feed_forward_norm",
    "transformer.h.#.mlp.c_fc.*": "decoder_block_#/feed_forward/hidden",
    "transformer.h.#.mlp.c_proj.*": "decoder_block_#/feed_forward/output",
    "transformer.ln_f.*": "decoder_norm",
    "lm_head.weight": "token_embedding/output_kernel",
}
CONFIG = checkpoint.HuggingFace(
    "gpt2",
    sizes=("vocab_size", "n_embd", "n_head", "n_positions"),
    layers=("n_layer",),
    ids=("bos_token_id", "eos_token_id"),
    more_sizes=("n_inner",),
    defaults={
        "activation_function": "gelu_new",
        "attn_pdrop": 0.1,
        "bos_token_id": 50256,
        "embd_pdrop": 0.1,
        "eos_token_id": 50256,
        "layer_norm_epsilon": 1e-5,
        "n_inner": None,
        "resid_pdrop": 0.1,
        "tie_word_embeddings": True,
    },
    fixed={
        "add_cross_attention": False,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
    },
)


def _read_files(folder: pathlib.Path) -> tuple[dict[str, Any], Arrays]:
    config, tensors = CONFIG.read_files(folder)
    if "wte.weight" in tensors:  # saved without the language model head
        tensors = {f"transformer.{name}": array for name, array in tensors.items()}
    return config, tensors


def make_table(config: dict[str, Any], tensors: Arrays, options: dict[str, Any]) -> Table:
    begin, end = config["bos_token_id"], config["eos_token_id"]
    return Table(
        TENSORS,
        sizes={
            "D": config["n_embd"],
            "F": config["n_inner"] or 4 * config["n_embd"],
            "Q": config["n_positions"],
        },
        layers={"decoder": config["n_layer"]},
        num_heads=config["n_head"],
        special=[(config["vocab_size"], None, None, begin, end)],
        copies=checkpoint.tied(config, "lm_head.weight", "transformer.wte.weight"),
        spare=r"transformer\.h\.\d+\.attn\.(masked_)?bias",
        transposed=False,
        scale=config["n_embd"] ** -0.5,
        never=NEVER_LOW,
        model=CausalTransformer,
        settings={
            "dropout": config["resid_pdrop"],
            "attention_dropout": config["attn_pdrop"],
            "activation": checkpoint.activation(config, "activation_function"),
            "norm_first": True,
            "positions": LearnedPositionEncoding(config["n_positions"]),
            "epsilon": config["layer_norm_epsilon"],
        },
    )


_vocabulary = functools.partial(json_vocabulary, special={})
ORIGIN = Origin("gpt2", _read_files, make_table, _vocabulary)
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
