"""The engine of BERT and its relatives: encoders, their heads and their sentence vectors.

A relative of BERT has the same encoder under other names. It is one `EncoderImporter`, whose
`Relative` lists the names. The table of tensors below has BERT's names.

All of them are the encoder of the paper, post-norm, with learned positions, segments, and a norm
after their sum. They do not multiply the embedding by √D, so the importer divides the matrix by √D.
A loader warns of the tensors that it leaves out.

Ids are in our order. A row of one text is the begin token (`[CLS]`), its tokens and the end token
(`[SEP]`). The tokenizer puts the begin token first, so a row is the ids of a text and the end
token. With the option `segments=True` a model has the input `segment_ids`, for two texts in a row.
Without it, the first segment is added to the positions. Padding is on the right: with padding on
the left, relatives of RoBERTa count positions in another way.
"""

import functools
import pathlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from keras_transformer.export.artefact.task_heads import Head
from keras_transformer.importers import bert_heads, checkpoint, pieces
from keras_transformer.importers.tables import Arrays, Origin, Special, Table
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import TransformerEncoder
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.training.distribution import Model
from keras_transformer.types import StrPath

SEGMENTS, POSITIONS = "embeddings.token_type_embeddings", "embeddings.position_embeddings.weight"
WORDS, TYPES = "embeddings.word_embeddings.weight", "segment_embedding/embeddings"
TENSORS = {
    WORDS: "token_embedding/embeddings",
    POSITIONS: "source_positions/embeddings",
    f"{SEGMENTS}.weight": TYPES,
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
# Our weights whose vectors have the size of the embedding, and not of the blocks.
NARROW = r"(token|segment)_embedding/.*|source_positions/.*|(source_embedding|transform)_norm/.*"
# The starts of tensors that belong to no encoder.
HEADS = ("pooler.", "cls.", "classifier.", "qa_outputs.")
LOGITS = "cls.predictions."  # of masked words
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")  # our ids 0 to 3


@dataclass(frozen=True)
class Relative:
    """BERT, or an encoder of the same form with other names.

    Attributes:
        files: the configuration, with its keys.
        prefix: str, the start of the encoder's tensors in a model with a head.
        keys: dict from the keys of the configuration to BERT's.
        settings: dict of BERT's keys that the configuration lacks.
        names: dict from the starts or parts of tensors' names to BERT's.
        special: the pieces of padding, unknown, begin and end.
        first_position: int, the number of position vectors before the first token's. No text uses
            them.
        two_ends: bool, whether two end tokens separate the two texts of a row.
        encoder: class or function of the encoder. If the configuration has an `embedding_size`, the
            file has one block, which all layers share.
        tensors: more rows of the table.
        tokenizer: function from the folder and the vocabulary of `vocab.txt` to a `tokenizer.json`.
    """

    files: checkpoint.HuggingFace
    prefix: str
    keys: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    special: Sequence[str] = SPECIAL
    first_position: int = 0
    two_ends: bool = False
    encoder: Callable[..., keras.Model] = TransformerEncoder
    tensors: Mapping[str, str] = field(default_factory=dict)
    tokenizer: Callable[[StrPath, dict[str, int]], dict[str, Any]] = pieces.word_pieces

    def read_config(self, folder: StrPath) -> dict[str, Any]:
        """Reads and checks `config.json`; returns it with BERT's keys."""
        return self._renamed(self.files.read_config(pathlib.Path(folder)))

    def read_files(self, folder: pathlib.Path) -> tuple[dict[str, Any], Arrays]:
        """Reads configuration and tensors, with BERT's keys and names."""
        config, read = self.files.read_files(folder)
        names = {name: self._name(name) for name in read}
        for name in [name for name in read if name.startswith(f"{self.prefix}pooler.")]:
            if [*names.values()].count(names[name]) > 1:  # the head has another, which counts
                names[name] = name
        tensors = {names[name]: array for name, array in read.items()}
        config = self._renamed(config)
        if POSITIONS in tensors:
            tensors[POSITIONS] = tensors[POSITIONS][self.first_position :]
        config["max_position_embeddings"] -= self.first_position
        if not config["type_vocab_size"]:  # no segments
            config["type_vocab_size"] = 1
            tensors[f"{SEGMENTS}.weight"] = np.zeros((1, config["hidden_size"]), np.float32)
        return {**config, "folder": folder}, tensors

    def _renamed(self, config: Mapping[str, Any]) -> dict[str, Any]:
        renamed = {self.keys.get(key, key): value for key, value in config.items()}
        return {**renamed, **self.settings}

    def _name(self, name: str) -> str:
        """Returns BERT's present name of a tensor."""
        name = name.removeprefix(self.prefix).replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        for theirs, berts in self.names.items():
            name = re.sub(theirs, berts, name)
        return name


class EncoderImporter:
    """The loaders of BERT or a relative.

    Args:
        name: str, the "model_type" of its folders.
        relative: `Relative`.
    """

    def __init__(self, name: str, relative: Relative) -> None:
        self.relative: Relative = relative
        self.origin: Origin = Origin(name, relative.read_files, self._table, self._vocabulary)

    def load_task(
        self,
        folder: StrPath,
        segments: bool | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> tuple[keras.Model, JsonTokenizer]:
        """Loads the model that a folder describes, with its head, and the tokenizer of `load`.

        | the folder has | outputs | `read_head` |
        | --- | --- | --- |
        | `modules.json` | vectors (B, D), as of `load_sentence_encoder` | `FeatureExtraction` |
        | `...ForSequenceClassification` | logits (B, C) of the classes | `Classification` |
        | the same for several labels | a dict of logits (B, 1) by label | `Heads` |
        | the same for regression | numbers (B, C) | `None` |
        | `...ForTokenClassification` | logits (B, S, C) of the tags | `TokenClassification` |
        | `...ForQuestionAnswering` | `{"start", "end"}`, logits (B, S) | `QuestionAnswering` |
        | `...ForMaskedLM` | logits (B, S, V) of the masked words | `None` |
        | none of these | the encoder's output (B, S, D) | `None` |

        Args:
            folder: as in `load_model`. `architectures` in its `config.json` names the class.
            segments: bool, as in `load_model`. Defaults to `None`: the model of classes or answers
                has segments, so that it reads one text or two. Without segments in the origin, the
                vectors of both are equal.
            prompt: str, the name of a prompt of Sentence-Transformers, which the tokenizer puts
                before every text. Defaults to `None`: the folder's default prompt, if it has one.
                The tokenizer also has the folder's lower case and its longest row, and cuts texts.
            **options: as in `load_model`.

        Returns:
            `(model, tokenizer)`. Warns of tensors that the model leaves out.

        Raises:
            OSError, ValueError: as `load_model`; `id2label` does not fit the head; the folder has
                no such prompt.

        Example:

        >>> model, tokenizer = load_task("cross-encoder")  # doctest: +SKIP
        >>> export_onnx(model, "out", tokenizer, head=read_head("cross-encoder"))  # doctest: +SKIP
        """
        config = self.relative.read_config(folder)
        head = bert_heads.described(pathlib.Path(folder), config, prompt)
        if segments is None:
            segments = head is not None and head.segments
        return self.origin.load(folder, head=head, segments=segments, **options)

    def read_head(self, folder: StrPath) -> Head | None:
        """Returns the head of an export of `load_task`'s model; see the table there.

        Args:
            folder: as in `load_task`.

        Returns:
            The head, or `None`.
        """
        config = self.relative.read_config(folder)
        described = bert_heads.described(pathlib.Path(folder), config)
        return None if described is None else described.head(config)

    def load_sentence_encoder(
        self, folder: StrPath, segments: bool = False, **options: Any
    ) -> keras.Model:
        """Loads a model from ids to one vector per text, as in Sentence-Transformers.

        Args:
            folder: as in `load_model`. Its `modules.json` may list the model, a pooling (the first
                token, the mean or the maximum), and then dense layers and a normalization. Defaults
                to the mean without padding, divided by its length.
            segments: as in `load_model`.
            **options: as in `load_model`.

        Returns:
            Functional model from `source_ids` (B, S) to (B, D) float32. Warns of changes of the
            texts, which the tokenizer of `load_task` has, and of tensors that the model leaves out.

        Raises:
            ValueError: another pooling or another module; otherwise as `load_model`.
        """
        head = bert_heads.sentences(pathlib.Path(folder))
        if head.texts:
            warnings.warn(
                f"{folder} changes texts before the tokenizer: {head.texts}. `load_task` returns a "
                "tokenizer that does so.",
                stacklevel=2,
            )
        return self.origin.load_model(folder, head=head, segments=segments, **options)

    def _table(self, config: dict[str, Any], tensors: Arrays, options: dict[str, Any]) -> Table:
        head, segments = options.pop("head", None), options.pop("segments", False)
        model, rows = self.relative.encoder, {**TENSORS, **self.relative.tensors}
        arrays, classes, depth = {}, 0, config["num_hidden_layers"]
        width = config.get("embedding_size", config["hidden_size"])
        shared = {}
        if "embedding_size" in config:
            shared, depth = {"embedding_size": width, "num_layers": depth}, 1
        if head is not None:
            model, arrays = functools.partial(_with_head, head, config, model), head.arrays
            rows, classes = rows | head.tensors, head.classes(config)
        if f"{LOGITS}bias" in rows and f"{LOGITS}bias" in tensors and WORDS in tensors:
            # The matrix is tied to the embedding unless the file has another.
            tensors.setdefault(f"{LOGITS}decoder.weight", tensors[WORDS])
            tensors[f"{LOGITS}bias"] = tensors.pop(
                f"{LOGITS}decoder.bias", tensors[f"{LOGITS}bias"]
            )
        return Table(
            rows,
            sizes={
                "D": config["hidden_size"],
                "F": config["intermediate_size"],
                "P": config["max_position_embeddings"],
                "G": config["type_vocab_size"],
                "C": classes,
                "E": width,
            },
            layers={"encoder": depth},
            narrow=NARROW,
            num_heads=config["num_attention_heads"],
            special=[self._special(config)],
            spare=_spare(config["folder"], tensors, rows),
            scale=width**-0.5,
            finish=functools.partial(_finish, segments, arrays),
            model=model,
            settings={
                "dropout": config["hidden_dropout_prob"],
                "attention_dropout": config["attention_probs_dropout_prob"],
                "activation": checkpoint.activation(config, "hidden_act"),
                "positions": LearnedPositionEncoding(config["max_position_embeddings"]),
                "epsilon": config["layer_norm_eps"],
                "embedding_norm": True,
                "num_segments": max(2, config["type_vocab_size"]) if segments else None,
                **shared,
            },
        )

    def _special(self, config: Mapping[str, Any]) -> Special:
        """Returns the number of ids of the origin and its special ids."""
        ids = read_vocabulary(config["folder"])
        missing = [piece for piece in self.relative.special if piece not in ids]
        if missing:
            raise ValueError(f"The vocabulary lacks {missing}. Check that it is the right file.")
        pad, unknown, begin, end = (ids[piece] for piece in self.relative.special)
        return config["vocab_size"], pad, unknown, begin, end

    def _vocabulary(self, folder: pathlib.Path, config: dict[str, Any]) -> pieces.Vocabulary:
        path, begin = folder / "tokenizer.json", self.relative.special[2]
        if path.exists():
            read = pieces.read_tokenizer(path)
        else:
            read = self.relative.tokenizer(folder, read_vocabulary(folder))
        head, end = config["options"].get("head"), self.relative.special[3]
        if head is not None and head.texts:
            read = bert_heads.changed(read, head.texts, config["max_position_embeddings"])
        between = [end] * self.relative.two_ends
        return pieces.Vocabulary(
            lambda orders: pieces.renumbered_json(read, orders[0], begin, between)
        )


def _finish(segments: bool, more: Mapping[str, Any], arrays: Arrays) -> None:
    """Adds the first segment to the positions, or the row of padding to the segments."""
    types, path = arrays.pop(TYPES), "source_positions/embeddings"
    if segments:
        arrays[TYPES] = np.concatenate([types[:1], types, *[types] * (len(types) < 2)])
    elif path in arrays:  # rotary positions have no table, and their families no segments
        arrays[path] = arrays[path] + types[0]
    arrays.update(more)


def in_pairs(finish: Callable[[Arrays], None], num_heads: int, arrays: Arrays) -> None:
    """Finishes arrays, and puts the channels of rotary queries and keys in our order.

    A rotary encoding of ours turns channels 2i and 2i + 1 together, and theirs i and i + K/2.
    """
    finish(arrays)
    for path, array in arrays.items():
        if "/self_attention/query/" in path or "/self_attention/key/" in path:
            halves = array.reshape(*array.shape[:-1], num_heads, 2, -1)
            arrays[path] = halves.swapaxes(-1, -2).reshape(array.shape)


def _with_head(
    head: bert_heads.Class,
    config: Mapping[str, Any],
    make: Callable[..., keras.Model],
    **settings: Any,
) -> keras.Model:
    """Makes the model of an encoder with a head."""
    encoder = make(**settings)
    return Model(encoder.input, head.build(encoder.output, config), name="bert")


def _spare(folder: pathlib.Path, tensors: Arrays, rows: Mapping[str, str]) -> str:
    """Returns the pattern of the tensors of other heads, and warns of them."""
    used = tuple(name.removesuffix("*") for name in rows)
    heads = [name for name in tensors if name.startswith(HEADS) or ".pooler." in name]
    rest = [name for name in heads if not name.startswith(used)]
    if rest:
        warnings.warn(
            f"{folder} has {', '.join(rest)}, which this model leaves out. `load_task` loads "
            "the head that `architectures` in config.json or modules.json describes.",
            stacklevel=5,
        )
    numbers = "embeddings.position_ids"  # from 0
    return "|".join(map(re.escape, [*rest, numbers]))


def read_vocabulary(folder: StrPath) -> dict[str, int]:
    """Reads a dict from piece to the origin's id, of `vocab.txt` or `tokenizer.json`."""
    path = pathlib.Path(folder) / "vocab.txt"
    if not path.exists():
        return pieces.json_ids(pieces.read_tokenizer(path.with_name("tokenizer.json")))
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text: {error}.") from error
    return {piece: id for id, piece in enumerate(lines) if piece}
