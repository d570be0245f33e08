"""BERT and its relatives of the same form (MiniLM), and their sentence vectors.

BERT is the encoder of the paper, post-norm, with learned positions, segments, and a norm after
their sum. BERT does not multiply its embedding by √D, so the importer divides the matrix by √D. It
ignores the heads of BERT's pretraining (`pooler`, `cls`).
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.importers import checkpoint, mapping, pieces
from keras_transformer.layers.pooling import SequencePooling
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import TransformerEncoder
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.text.vocabularies import with_tokenizers
from keras_transformer.types import Array, Ids, StrPath

# Defaults of keys that `config.json` may omit.
DEFAULTS: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}
FIXED: dict[str, Any] = {
    "add_cross_attention": False,
    "is_decoder": False,
    "position_embedding_type": "absolute",
}
LAYERS = "num_hidden_layers"
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")  # our ids 0 to 3
MODULES = ("Transformer", "Pooling", "Normalize")  # of a sentence encoder
HEADS = ("pooler.", "cls.", "classifier.", "qa_outputs.")  # ignored


def load_model(
    folder: StrPath, order: Ids | None = None, segments: bool = False, **options: Any
) -> TransformerEncoder:
    """Loads a `TransformerEncoder` from a BERT folder in Hugging Face's layout.

    Its ids are in our order. A row of one text is `[CLS]` (our begin token 2), its tokens and
    `[SEP]` (our end token 3).

    Args:
        folder: str or path-like, with `config.json`, `vocab.txt` or `tokenizer.json`, and
            `model.safetensors` (or `pytorch_model.bin`).
        order: (V,) integers, the origin's id of each of our rows. Defaults to `row_order` of the
            configuration and the vocabulary.
        segments: bool, whether the model has the input `segment_ids`, for two texts in a row.
            Without it, the first segment is added to the positions. Defaults to `False`.
        **options: arguments of `TransformerEncoder` that do not change weights, such as `dropout`,
            `dtype` or `name`.

    Returns:
        `TransformerEncoder`.

    Raises:
        OSError: a file is missing.
        ValueError: another architecture; a vocabulary without a special token; a tensor that is
            missing, left over or misshapen; a truncated file, or a pickle with code.

    Example:

    >>> encoder = load_model("all-MiniLM-L6-v2")  # doctest: +SKIP
    """
    config = read_config(folder)
    tensors = _read_tensors(folder, config)
    order = row_order(config, read_vocabulary(folder)) if order is None else order
    arrays = mapped_weights(config, tensors, order, segments)
    model = TransformerEncoder(
        len(order),
        config["num_hidden_layers"],
        config["hidden_size"],
        config["num_attention_heads"],
        config["intermediate_size"],
        **{
            "dropout": config["hidden_dropout_prob"],
            "attention_dropout": config["attention_probs_dropout_prob"],
            "activation": checkpoint.activation(config, "hidden_act"),
            "positions": LearnedPositionEncoding(config["max_position_embeddings"]),
            "use_bias": True,
            "epsilon": config["layer_norm_eps"],
            "embedding_norm": True,
            "num_segments": config["type_vocab_size"] if segments else None,
            **options,
        },
    )
    mapping.assign_weights(model, arrays)
    return model


def load(folder: StrPath, **options: Any) -> tuple[TransformerEncoder, JsonTokenizer]:
    """Loads the model of `load_model`, and the tokenizer of the folder with our ids.

    The tokenizer puts `[CLS]` first, so a row of one text is its ids and the end token.

    Args:
        folder: str or path-like. `tokenizer.json` in it is read, or `vocab.txt`.
        **options: as in `load_model`.

    Returns:
        `(model, tokenizer)`.
    """
    model, ids = load_model(folder, **options), read_vocabulary(folder)
    path, order = pathlib.Path(folder) / "tokenizer.json", row_order(read_config(folder), ids)
    config = pieces.read_tokenizer(path) if path.exists() else pieces.word_pieces(folder, ids)
    return with_tokenizers(model, pieces.renumbered_json(config, order, SPECIAL[2]))


def load_sentence_encoder(folder: StrPath, **options: Any) -> keras.Model:
    """Loads a model from ids to one unit vector per text, as in Sentence-Transformers.

    The vector is the mean of the encoder output without padding, divided by its length.

    Args:
        folder: as in `load_model`. Its `1_Pooling/config.json`, if it exists, must name the mean.
            Its `modules.json`, if it exists, may have no other modules than the model, the pooling
            and the normalization.
        **options: as in `load_model`.

    Returns:
        Functional model from `source_ids` (B, S) to (B, D) float32.

    Raises:
        ValueError: another pooling than the mean, or another module; otherwise as `load_model`.
    """
    path = pathlib.Path(folder) / "modules.json"
    others = [name for name in _modules(path) if name.rpartition(".")[2] not in MODULES]
    if others:
        raise ValueError(
            f"{path} has the modules {others}, but only {', '.join(MODULES)} are supported. Load "
            "the encoder with load_model, and add the other layers to it."
        )
    pooling = pathlib.Path(folder) / "1_Pooling" / "config.json"
    if pooling.exists():
        asked = [name for name, on in checkpoint.read_json(pooling).items() if on is True]
        modes = [name for name in asked if name.startswith("pooling_mode_")]
        if modes != ["pooling_mode_mean_tokens"]:
            raise ValueError(
                f"{pooling} asks for {modes}, but only pooling_mode_mean_tokens is supported."
            )
    encoder = load_model(folder, **options)
    mean = SequencePooling(name="mean")(encoder.output)
    vectors = keras.layers.UnitNormalization(dtype="float32", name="vector")(mean)
    return keras.Model(encoder.input, vectors, name="sentence_encoder")


def _modules(path: pathlib.Path) -> list[str]:
    """Reads the types of the modules in `modules.json`; none if there is no such file."""
    if not path.exists():
        return []
    try:
        return [str(module["type"]) for module in json.loads(path.read_text("utf-8"))]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} must hold a list of objects, each with a type. Copy the file again."
        ) from error


def read_config(folder: StrPath) -> dict[str, Any]:
    """Reads and checks the complete configuration of a BERT folder."""
    return checkpoint.read_config(folder, "bert", (*SIZES, LAYERS), DEFAULTS, FIXED)


def _read_tensors(folder: StrPath, config: dict[str, Any]) -> dict[str, Array]:
    """Reads all tensors by name, and checks the sizes in the configuration."""
    tensors, path = checkpoint.read_tensors(folder), pathlib.Path(folder) / "config.json"
    checkpoint.check_sizes(path, config, tensors, (*SIZES, "type_vocab_size"), [LAYERS])
    return tensors


def read_vocabulary(folder: StrPath) -> dict[str, int]:
    """Reads a dict from word piece to the origin's id, of `vocab.txt` or `tokenizer.json`."""
    path = pathlib.Path(folder) / "vocab.txt"
    if not path.exists():
        return pieces.read_tokenizer(path.with_name("tokenizer.json"))["model"]["vocab"]
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text: {error}.") from error
    return {piece: id for id, piece in enumerate(lines) if piece}


def row_order(config: Mapping[str, Any], ids: Mapping[str, int]) -> Ids:
    """Returns the origin's ids of our rows, (V,)."""
    missing = [piece for piece in SPECIAL if piece not in ids]
    if missing:
        raise ValueError(f"The vocabulary lacks {missing}. Check that it is the right file.")
    pad, unknown, begin, end = (ids[piece] for piece in SPECIAL)
    return mapping.row_order(config["vocab_size"], pad, unknown, begin, end)


def mapped_weights(
    config: Mapping[str, Any], tensors: Mapping[str, Array], order: Ids, segments: bool = False
) -> dict[str, Array]:
    """Checks BERT's tensors, and returns a dict from our path to array."""
    tensors = {_current_name(name): array for name, array in tensors.items()}
    d_model, length = config["hidden_size"], config["max_position_embeddings"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], d_model),
        "embeddings.position_embeddings.weight": (length, d_model),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], d_model),
    }
    targets = {name: mapping.Target(shape) for name, shape in shapes.items()}
    targets |= mapping.norm("embeddings.LayerNorm", d_model, "source_embedding_norm")
    targets |= _blocks(config)
    spare = [name for name in tensors if name.startswith(HEADS)]
    tensors = mapping.checked(tensors, targets, spare=[*spare, "embeddings.position_ids"])

    words, positions, types = (tensors[name] for name in shapes)
    arrays = mapping.mapped(tensors, targets)
    arrays["token_embedding/embeddings"] = mapping.rows(words, order) * d_model**-0.5
    if segments:  # row 0 of our table is padding
        arrays["segment_embedding/embeddings"] = np.concatenate([types[:1], types])
    else:
        positions = positions + types[0]
    return {**arrays, "source_positions/embeddings": positions}


def _current_name(name: str) -> str:
    """Returns the present name of a tensor, without the prefix of models with a head."""
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def _blocks(config: Mapping[str, Any]) -> mapping.Targets:
    """Returns the targets of the blocks."""
    d_model, d_ff = config["hidden_size"], config["intermediate_size"]
    targets: mapping.Targets = {}
    for i in range(config["num_hidden_layers"]):
        theirs, ours = f"encoder.layer.{i}", f"encoder_block_{i}"
        for name, inputs, outputs, path in (
            ("attention.self.query", d_model, d_model, "self_attention/query"),
            ("attention.self.key", d_model, d_model, "self_attention/key"),
            ("attention.self.value", d_model, d_model, "self_attention/value"),
            ("attention.output.dense", d_model, d_model, "self_attention/output"),
            ("intermediate.dense", d_model, d_ff, "feed_forward/hidden"),
            ("output.dense", d_ff, d_model, "feed_forward/output"),
        ):
            targets |= mapping.linear(f"{theirs}.{name}", inputs, outputs, f"{ours}/{path}")
        for name, path in (
            ("attention.output.LayerNorm", "self_attention_norm"),
            ("output.LayerNorm", "feed_forward_norm"),
        ):
            targets |= mapping.norm(f"{theirs}.{name}", d_model, f"{ours}/{path}")
    return targets
