"""CTranslate2's folders: Whisper, and translation models such as Argos' and OpenNMT's.

A folder holds `model.bin`, `config.json` and vocabularies. Weights in 8 or 16 bits become float32.
CTranslate2 joins the projections that read the same input, so the importer splits their matrices.
It does not need the package `ctranslate2`.

Shapes: D d_model, U CTranslate2's vocabulary, V ours.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer.importers import checkpoint, mapping, pieces, whisper
from keras_transformer.importers import ctranslate2_layout as layout
from keras_transformer.importers.ctranslate2_binary import Specification
from keras_transformer.importers.ctranslate2_translator import load_translator, make_translator
from keras_transformer.importers.speech_tokens import (
    SpeechSettings,
    language_code,
    make_settings,
    make_tokenizer,
)
from keras_transformer.models import Transformer
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabularies import with_tokenizers
from keras_transformer.types import Ids, StrPath


def load_model(folder: StrPath, **options: Any) -> Transformer:
    """Loads a `Transformer` from a CTranslate2 folder.

    Its ids are in our order. For the inputs of a Whisper model see `whisper.load_model`.

    Args:
        folder: str or path-like, with `model.bin`, `config.json` and the vocabularies.
        **options: arguments of `Transformer` that do not change weights, such as `dropout`,
            `dtype` or `name`.

    Raises:
        OSError: a file is missing.
        ValueError: another kind of model, or a setting that our model does not support; a tensor
            that is missing, left over or misshapen; a truncated file.

    Example:

    >>> model = load_model("faster-whisper-base")  # doctest: +SKIP
    """
    folder = pathlib.Path(folder)
    specification = layout.read_specification(folder)
    if specification.name == layout.WHISPER:
        return _make_whisper(folder, specification, options)
    return make_translator(folder, specification, options)


def load(
    folder: StrPath, **options: Any
) -> tuple[Transformer, JsonTokenizer | Tokenizer | tuple[Tokenizer, Tokenizer]]:
    """Loads the model of `load_model`, and the tokenizers of the folder with our ids.

    Args:
        folder: str or path-like, also with `tokenizer.json` for Whisper. For translation models
            with `sentencepiece.model` in it or above it, or with `source.spm` and `target.spm`.
        **options: as in `load_model`. `reads_end` of a translation model defaults to whether its
            sources have an end token: `add_source_eos` in `config.json`, or OPUS-MT's tokenizers.

    Returns:
        `(model, tokenizer)`, or `(model, (source, target))` if the two tokenizers differ.

    Raises:
        OSError, ValueError: as `load_model`; a file is not a tokenizer of this model; or the model
            reads sources with a begin token, which `Translator` does not add.
    """
    folder = pathlib.Path(folder)
    specification = layout.read_specification(folder)
    if specification.name == layout.WHISPER:
        model = _make_whisper(folder, specification, options)
        return with_tokenizers(model, make_tokenizer(folder, _whisper_order(folder)))
    return load_translator(folder, specification, options)


def read_settings(folder: StrPath) -> SpeechSettings:
    """Reads the `SpeechSettings` of a Whisper folder.

    Args:
        folder: str or path-like, with `config.json` and the vocabulary.

    Raises:
        OSError: a file is missing.
        ValueError: a value is of another type, or an id is not in the vocabulary.
    """
    folder = pathlib.Path(folder)
    path, names = folder / "config.json", layout.read_vocabulary(folder, "vocabulary")
    read = checkpoint.read_json(path)
    languages = read.get("lang_ids") or []
    ids = range(len(names))
    if not isinstance(languages, list) or not all(type(i) is int and i in ids for i in languages):
        raise ValueError(f"lang_ids in {path} must be a list of ids of the {len(names)} tokens.")
    return make_settings(
        path,
        _whisper_order(folder),
        {language_code(names[id]): id for id in languages},
        read.get("suppress_ids"),
        read.get("suppress_ids_begin"),
        read.get("alignment_heads"),
    )


def _make_whisper(
    folder: pathlib.Path, specification: Specification, options: Mapping[str, Any]
) -> Transformer:
    """Returns the model of a `WhisperSpec`."""
    tensors, names = specification.tensors, layout.read_vocabulary(folder, "vocabulary")
    d_model, bands, _ = layout.shape(tensors, "encoder/conv1/weight", 3)
    found = {
        "activation": layout.activation(specification),
        "pre_norm": layout.setting(specification, "pre_norm", 1),
        "scale": layout.scale(specification, d_model),
        "start_from_zero_embedding": layout.setting(specification, "start_from_zero_embedding", 0),
    }
    if found != (known := {**found, "activation": "gelu", "pre_norm": 1, "scale": 1.0}):
        raise ValueError(f"A {layout.WHISPER} must have the settings {known}, but has {found}.")
    d_ff, _ = layout.shape(tensors, "encoder/layer_0/ffn/linear_0/weight", 2)
    config = {
        **whisper.DEFAULTS,
        "d_model": d_model,
        "num_mel_bins": bands,
        "encoder_ffn_dim": d_ff,
        "decoder_ffn_dim": d_ff,
    }
    targets = layout.block_targets(tensors, d_model, d_ff, use_bias=True)
    targets |= layout.norm("encoder/layer_norm", d_model, "encoder_norm")
    targets |= layout.norm("decoder/layer_norm", d_model, "decoder_norm")
    targets |= whisper.convolutions("encoder/conv{}/", bands, d_model)
    for side, text in layout.SIDES.items():
        name = f"{side}/position_encodings/encodings"
        shape = layout.shape(tensors, name, 2)
        targets[name] = mapping.Target((shape[0], d_model), (f"{text}_positions/embeddings",))
        config[f"max_{text}_positions"] = shape[0]
        config[f"{side}_layers"] = layout.depth(tensors, side)
        config[f"{side}_attention_heads"] = layout.heads(specification, side)
    table = "decoder/embeddings/weight"
    targets[table] = mapping.Target((len(names), d_model))
    tensors = mapping.checked(tensors, targets, {"decoder/projection/weight": table})
    order, arrays = _whisper_order(folder), mapping.mapped(tensors, targets)
    arrays |= whisper.embedding_weights(arrays, tensors[table], order)
    return whisper.make_model(config, order, arrays, options)


def _whisper_order(folder: pathlib.Path) -> Ids:
    """Returns Whisper's ids of our rows, (V,)."""
    ids = layout.ids(layout.read_vocabulary(folder, "vocabulary"))
    begin, end = (pieces.special_id(ids, f"<|{x}|>") for x in ("startoftranscript", "endoftext"))
    return mapping.row_order(len(ids), None, None, begin, end)
