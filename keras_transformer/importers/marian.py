"""Marian's translation models in Hugging Face's layout (OPUS-MT): folders with `config.json`.

They are the paper's model, post-norm, with biases in attention and on the logits. The importer
stores Marian's sinusoids (all sines, then all cosines) as a table of positions, which is not
trainable, and puts the rows of the vocabulary in our order. For an embedding without the scale √D
it divides the matrix by √D and multiplies the last norm by it.

A folder holds `config.json` and `model.safetensors` (or `pytorch_model.bin`). `load` also reads
`vocab.json`, `source.spm` and `target.spm`, and `target_vocab.json` if the two sides have separate
vocabularies. A text may begin with a language token of the vocabulary, such as ">>fra<<".
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer.importers import checkpoint, fairseq, pieces
from keras_transformer.importers.tables import (
    Arrays,
    Loader,
    ModelLoader,
    Origin,
    RowOrders,
    Table,
    half_sinusoids,
)
from keras_transformer.layers.positions import LearnedPositionEncoding

__all__ = ["load", "load_model", "row_orders"]

TENSORS = {
    **{f"model.{name}": path for name, path in fairseq.NAMES.items()},
    "model.encoder.embed_tokens.weight": "source_embedding/embeddings",
    "model.decoder.embed_tokens.weight": "target_embedding/embeddings",
    "lm_head.weight": "target_embedding/output_kernel",
    "final_logits_bias": "target_embedding/output_bias",
}
SHARED = "model.shared.weight"
TABLES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
# Sizes that both sides of our model have in common.
PAIRS = tuple((f"encoder_{name}", f"decoder_{name}") for name in ("attention_heads", "ffn_dim"))
CONFIG = checkpoint.HuggingFace(
    "marian",
    sizes=("vocab_size", "d_model", *PAIRS[0], *PAIRS[1]),
    layers=("encoder_layers", "decoder_layers"),
    ids=("pad_token_id", "eos_token_id", "decoder_start_token_id"),
    more_sizes=("decoder_vocab_size",),
    defaults={
        "activation_function": "gelu",
        "attention_dropout": 0.0,
        "decoder_vocab_size": None,
        "dropout": 0.1,
        "max_position_embeddings": 1024,
        "scale_embedding": False,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "unk_token_id": 1,
    },
    fixed={"normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False},
)
EPSILON = 1e-5
MOST_POSITIONS = 65_536


def _read_files(folder: pathlib.Path) -> tuple[dict[str, Any], Arrays]:
    config, tensors = CONFIG.read_files(folder)
    for pair in PAIRS:
        if config[pair[0]] != config[pair[1]]:
            raise ValueError(
                f"{' and '.join(pair)} are {[config[name] for name in pair]}, but the two sides of "
                "our model have the same heads and feed-forward networks."
            )
    config["decoder_vocab_size"] = config["decoder_vocab_size"] or config["vocab_size"]
    if config["max_position_embeddings"] > MOST_POSITIONS:  # the table need not be in the file
        raise ValueError(
            f"{folder / 'config.json'} says "
            f"max_position_embeddings={config['max_position_embeddings']}, but at most "
            f"{MOST_POSITIONS} are supported."
        )
    return config, tensors


def make_table(
    config: dict[str, Any], tensors: Mapping[str, Any], options: dict[str, Any]
) -> Table:
    """Returns the table of a complete configuration."""
    d_model, length = config["d_model"], config["max_position_embeddings"]
    special = [config[f"{name}_token_id"] for name in ("pad", "unk", "decoder_start", "eos")]
    sizes, names, copies, last = ["vocab_size", "decoder_vocab_size"], TENSORS, {}, TABLES[1]
    if config["share_encoder_decoder_embeddings"]:
        sizes, names = sizes[:1], {**TENSORS, SHARED: "token_embedding/embeddings"}
        copies, last = dict.fromkeys(TABLES, SHARED), SHARED
    sinusoids = half_sinusoids(length, d_model, d_model // 2)
    return Table(
        names,
        sizes={"D": d_model, "F": config["encoder_ffn_dim"], "P": length, "Q": length},
        layers={side: config[f"{side}_layers"] for side in ("encoder", "decoder")},
        num_heads=config["encoder_attention_heads"],
        special=[(config[name], *special) for name in sizes],
        unknown=config["unknown"],
        copies=copies | checkpoint.tied(config, "lm_head.weight", last),
        computed=dict.fromkeys(POSITIONS, sinusoids),
        without=r"(en|de)coder_norm/\w+",
        scale=1.0 if config["scale_embedding"] else d_model**-0.5,
        settings={
            "dropout": config["dropout"],
            "attention_dropout": config["attention_dropout"],
            "activation": checkpoint.activation(config, "activation_function"),
            "positions": LearnedPositionEncoding(length, trainable=False),
            "epsilon": EPSILON,
        },
    )


def _vocabulary(folder: pathlib.Path, config: dict[str, Any]) -> pieces.Vocabulary:
    models = [pieces.read_spm(folder / f"{side}.spm") for side in ("source", "target")]
    shared = config["share_encoder_decoder_embeddings"]
    names = ("vocab.json", "vocab.json" if shared else "target_vocab.json")
    ids = [_read_vocabulary(folder / name, config) for name in names]
    return pieces.of_both_sides(models, ids, shared)


def _read_vocabulary(path: pathlib.Path, config: Mapping[str, Any]) -> dict[str, int]:
    """Reads a dict from piece to the origin's id, of `vocab.json`."""
    ids = checkpoint.check_ids(path, checkpoint.read_json(path))
    for piece, name in (("</s>", "eos_token_id"), ("<unk>", "unk_token_id")):
        if pieces.special_id(ids, piece) != config[name]:
            raise ValueError(
                f"{path} numbers {piece!r} as {ids[piece]}, but config.json says "
                f"{name}={config[name]}. Check that both files belong to one model."
            )
    return ids


ORIGIN = Origin("marian", _read_files, make_table, _vocabulary)
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
