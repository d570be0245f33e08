"""TrOCR in Hugging Face's layout: pictures of a line of text in, the text out.

The encoder is DeiT or ViT, see `vit`, and the decoder BART's. Its vectors may have another size.
The model reads `pixels` and `target_ids`. The tokenizer puts `<s>` before every text, as BART's.

A folder holds `config.json`, `preprocessor_config.json`, `model.safetensors` (or
`pytorch_model.bin`), and `tokenizer.json` or `sentencepiece.bpe.model`.
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer.importers import checkpoint, deit, fairseq, mbart, pieces, vit
from keras_transformer.importers.encoder_decoders import EPSILON, read_pieces
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
from keras_transformer.models import Transformer

__all__ = ["load", "load_model", "row_orders"]

FAMILIES = {family.name: family for family in (vit.FAMILY, deit.FAMILY)}
TENSORS = {
    **{
        f"decoder.model.{name.replace('@', 'decoder')}": path.replace("@", "decoder")
        for name, path in fairseq.NAMES.items()
        if not name.startswith(("encoder", "@.layer_norm"))
    },
    "decoder.model.decoder.layernorm_embedding.*": "target_embedding_norm",
    "decoder.model.decoder.embed_tokens.weight": "token_embedding/embeddings",
    "decoder.output_projection.weight": "token_embedding/output_kernel",
}
POSITIONS = "decoder.model.decoder.embed_positions.weight"
DECODER = checkpoint.HuggingFace(
    "trocr",
    sizes=("vocab_size", "d_model", "decoder_attention_heads", "decoder_ffn_dim"),
    layers=("decoder_layers",),
    ids=("pad_token_id", "eos_token_id", "decoder_start_token_id"),
    defaults={
        "activation_function": "gelu",
        "attention_dropout": 0.0,
        "decoder_start_token_id": 2,
        "dropout": 0.1,
        "eos_token_id": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 1,
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "unk_token_id": 3,
        "use_learned_position_embeddings": True,
    },
    fixed={"layernorm_embedding": True},
)


def _read_files(folder: pathlib.Path) -> tuple[dict[str, Any], Arrays]:
    checkpoint.check_origin(folder, DECODER.model_type)
    path = folder / "config.json"
    read = checkpoint.read_json(path)
    encoder, decoder = read.get("encoder"), read.get("decoder")
    config = DECODER.check(path, decoder if isinstance(decoder, dict) else read)
    kind = encoder.get("model_type") if isinstance(encoder, dict) else None
    if kind not in FAMILIES:
        raise ValueError(
            f"{path} must have a decoder and an encoder of {' or '.join(FAMILIES)}, but the "
            f"encoder is {kind!r:.100}."
        )
    source = FAMILIES[kind].files.check(path, encoder)
    config["encoder"] = source | vit.read_pixels(folder, source["num_channels"])
    tensors = vit.flattened(checkpoint.read_tensors(folder))
    size, length = config["d_model"], config["max_position_embeddings"]
    if not config["use_learned_position_embeddings"]:
        tensors[POSITIONS] = half_sinusoids(length, size, size // 2 - 1, fairseq.OFFSET)
    elif POSITIONS in tensors:
        tensors[POSITIONS] = tensors[POSITIONS][fairseq.OFFSET :]
    return config, tensors


def make_table(config: dict[str, Any], tensors: Arrays, options: dict[str, Any]) -> Table:
    """Returns the table of the decoder. It adds the encoder's arrays, which another table reads."""
    family = FAMILIES[config["encoder"]["model_type"]]
    encoder = family.make_table(config["encoder"], {}, {}, prefix="encoder.")
    own = [name for name in tensors if name.startswith("encoder.")]
    arrays = encoder.read({name: tensors.pop(name) for name in own})
    special = [config[f"{name}_token_id"] for name in ("pad", "unk", "decoder_start", "eos")]
    d_model, length = config["d_model"], config["max_position_embeddings"]
    embedding = "decoder.model.decoder.embed_tokens.weight"
    return Table(
        TENSORS,
        sizes={
            "D": d_model,
            "E": encoder.sizes["D"],
            "F": config["decoder_ffn_dim"],
            "Q": length,
        },
        layers={"decoder": config["decoder_layers"]},
        num_heads=config["decoder_attention_heads"],
        special=[(config["vocab_size"], *special)],
        unknown=config["unknown"],
        copies=checkpoint.tied(config, "decoder.output_projection.weight", embedding),
        spare=r".*embed_positions\._float_tensor",
        scale=1.0 if config["scale_embedding"] else d_model**-0.5,
        finish=lambda found: found.update(arrays),
        model=functools.partial(_make_model, encoder),
        settings={
            "dropout": config["dropout"],
            "attention_dropout": config["attention_dropout"],
            "activation": checkpoint.activation(config, "activation_function"),
            "embedding_norm": True,
            "positions": LearnedPositionEncoding(
                length, trainable=config["use_learned_position_embeddings"]
            ),
            "epsilon": EPSILON,
        },
    )


def _make_model(encoder: Table, **settings: Any) -> Transformer:
    """Makes the model; `dropout`, `attention_dropout` and `dtype` hold for the decoder only."""
    source = encoder.make({"dtype": settings.get("dtype")})
    return Transformer(**{"encoder": source, **settings})


def _vocabulary(folder: pathlib.Path, config: Mapping[str, Any]) -> pieces.Vocabulary:
    read = read_pieces(  # as in XLM-RoBERTa
        folder, config, mbart.MODEL, lambda own: [*mbart.SPECIAL, *own[3:], "<mask>"], strip=True
    )
    return pieces.Vocabulary(lambda orders: pieces.renumbered_json(read, orders[0], "<s>"))


ORIGIN = Origin(DECODER.model_type, _read_files, make_table, _vocabulary)
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
