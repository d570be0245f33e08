"""CTranslate2's folders: Whisper, and translation models such as Argos' and OpenNMT's.

A folder holds `model.bin`, `config.json` and vocabularies. Weights in 8 or 16 bits become float32.
CTranslate2 joins the projections that read the same input, so the importer splits their matrices.
It does not need the package `ctranslate2`. For the inputs of a Whisper model see `whisper`.

`load` also reads `tokenizer.json` for Whisper. For translation models it reads
`sentencepiece.model` in the folder or above it, or `source.spm` and `target.spm`. The argument
`reads_end` of a translation model defaults to whether its sources have an end token:
`add_source_eos` in `config.json`, or OPUS-MT's tokenizers. A model that reads sources with a begin
token is refused, because `Translator` does not add one.
"""

import pathlib
from typing import Any

from keras_transformer.importers import checkpoint, ctranslate2_translator, mapping, pieces, whisper
from keras_transformer.importers import ctranslate2_layout as layout
from keras_transformer.importers.speech_tokens import (
    SpeechSettings,
    language_code,
    make_settings,
    make_tokenizer,
)
from keras_transformer.importers.tables import Arrays, Origin, Special, Table, shape_of
from keras_transformer.types import StrPath

__all__ = ["load", "load_model", "read_settings", "row_orders"]

WHISPER = {
    **layout.TENSORS,
    "encoder/conv1/*": "convolution_1",
    "encoder/conv2/*": "convolution_2",
}


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
        mapping.row_order(*_special(folder)),
        {language_code(names[id]): id for id in languages},
        read.get("suppress_ids"),
        read.get("suppress_ids_begin"),
        read.get("alignment_heads"),
    )


def _read_config(folder: pathlib.Path) -> dict[str, Any]:
    specification = layout.read_specification(folder)
    config = checkpoint.read_json(folder / "config.json")
    return {**config, "folder": folder, "specification": specification}


def _read_tensors(folder: pathlib.Path, config: dict[str, Any]) -> Arrays:
    return config["specification"].tensors


def _table(config: dict[str, Any], tensors: Arrays, options: dict[str, Any]) -> Table:
    if config["specification"].name == layout.WHISPER:
        return _whisper_table(config, tensors)
    return ctranslate2_translator.table(config, tensors)


def _vocabulary(folder: pathlib.Path, config: dict[str, Any]) -> pieces.Vocabulary:
    if config["specification"].name == layout.WHISPER:
        return pieces.Vocabulary(lambda orders: make_tokenizer(folder, orders[0]))
    return ctranslate2_translator.vocabulary(folder, config)


def _whisper_table(config: dict[str, Any], tensors: Arrays) -> Table:
    """Returns the table of a `WhisperSpec`."""
    specification, known = config["specification"], layout.sizes(config["specification"])
    _, bands, _ = shape_of(tensors, "encoder/conv1/weight", 3, layout.ADVICE)
    sizes = known["sizes"]
    found = {
        "activation": layout.activation(specification),
        "pre_norm": layout.setting(specification, "pre_norm", 1),
        "scale": layout.scale(specification, sizes["D"]),
        "start_from_zero_embedding": layout.setting(specification, "start_from_zero_embedding", 0),
    }
    if found != (needed := {**found, "activation": "gelu", "pre_norm": 1, "scale": 1.0}):
        raise ValueError(f"A {layout.WHISPER} must have the settings {needed}, but has {found}.")
    as_whisper = {
        **whisper.DEFAULTS,
        "d_model": sizes["D"],
        "num_mel_bins": bands,
        "encoder_ffn_dim": sizes["F"],
        "decoder_ffn_dim": sizes["F"],
        "max_source_positions": sizes["P"],
        "max_target_positions": sizes["Q"],
    }
    for side, layers in known["layers"].items():
        as_whisper[f"{side}_layers"] = layers
        as_whisper[f"{side}_attention_heads"] = layout.heads(specification, side)
    return Table(
        WHISPER,
        special=[_special(config["folder"])],
        copies={layout.KERNEL: layout.TABLES[1]},
        without=r"\w+_embedding/output_bias",
        **known | whisper.common(as_whisper),
    )


def _special(folder: pathlib.Path) -> Special:
    """Returns the number of Whisper's ids and its special ids."""
    ids = layout.ids(layout.read_vocabulary(folder, "vocabulary"))
    begin, end = (pieces.special_id(ids, f"<|{x}|>") for x in ("startoftranscript", "endoftext"))
    return len(ids), None, None, begin, end


ORIGIN = Origin("ctranslate2", _read_config, _read_tensors, _table, _vocabulary, "model.bin")
load_model, load, row_orders = ORIGIN.load_model, ORIGIN.load, ORIGIN.row_orders
