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

from keras_transformer.importers import checkpoint, ctranslate2_translator, ctranslate2_whisper
from keras_transformer.importers import ctranslate2_layout as layout
from keras_transformer.importers.ctranslate2_whisper import read_settings
from keras_transformer.importers.pieces import Vocabulary
from keras_transformer.importers.tables import (
    Arrays,
    Loader,
    ModelLoader,
    Origin,
    RowOrders,
    Table,
)

__all__ = ["load", "load_model", "read_settings", "row_orders"]

KINDS = {kind.SPECIFICATION: kind for kind in (ctranslate2_whisper, ctranslate2_translator)}
REVISIONS = {name: kind.REVISION for name, kind in KINDS.items()}


def _read_files(folder: pathlib.Path) -> tuple[dict[str, Any], Arrays]:
    specification = layout.read_specification(folder, REVISIONS)
    config = checkpoint.read_json(folder / "config.json")
    config |= {"folder": folder, "specification": specification}
    return config, specification.tensors


def make_table(config: dict[str, Any], tensors: Arrays, options: dict[str, Any]) -> Table:
    return KINDS[config["specification"].name].make_table(config, tensors)


def _vocabulary(folder: pathlib.Path, config: dict[str, Any]) -> Vocabulary:
    return KINDS[config["specification"].name].vocabulary(folder, config)


ORIGIN = Origin("ctranslate2", _read_files, make_table, _vocabulary, "model.bin")
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
