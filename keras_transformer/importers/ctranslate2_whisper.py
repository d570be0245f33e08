"""CTranslate2's `WhisperSpec`, as faster-whisper publishes it."""

import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer.importers import checkpoint, mapping, pieces, whisper
from keras_transformer.importers import ctranslate2_layout as layout
from keras_transformer.importers.speech_tokens import (
    SpeechSettings,
    language_code,
    make_settings,
)
from keras_transformer.importers.speech_tokens import vocabulary as vocabulary
from keras_transformer.importers.tables import Arrays, Special, Table, shape_of
from keras_transformer.types import StrPath

SPECIFICATION, REVISION = "WhisperSpec", 3
TENSORS = {
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


def make_table(config: Mapping[str, Any], tensors: Arrays) -> Table:
    """Returns the table of a `WhisperSpec`.

    Args:
        config: `config.json`, and the `folder` and the `specification` of the model.
        tensors: dict from the origin's name to array.
    """
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
        raise ValueError(f"A WhisperSpec must have the settings {needed}, but has {found}.")
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
        TENSORS,
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
