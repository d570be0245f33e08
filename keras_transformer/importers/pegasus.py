"""PEGASUS in Hugging Face's layout: summaries.

PEGASUS is pre-norm, with sinusoids, all sines first. A target starts with the padding token.
`encoder_decoders` explains the form.

A folder holds `config.json`, `model.safetensors` (or `pytorch_model.bin`), and `tokenizer.json` or
`spiece.model`.
"""

import pathlib
from typing import Any

from keras_transformer.importers import pieces
from keras_transformer.importers.encoder_decoders import EncoderDecoder, read_pieces
from keras_transformer.importers.tables import Loader, ModelLoader, RowOrders

__all__ = ["load", "load_model", "row_orders"]

# The pieces before those of the SentencePiece model. The training alone reads the others.
FIRST = ("<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{i}>" for i in range(2, 103)))


def _vocabulary(folder: pathlib.Path, config: dict[str, Any]) -> pieces.Vocabulary:
    read = read_pieces(folder, config, "spiece.model", lambda own: [*FIRST, *own[2:]])
    return pieces.Vocabulary(lambda orders: pieces.renumbered_json(read, orders[0]))


FAMILY = EncoderDecoder("pegasus", _vocabulary, unknown=105, norm_first=True)
ORIGIN = FAMILY.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
