"""T5 in Hugging Face's layout, with its relatives of the same type: T5 1.1, FLAN-T5 and ByT5.

They are the paper's model, pre-norm, without biases and without the mean in the norms. Positions
are a bias of the scores, which all blocks of a stack share. Scores have no scale, so the importer
multiplies the queries by √K. The first T5 ties the logits to the embedding and divides the vectors
before them by √D; the others have a matrix for the logits and a gated feed-forward network.

A folder holds `config.json` and `model.safetensors` (or `pytorch_model.bin`). `load` also reads
`tokenizer.json` or `spiece.model`. ByT5, whose tokens are bytes, needs neither: its
`tokenizer_class` names it. A search writes a target; put the task of FLAN-T5 before the source.
"""

import functools
import pathlib
from typing import Any

from keras_transformer.importers import checkpoint, pieces
from keras_transformer.importers.encoder_decoders import check_ids, json_vocabulary
from keras_transformer.importers.tables import (
    Arrays,
    Loader,
    ModelLoader,
    Origin,
    RowOrders,
    Table,
    equal,
)
from keras_transformer.layers.blocks import FeedForward, GatedFeedForward, gelu_tanh
from keras_transformer.layers.positions import RelativePositionBias

__all__ = ["load", "load_model", "row_orders"]

SELF, CROSS = "layer.0.SelfAttention", "layer.1.EncDecAttention"
PARTS = {"q": "query", "k": "key", "v": "value", "o": "output"}
PLAIN = {"wi": "hidden", "wo": "output"}
GATED = {"wi_0": "hidden", "wi_1": "gate", "wo": "output"}
BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
TENSORS = {
    "shared.weight": "token_embedding/embeddings",
    "lm_head.weight": "token_embedding/output_kernel",
    f"encoder.{BIAS}": "source_positions/buckets",
    f"decoder.{BIAS}": "target_positions/buckets",
    "@.block.#.layer.0.layer_norm.weight": "@_block_#/self_attention_norm/scale",
    "encoder.block.#.layer.1.layer_norm.weight": "encoder_block_#/feed_forward_norm/scale",
    "decoder.block.#.layer.1.layer_norm.weight": "decoder_block_#/cross_attention_norm/scale",
    "decoder.block.#.layer.2.layer_norm.weight": "decoder_block_#/feed_forward_norm/scale",
    "@.final_layer_norm.weight": "@_norm/scale",
    **{
        f"@.block.#.{SELF}.{name}.weight": f"@_block_#/self_attention/{path}/kernel"
        for name, path in PARTS.items()
    },
    **{
        f"decoder.block.#.{CROSS}.{name}.weight": f"decoder_block_#/cross_attention/{path}/kernel"
        for name, path in PARTS.items()
    },
}
CONFIG = checkpoint.HuggingFace(
    "t5",
    sizes=("vocab_size", "d_model", "d_ff"),
    layers=("num_layers",),
    ids=("pad_token_id", "eos_token_id"),
    more_sizes=("num_heads", "relative_attention_num_buckets"),
    defaults={
        "d_kv": 64,
        "decoder_start_token_id": 0,
        "dropout_rate": 0.1,
        "eos_token_id": 1,
        "feed_forward_proj": "relu",
        "layer_norm_epsilon": 1e-6,
        "num_decoder_layers": None,
        "num_heads": 8,
        "pad_token_id": 0,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "scale_decoder_outputs": True,
        "tie_word_embeddings": True,
        "tokenizer_class": "T5Tokenizer",
    },
    fixed={"is_encoder_decoder": True},
)
UNKNOWN = 2  # the id of "<unk>"
SENTINELS = 100  # tokens after the pieces of `spiece.model`: <extra_id_99> first, <extra_id_0> last


def read_files(
    files: checkpoint.HuggingFace, folder: pathlib.Path
) -> tuple[dict[str, Any], Arrays]:
    config, tensors = files.read_files(folder)
    kind = checkpoint.read_json(folder / "tokenizer_config.json", optional=True)
    config["tokenizer_class"] = kind.get("tokenizer_class") or config["tokenizer_class"]
    return {**config, "unk_token_id": UNKNOWN}, tensors


def make_table(config: dict[str, Any], tensors: Arrays, options: dict[str, Any]) -> Table:
    """Returns the table of a complete configuration."""
    gated, _, name = config["feed_forward_proj"].rpartition("-")
    if gated not in ("", "gated"):
        raise ValueError(
            f"feed_forward_proj is {config['feed_forward_proj']!r:.100}, but must be an "
            'activation, or "gated-" and an activation.'
        )
    activation = checkpoint.activation({"feed_forward_proj": name}, "feed_forward_proj")
    if gated and name == "gelu":
        activation = gelu_tanh
    network = GatedFeedForward if gated else FeedForward
    scaled = config["scale_decoder_outputs"] and config["tie_word_embeddings"]
    copies = {f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")}
    if config["tie_word_embeddings"] and "lm_head.weight" not in tensors:
        copies["lm_head.weight"] = "shared.weight"
    copies |= equal(tensors, {"lm_head.weight": "shared.weight"})
    rows = dict(TENSORS)
    for layer, side in enumerate(("encoder", "decoder"), 1):
        for theirs, ours in (GATED if gated else PLAIN).items():
            theirs = f"{side}.block.#.layer.{layer}.DenseReluDense.{theirs}.weight"
            rows[theirs] = f"{side}_block_#/feed_forward/{ours}/kernel"
    positions = functools.partial(
        RelativePositionBias,
        config["relative_attention_num_buckets"],
        config["relative_attention_max_distance"],
    )
    special = [config[f"{name}_token_id"] for name in ("pad", "unk", "decoder_start", "eos")]
    depth = config["num_layers"]
    return Table(
        rows,
        sizes={
            "D": config["d_model"],
            "F": config["d_ff"],
            "H": config["num_heads"] * config["d_kv"],
            "N": config["num_heads"],
            "R": config["relative_attention_num_buckets"],
        },
        layers={"encoder": depth, "decoder": config["num_decoder_layers"] or depth},
        num_heads=config["num_heads"],
        special=[(config["vocab_size"], *special)],
        copies=copies,
        spare=rf"decoder\.block\.0\.{CROSS}\.relative_attention_bias\.weight",  # never used
        scale=config["d_model"] ** -0.5,
        logit_scale=config["d_model"] ** -0.5 if scaled else 1.0,
        finish=functools.partial(_scale_queries, config["d_kv"] ** 0.5),
        settings={
            "dropout": config["dropout_rate"],
            "attention_dropout": config["dropout_rate"],
            "key_dim": config["d_kv"],
            "use_bias": False,
            "norm_first": True,
            "norm": "rms",
            "epsilon": config["layer_norm_epsilon"],
            "d_ff": None,
            "feed_forward": network(config["d_ff"], activation, use_bias=False),
            "positions": (positions(), positions(bidirectional=False)),
        },
    )


def _scale_queries(factor: float, arrays: Arrays) -> None:
    for path in arrays:
        if path.endswith("attention/query/kernel"):
            arrays[path] = arrays[path] * factor


def vocabulary(folder: pathlib.Path, config: dict[str, Any]) -> pieces.Vocabulary:
    """Returns the tokenizer of a folder."""
    if config["tokenizer_class"] == "ByT5Tokenizer":
        return pieces.Vocabulary(lambda orders: pieces.byte_tokenizer(len(orders[0])))
    if (folder / "tokenizer.json").exists():
        return json_vocabulary(folder, config)
    path = folder / "spiece.model"
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} has neither tokenizer.json nor spiece.model, and its tokenizer_class is not "
            "ByT5Tokenizer. Copy the files of the tokenizer too."
        )
    model = pieces.read_spm(path)
    ids = pieces.piece_ids(model)
    check_ids(path, ids, config)
    more = range(len(ids), min(len(ids) + SENTINELS, config["vocab_size"]))
    if "<extra_id_0>" not in ids and "▁<extra_id_0>" not in ids:
        ids |= {f"<extra_id_{SENTINELS - 1 - i}>": id for i, id in enumerate(more)}
    return pieces.of_both_sides([model, model], [ids, ids], shared=True)


ORIGIN = Origin("t5", functools.partial(read_files, CONFIG), make_table, vocabulary)
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
