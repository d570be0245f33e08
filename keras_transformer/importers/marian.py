"""Marian's translation models in Hugging Face's layout (OPUS-MT): folders with `config.json`.

They are post-norm. The importer stores Marian's sinusoids (all sines, then all cosines) as a table
of positions, which is not trainable. `encoder_decoders` explains the form.

A folder holds `config.json` and `model.safetensors` (or `pytorch_model.bin`). `load` also reads
`vocab.json`, `source.spm` and `target.spm`, and `target_vocab.json` if the two sides have separate
vocabularies. A text may begin with a language token of the vocabulary, such as ">>fra<<".
"""

import pathlib
from typing import Any

from keras_transformer.importers import checkpoint, pieces
from keras_transformer.importers.encoder_decoders import EncoderDecoder, check_ids
from keras_transformer.importers.tables import Loader, ModelLoader, RowOrders

__all__ = ["load", "load_model", "row_orders"]


def _vocabulary(folder: pathlib.Path, config: dict[str, Any]) -> pieces.Vocabulary:
    models = [pieces.read_spm(folder / f"{side}.spm") for side in ("source", "target")]
    shared = config["share_encoder_decoder_embeddings"]
    paths = [folder / "vocab.json", folder / ("vocab.json" if shared else "target_vocab.json")]
    ids = [checkpoint.check_ids(path, checkpoint.read_json(path)) for path in paths]
    for path, known in zip(paths, ids, strict=True):
        check_ids(path, known, config)
    return pieces.of_both_sides(models, ids, shared)


FAMILY = EncoderDecoder("marian", _vocabulary, unknown=1)
ORIGIN = FAMILY.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
