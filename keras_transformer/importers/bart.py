"""BART in Hugging Face's layout: summaries, corrections and other texts from texts.

BART is post-norm, with a norm after the embeddings and learned positions. `encoder_decoders`
explains the form. The tokenizer puts `<s>` before every text: a source is `<s>`, its tokens and the
end token, and a target begins with `<s>` after the begin token, which is `</s>`.

A folder holds `config.json`, `model.safetensors` (or `pytorch_model.bin`) and `tokenizer.json`.
"""

import pathlib
from typing import Any

from keras_transformer.importers import pieces
from keras_transformer.importers.encoder_decoders import EncoderDecoder, check_ids

__all__ = ["load", "load_model", "row_orders"]


def _vocabulary(folder: pathlib.Path, config: dict[str, Any]) -> pieces.Vocabulary:
    path = folder / "tokenizer.json"
    read = pieces.read_tokenizer(path)
    check_ids(path, pieces.json_ids(read), config)
    return pieces.Vocabulary(lambda orders: pieces.renumbered_json(read, orders[0], "<s>"))


FAMILY = EncoderDecoder("bart", _vocabulary, unknown=3, embedding_norm=True, learned=True)
load_model, load, row_orders = FAMILY.origin.loaders
