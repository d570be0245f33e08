"""Export to a folder in Hugging Face's format for Marian models (OPUS-MT).

`transformers` and compatible tools load it as `MarianMTModel` and `MarianTokenizer`. The export
inverts `importers.marian`, and the importer checks it.

Shapes: D d_model, V vocabulary here, U vocabulary of Marian, P positions.
"""

import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from safetensors.numpy import save

from keras_transformer.export.encoder_decoder import (
    CONFIG_FILE,
    PRODUCER,
    Difference,
    LogitsTask,
    check_translator,
    depths,
    differences,
    position_tables,
    positions_to_write,
    refuse,
    weights_of,
    why_not_engine,
)
from keras_transformer.export.exporter import Case, Format, Part, export, part_of
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.staging import ExportError, Progress, WhyNot
from keras_transformer.importers import encoder_decoders, marian, pieces
from keras_transformer.importers.activations import TO_HUGGING_FACE
from keras_transformer.importers.tables import half_sinusoids
from keras_transformer.models import Transformer
from keras_transformer.special_ids import BEGIN_ID, END_ID, UNKNOWN_ID
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array, StrPath

WEIGHTS_FILE = "model.safetensors"
SPM_FILES = ("source.spm", "target.spm")
VOCABULARIES = ("vocab.json", "target_vocab.json")
TOKENIZER_CONFIG, GENERATION_CONFIG = "tokenizer_config.json", "generation_config.json"
FILES = (
    *(CONFIG_FILE, WEIGHTS_FILE, *SPM_FILES, *VOCABULARIES),
    *(TOKENIZER_CONFIG, GENERATION_CONFIG),
)
# Keys of `config.json` that `generation_config.json` repeats. It also forbids padding.
GENERATION = ("eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
# Positions of a model without a limit, as in OPUS-MT.
POSITIONS = 512
# Arguments that CTranslate2 supports and Marian does not.
DIFFERENCES: tuple[Difference, ...] = (
    (lambda m: m.norm_first, lambda m: "norm_first=True"),
    (lambda m: m.embedding_norm, lambda m: "embedding_norm=True"),
    (lambda m: m.epsilon != encoder_decoders.EPSILON, lambda m: f"epsilon={m.epsilon}"),
)


def export_marian(
    model: Transformer,
    path: StrPath,
    tokenizer: Tokenizer,
    *,
    target_tokenizer: Tokenizer | None = None,
    max_length: int | None = None,
    verbose: bool = True,
) -> None:
    """Writes the folder of a Marian model that `transformers` loads.

    The model's ids become Marian's: the end token is 0, the unknown token 1. As in Marian, padding
    is the last id and the first decoder input; with two vocabularies it is 2.

    Before the folder appears, `importers.marian` reads it. Its logits, and its tokens of some
    texts, are compared with the model's.

    Args:
        model: post-norm `Transformer` with epsilon 1e-5 and the paper's sinusoidal positions. Its
            channels are put in Marian's order, all sines first.
        path: folder to write. An earlier export at this place is replaced in one step, at the end.
        tokenizer: `Tokenizer` of the source.
        target_tokenizer: `Tokenizer` of the target. Defaults to `None`: `tokenizer`.
        max_length: longest text in tokens. Defaults to `None`: 512, or the limit of the model.
        verbose: whether to write the progress to stderr. Defaults to `True`.

    Raises:
        TypeError, ValueError: an invalid argument, or a model that such a folder cannot hold.
        ExportError: the folder reads back as another model. `path` is unchanged.

    Example:

    >>> export_marian(model, "out/marian", tokenizer)  # doctest: +SKIP
    >>> theirs = transformers.MarianMTModel.from_pretrained("out/marian")  # doctest: +SKIP
    """
    limits = (*differences(TO_HUGGING_FACE), *DIFFERENCES)
    check_translator(model, tokenizer, target_tokenizer, "A Marian folder", limits)
    if tokenizer is None:
        raise TypeError("A Marian folder contains a vocabulary: pass tokenizer, a Tokenizer.")
    max_length = positions_to_write(model, max_length, POSITIONS)
    made = Marian(as_float32(model), max_length, (tokenizer, target_tokenizer or tokenizer))
    export(path, made, verbose=verbose)


class Marian(Format):
    """The folder of a Marian model, which our importer reads back.

    Args:
        model: `Transformer` in float32.
        max_length: the number of positions P.
        tokenizers: `Tokenizer`s of source and target.

    Raises:
        ValueError: the folder cannot hold the positions or the two vocabularies.
    """

    why_not: WhyNot = staticmethod(why_not_engine(*FILES))

    def __init__(
        self, model: Transformer, max_length: int, tokenizers: Sequence[Tokenizer]
    ) -> None:
        self.model: Transformer = model
        self.max_length: int = max_length
        self.sides: Sequence[Tokenizer] = tokenizers
        self.order: Array = _channel_order(model, max_length)
        published = [pieces.published(one.model) for one in tokenizers]
        names = [one for one, _ in published]
        self.pieces: list[bytes] = [one for _, one in published]
        self.vocabularies: list[dict[str, int]] = _vocabularies(model, names)
        random, sizes = np.random.default_rng(0), (model.vocab_size, model.target_vocab_size)
        samples = []
        for length in range(1, min(max_length, 23), 3):
            source, target = (
                random.integers(4, size or model.vocab_size, (1, length)) for size in sizes
            )
            source = np.pad(source, [(0, 0), (0, 1)], constant_values=END_ID)
            target = np.pad(target, [(0, 0), (1, 0)], constant_values=BEGIN_ID)
            samples.append({"source_ids": source, "target_ids": target})
        self.parts: Sequence[Part] = [part_of(LogitsTask(_without_padding(model)), samples)]

    def write(self, folder: pathlib.Path, progress: Progress) -> None:
        with progress("writing"):
            config = _config(self.model, self.max_length)
            tensors = _tensors(self.model, config, self.order)
            (folder / WEIGHTS_FILE).write_bytes(save(tensors, metadata={"format": "pt"}))
            contents = {
                CONFIG_FILE: {**config, **PRODUCER},
                GENERATION_CONFIG: {
                    **{name: config[name] for name in GENERATION},
                    "bad_words_ids": [[config["pad_token_id"]]],
                    "max_length": self.max_length,
                    "num_beams": 1,
                },
                TOKENIZER_CONFIG: {
                    "tokenizer_class": "MarianTokenizer",
                    "model_max_length": self.max_length,
                    "separate_vocabs": not config["share_encoder_decoder_embeddings"],
                    "eos_token": "</s>",
                    "unk_token": "<unk>",
                    "pad_token": "<pad>",
                },
                **dict(zip(VOCABULARIES, self.vocabularies, strict=False)),
            }
            for name, content in contents.items():
                text = json.dumps(content, indent=2, ensure_ascii=False)
                (folder / name).write_text(f"{text}\n", "utf-8")
            for name, content in zip(SPM_FILES, self.pieces, strict=True):
                (folder / name).write_bytes(content)

    def run(
        self, folder: pathlib.Path, calls: Sequence[tuple[str, Case]]
    ) -> list[dict[str, Array]]:
        again, read = marian.load(folder)
        read = read if isinstance(read, tuple) else (read, read)
        for own, other in zip(self.sides, read, strict=True):
            texts = [own.decode([i]) for i in range(4, min(own.vocab_size, 200))]
            if own.encode(texts) != other.encode(texts):
                raise ExportError(
                    "The tokenizer that was read back gives other ids. Please report it, with the "
                    "tokenizer's model."
                )
        task = LogitsTask(_without_padding(again))
        return [task.expected(case) for _, case in calls]


def _without_padding(model: Transformer) -> keras.Model:
    """Returns a model of all logits but the one of padding, which Marian's table lacks."""
    return keras.Model(model.input, {"logits": model.output[..., UNKNOWN_ID:]})


def _channel_order(model: Transformer, length: int) -> Array:
    """Returns our channel for each of Marian's (D,); raises `ValueError` for other positions."""
    theirs = half_sinusoids(length, model.d_model, model.d_model // 2)  # (P, D)
    same = np.arange(model.d_model)
    for order in (same, np.r_[same[::2], same[1::2]]):
        if all(np.allclose(t[:, order], theirs, atol=1e-3) for t in position_tables(model, length)):
            return order
    kind = type(model.encoder_stack.positions).__name__
    refuse(
        "A Marian folder", [f"positions={kind} that are not the paper's sinusoids of base 10000"]
    )
    return same


def marian_rows(size: int, shared: bool) -> list[int]:
    """Returns our id for each of Marian's, (U,).

    Marian's decoder starts with padding and ours with the begin token, so Marian's padding gets
    the row of our begin token. Our padding row is dropped. Tools expect padding as the last id.
    Two vocabularies need the same padding id, so there it is 2.
    """
    others = range(BEGIN_ID + 2, size)
    if shared:
        return [END_ID, UNKNOWN_ID, *others, BEGIN_ID]
    return [END_ID, UNKNOWN_ID, BEGIN_ID, *others]


def _vocabularies(
    model: Transformer, names: Sequence[Sequence[str | None]]
) -> list[dict[str, int]]:
    """Returns `{piece: Marian id}` of source and target, or one for a shared vocabulary.

    Args:
        model: the model.
        names: for source and target the piece of each of our ids, see `pieces.published`.

    Raises:
        ValueError: two tokenizers of one vocabulary have different pieces for an id.
    """
    sizes = [model.vocab_size, model.target_vocab_size or model.vocab_size]
    if model.target_vocab_size is not None:
        return [marian_ids(own, size, False) for own, size in zip(names, sizes, strict=True)]
    pairs = [*itertools.zip_longest(*names)]
    different = [(i, *pair) for i, pair in enumerate(pairs) if all(pair) and len({*pair}) > 1]
    if different:
        raise ValueError(
            f"The model has one vocabulary, but its two tokenizers have different pieces for "
            f"{len(different)} ids, such as (id, source, target) {different[:3]}. A Marian folder "
            "has one vocab.json for such a model: pass the tokenizers that it was trained with."
        )
    return [marian_ids([one or two for one, two in pairs], sizes[0], True)]


def marian_ids(names: Sequence[str | None], size: int, shared: bool) -> dict[str, int]:
    """Returns `{piece: Marian id}` of one side. An id without a piece is called `<id>`.

    Args:
        names: the piece of each of our ids.
        size: ids of the model.
        shared: whether source and target have one vocabulary.
    """
    special = {END_ID: "</s>", UNKNOWN_ID: "<unk>", BEGIN_ID: "<pad>"}
    named = {i: name for i, name in enumerate(names) if name is not None} | special
    return {named.get(row, f"<{row}>"): i for i, row in enumerate(marian_rows(size, shared))}


def _config(model: Transformer, max_length: int) -> dict[str, Any]:
    """Returns the content of `config.json`."""
    encoder, decoder = depths(model)
    shared = model.target_vocab_size is None
    pad = model.vocab_size - 2 if shared else 2  # see `marian_rows`
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": model.vocab_size - 1,
        "decoder_vocab_size": (model.target_vocab_size or model.vocab_size) - 1,
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": model.tie_output,
        "d_model": model.d_model,
        "encoder_layers": encoder,
        "decoder_layers": decoder,
        "encoder_attention_heads": model.num_heads,
        "decoder_attention_heads": model.num_heads,
        "encoder_ffn_dim": model.d_ff,
        "decoder_ffn_dim": model.d_ff,
        "activation_function": TO_HUGGING_FACE[keras.activations.get(model.activation)],
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": 0.0,
        "max_position_embeddings": max_length,
        "static_position_embeddings": True,
        "scale_embedding": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "eos_token_id": 0,
        "unk_token_id": 1,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }


def _tensors(model: Transformer, config: dict[str, Any], order: Array) -> dict[str, Array]:
    """Returns all weights with Marian's names and order of channels and rows."""
    shared = config["share_encoder_decoder_embeddings"]
    sizes = {"V": model.vocab_size, "T": model.target_vocab_size or model.vocab_size}
    orders = {axis: np.array(marian_rows(size, shared)) for axis, size in sizes.items()}
    table = marian.FAMILY.make_table(
        {**config, "unknown": (0, 0), "forced_bos_token_id": None}, {}, {}
    )
    tensors = table.write(weights_of(model), {**orders, "D": order, "E": order}, zeros=True)
    for name in encoder_decoders.POSITIONS:  # sinusoids, which readers compute
        del tensors[name]
    if shared and not model.tie_output:  # untied, `transformers` copies no table
        tensors |= dict.fromkeys(encoder_decoders.TABLES, tensors[encoder_decoders.SHARED])
    tensors["final_logits_bias"] = tensors["final_logits_bias"][None]
    return tensors
