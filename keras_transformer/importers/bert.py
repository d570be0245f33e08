"""BERT and its relatives of the same form (MiniLM), and their sentence vectors.

BERT is the encoder of the paper, post-norm, with learned positions, segments, and a norm after
their sum. BERT does not multiply its embedding by √D, so the importer divides the matrix by √D.
`load` returns the encoder, and `load_task` the model with the head that the folder describes. A
loader warns of the tensors that it leaves out.
"""

import pathlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.export.artefact.task_heads import FeatureExtraction, Head
from keras_transformer.importers import bert_heads, checkpoint, mapping, pieces
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import TransformerEncoder
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.text.vocabularies import with_tokenizers
from keras_transformer.types import Array, Ids, StrPath, Tensor

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
WORDS = "embeddings.word_embeddings.weight"
# The starts of tensors that belong to no encoder. `position_ids` are the numbers from 0.
HEADS = ("pooler.", "cls.", "classifier.", "qa_outputs.")


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
        `TransformerEncoder`. Warns of the tensors of a head, which `load_task` reads.

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
    _warn_of_the_rest(folder, tensors)
    model = _make_encoder(config, order, segments, options)
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
    return with_tokenizers(load_model(folder, **options), _tokenizer(folder))


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
    config = read_config(folder)
    described = bert_heads.described(config)
    if (pathlib.Path(folder) / "modules.json").exists():
        model = load_sentence_encoder(folder, segments=bool(segments), **options)
    elif described is None:
        model = load_model(folder, segments=bool(segments), **options)
    else:
        if segments is None:
            segments = described.segments and config["type_vocab_size"] > 1
        model = _with_head(folder, described.tensors, described.build, segments, options)
    return with_tokenizers(model, _tokenizer(folder))


def read_head(folder: StrPath) -> Head | None:
    """Returns the head of an export of `load_task`'s model; see the table there.

    Args:
        folder: as in `load_task`.
    """
    if (pathlib.Path(folder) / "modules.json").exists():
        return FeatureExtraction()
    config = read_config(folder)
    described = bert_heads.described(config)
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
    bert_heads.warn_of_texts(folder)

    def build(vectors: Tensor, *_: Any) -> bert_heads.Built:
        return bert_heads.sentence_outputs(folder, vectors)

    return _with_head(folder, (), build, segments, options)


def _with_head(
    folder: StrPath,
    prefixes: tuple[str, ...],
    build: Callable[..., bert_heads.Built],
    segments: bool,
    options: Mapping[str, Any],
) -> keras.Model:
    """Returns the encoder with the outputs that `build` adds, see `bert_heads.Class`."""
    config = read_config(folder)
    tensors = _read_tensors(folder, config)
    order = row_order(config, read_vocabulary(folder))
    arrays = mapped_weights(config, tensors, order, segments)
    _warn_of_the_rest(folder, tensors, prefixes)
    encoder = _make_encoder(config, order, segments, options)
    head = {name: tensor for name, tensor in tensors.items() if name.startswith(prefixes)}
    if "cls.predictions.bias" in head:  # tied to the embedding unless the file has another
        head.setdefault("cls.predictions.decoder.weight", tensors[WORDS])
    outputs, more = build(encoder.output, config, head, order)
    model = keras.Model(encoder.input, outputs, name="bert")
    mapping.assign_weights(model, arrays | more)
    return model


def read_config(folder: StrPath) -> dict[str, Any]:
    """Reads and checks the complete configuration of a BERT folder."""
    return checkpoint.read_config(folder, "bert", (*SIZES, LAYERS), DEFAULTS, FIXED)


def _make_encoder(
    config: Mapping[str, Any], order: Ids, segments: bool, options: Mapping[str, Any]
) -> TransformerEncoder:
    return TransformerEncoder(
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


def _tokenizer(folder: StrPath) -> JsonTokenizer:
    """Returns the tokenizer of a folder with our ids."""
    ids, path = read_vocabulary(folder), pathlib.Path(folder) / "tokenizer.json"
    order = row_order(read_config(folder), ids)
    config = pieces.read_tokenizer(path) if path.exists() else pieces.word_pieces(folder, ids)
    return pieces.renumbered_json(config, order, SPECIAL[2])


def _warn_of_the_rest(
    folder: StrPath, tensors: Mapping[str, Array], used: tuple[str, ...] = ()
) -> None:
    """Warns of the tensors of heads that a model leaves out; `used` starts the names of others."""
    rest = [name for name in tensors if name.startswith(HEADS) and not name.startswith(used)]
    if rest:
        warnings.warn(
            f"{folder} has {', '.join(rest)}, which this model leaves out. `bert.load_task` loads "
            "the head that `architectures` in config.json or modules.json describes.",
            stacklevel=4,
        )


def _read_tensors(folder: StrPath, config: dict[str, Any]) -> dict[str, Array]:
    """Reads all tensors by name, and checks the sizes in the configuration."""
    tensors, path = checkpoint.read_tensors(folder), pathlib.Path(folder) / "config.json"
    checkpoint.check_sizes(path, config, tensors, (*SIZES, "type_vocab_size"), [LAYERS])
    return {_current_name(name): array for name, array in tensors.items()}


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
