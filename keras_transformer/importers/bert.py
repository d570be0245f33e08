"""BERT and its relatives of the same form (MiniLM), and their sentence vectors.

BERT is the encoder of the paper, post-norm, with learned positions, segments, and a norm after
their sum. BERT does not multiply its embedding by √D, so the importer divides the matrix by √D.
`load_model` and `load` return the `TransformerEncoder`, and `load_task` the model with the head
that the folder describes. A loader warns of the tensors that it leaves out.

Ids are in our order. A row of one text is `[CLS]` (our begin token 2), its tokens and `[SEP]` (our
end token 3). The tokenizer puts `[CLS]` first, so a row is the ids of a text and the end token.
With the option `segments=True` a model has the input `segment_ids`, for two texts in a row. Without
it, the first segment is added to the positions.

A folder holds `config.json`, `model.safetensors` (or `pytorch_model.bin`), and `tokenizer.json` or
`vocab.txt`.
"""

import functools
import pathlib
import re
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.export.artefact.task_heads import Head
from keras_transformer.importers import bert_heads, checkpoint, pieces
from keras_transformer.importers.tables import (
    Arrays,
    Loader,
    ModelLoader,
    Origin,
    RowOrders,
    Special,
    Table,
)
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import TransformerEncoder
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.types import StrPath

__all__ = ["load", "load_model", "load_sentence_encoder", "load_task", "read_head", "row_orders"]

WORDS, TYPES = "embeddings.word_embeddings.weight", "segment_embedding/embeddings"
TENSORS = {
    WORDS: "token_embedding/embeddings",
    "embeddings.position_embeddings.weight": "source_positions/embeddings",
    "embeddings.token_type_embeddings.weight": TYPES,
    "embeddings.LayerNorm.*": "source_embedding_norm",
    "encoder.layer.#.attention.self.query.*": "encoder_block_#/self_attention/query",
    "encoder.layer.#.attention.self.key.*": "encoder_block_#/self_attention/key",
    "encoder.layer.#.attention.self.value.*": "encoder_block_#/self_attention/value",
    "encoder.layer.#.attention.output.dense.*": "encoder_block_#/self_attention/output",
    "encoder.layer.#.attention.output.LayerNorm.*": "encoder_block_#/self_attention_norm",
    "encoder.layer.#.intermediate.dense.*": "encoder_block_#/feed_forward/hidden",
    "encoder.layer.#.output.dense.*": "encoder_block_#/feed_forward/output",
    "encoder.layer.#.output.LayerNorm.*": "encoder_block_#/feed_forward_norm",
}
CONFIG = checkpoint.HuggingFace(
    "bert",
    sizes=(
        "vocab_size",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    ),
    layers=("num_hidden_layers",),
    more_sizes=("type_vocab_size",),
    defaults={
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    },
    fixed={
        "add_cross_attention": False,
        "is_decoder": False,
        "position_embedding_type": "absolute",
    },
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")  # our ids 0 to 3
# The starts of tensors that belong to no encoder.
HEADS = ("pooler.", "cls.", "classifier.", "qa_outputs.")
LOGITS = "cls.predictions."  # of masked words


def load_task(
    folder: StrPath, segments: bool | None = None, **options: Any
) -> tuple[keras.Model, JsonTokenizer]:
    """Loads the model that a folder describes, with its head, and the tokenizer of `load`.

    | the folder has | outputs | `read_head` |
    | --- | --- | --- |
    | `modules.json` | vectors (B, D), as of `load_sentence_encoder` | `FeatureExtraction` |
    | `BertForSequenceClassification` | logits (B, C) of the classes | `Classification` |
    | the same for several labels | a dict of logits (B, 1) by label | `Heads` |
    | the same for regression | numbers (B, C) | `None` |
    | `BertForTokenClassification` | logits (B, S, C) of the tags | `TokenClassification` |
    | `BertForQuestionAnswering` | `{"start", "end"}`, logits (B, S) | `QuestionAnswering` |
    | `BertForMaskedLM` | logits (B, S, V) of the masked words | `None` |
    | none of these | the encoder's output (B, S, D) | `None` |

    Args:
        folder: as in `load_model`. `architectures` in its `config.json` names the class.
        segments: bool, as in `load_model`. Defaults to `None`: the model of classes or answers has
            segments, so that it reads one text or two.
        **options: as in `load_model`.

    Returns:
        `(model, tokenizer)`. Warns of tensors that the model leaves out.

    Raises:
        OSError, ValueError: as `load_model`; `id2label` does not fit the head.

    Example:

    >>> model, tokenizer = load_task("cross-encoder")  # doctest: +SKIP
    >>> export_onnx(model, "out", tokenizer, head=read_head("cross-encoder"))  # doctest: +SKIP
    """
    config = CONFIG.read_config(pathlib.Path(folder))
    head = bert_heads.described(pathlib.Path(folder), config)
    if segments is None:
        segments = head is not None and head.segments and config["type_vocab_size"] > 1
    return load(folder, head=head, segments=segments, **options)


def read_head(folder: StrPath) -> Head | None:
    """Returns the head of an export of `load_task`'s model; see the table there.

    Args:
        folder: as in `load_task`.
    """
    config = CONFIG.read_config(pathlib.Path(folder))
    described = bert_heads.described(pathlib.Path(folder), config)
    return None if described is None else described.head(config)


def load_sentence_encoder(folder: StrPath, segments: bool = False, **options: Any) -> keras.Model:
    """Loads a model from ids to one vector per text, as in Sentence-Transformers.

    Args:
        folder: as in `load_model`. Its `modules.json` may list the model, a pooling (the first
            token, the mean or the maximum), and then dense layers and a normalization. Defaults
            to the mean without padding, divided by its length.
        segments: as in `load_model`.
        **options: as in `load_model`.

    Returns:
        Functional model from `source_ids` (B, S) to (B, D) float32. Warns of prompts, which the
        caller must put before the texts, and of tensors that the model leaves out.

    Raises:
        ValueError: another pooling or another module; otherwise as `load_model`.
    """
    head = bert_heads.sentences(pathlib.Path(folder))
    return load_model(folder, head=head, segments=segments, **options)


def _read_files(folder: pathlib.Path) -> tuple[dict[str, Any], Arrays]:
    config, tensors = CONFIG.read_files(folder)
    tensors = {_current_name(name): array for name, array in tensors.items()}
    return {**config, "folder": folder}, tensors


def _current_name(name: str) -> str:
    """Returns the present name of a tensor, without the prefix of models with a head."""
    name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def make_table(config: dict[str, Any], tensors: Arrays, options: dict[str, Any]) -> Table:
    head, segments = options.pop("head", None), options.pop("segments", False)
    model, rows, arrays, classes = TransformerEncoder, TENSORS, {}, 0
    if head is not None:
        model, arrays = functools.partial(_with_head, head, config), head.arrays
        rows, classes = TENSORS | head.tensors, head.classes(config)
    if f"{LOGITS}bias" in rows and f"{LOGITS}bias" in tensors and WORDS in tensors:
        # The matrix is tied to the embedding unless the file has another.
        tensors.setdefault(f"{LOGITS}decoder.weight", tensors[WORDS])
        tensors[f"{LOGITS}bias"] = tensors.pop(f"{LOGITS}decoder.bias", tensors[f"{LOGITS}bias"])
    return Table(
        rows,
        sizes={
            "D": config["hidden_size"],
            "F": config["intermediate_size"],
            "P": config["max_position_embeddings"],
            "G": config["type_vocab_size"],
            "C": classes,
        },
        layers={"encoder": config["num_hidden_layers"]},
        num_heads=config["num_attention_heads"],
        special=[_special(config)],
        spare=_spare(config["folder"], tensors, rows),
        scale=config["hidden_size"] ** -0.5,
        finish=functools.partial(_finish, segments, arrays),
        model=model,
        settings={
            "dropout": config["hidden_dropout_prob"],
            "attention_dropout": config["attention_probs_dropout_prob"],
            "activation": checkpoint.activation(config, "hidden_act"),
            "positions": LearnedPositionEncoding(config["max_position_embeddings"]),
            "epsilon": config["layer_norm_eps"],
            "embedding_norm": True,
            "num_segments": config["type_vocab_size"] if segments else None,
        },
    )


def _finish(segments: bool, more: Mapping[str, Any], arrays: Arrays) -> None:
    """Adds the first segment to the positions, or the row of padding to the segments."""
    types = arrays.pop(TYPES)
    if segments:
        arrays[TYPES] = np.concatenate([types[:1], types])
    else:
        path = "source_positions/embeddings"
        arrays[path] = arrays[path] + types[0]
    arrays.update(more)


def _with_head(head: bert_heads.Class, config: Mapping[str, Any], **settings: Any) -> keras.Model:
    """Makes the model of an encoder with a head."""
    encoder = TransformerEncoder(**settings)
    return keras.Model(encoder.input, head.build(encoder.output, config), name="bert")


def _spare(folder: pathlib.Path, tensors: Arrays, rows: Mapping[str, str]) -> str:
    """Returns the pattern of the tensors of other heads, and warns of them."""
    used = tuple(name.removesuffix("*") for name in rows)
    rest = [name for name in tensors if name.startswith(HEADS) and not name.startswith(used)]
    if rest:
        warnings.warn(
            f"{folder} has {', '.join(rest)}, which this model leaves out. `bert.load_task` loads "
            "the head that `architectures` in config.json or modules.json describes.",
            stacklevel=5,
        )
    numbers = "embeddings.position_ids"  # from 0
    return "|".join(map(re.escape, [*rest, numbers]))


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


def _special(config: Mapping[str, Any]) -> Special:
    """Returns the number of BERT's ids and its special ids."""
    ids = read_vocabulary(config["folder"])
    missing = [piece for piece in SPECIAL if piece not in ids]
    if missing:
        raise ValueError(f"The vocabulary lacks {missing}. Check that it is the right file.")
    pad, unknown, begin, end = (ids[piece] for piece in SPECIAL)
    return config["vocab_size"], pad, unknown, begin, end


def _vocabulary(folder: pathlib.Path, config: dict[str, Any]) -> pieces.Vocabulary:
    path = folder / "tokenizer.json"
    if path.exists():
        read = pieces.read_tokenizer(path)
    else:
        read = pieces.word_pieces(folder, read_vocabulary(folder))
    return pieces.Vocabulary(lambda orders: pieces.renumbered_json(read, orders[0], SPECIAL[2]))


ORIGIN = Origin("bert", _read_files, make_table, _vocabulary)
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
