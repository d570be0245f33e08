"""BART in Hugging Face's layout: summaries, corrections and other texts from texts.

BART is post-norm, with a norm after the embeddings and learned positions. `encoder_decoders`
explains the form. The tokenizer puts `<s>` before every text: a source is `<s>`, its tokens and the
end token, and a target begins with `<s>` after the begin token, which is `</s>`.

A folder holds `config.json`, `model.safetensors` (or `pytorch_model.bin`) and `tokenizer.json`.
"""

import functools

from keras_transformer.importers.encoder_decoders import EncoderDecoder, json_vocabulary
from keras_transformer.importers.tables import Loader, ModelLoader, RowOrders

__all__ = ["load", "load_model", "row_orders"]

FAMILY = EncoderDecoder(
    "bart",
    functools.partial(json_vocabulary, begin="<s>"),
    unknown=3,
    embedding_norm=True,
    learned=True,
)
ORIGIN = FAMILY.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
