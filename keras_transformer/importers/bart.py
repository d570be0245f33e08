"""BART in Hugging Face's layout: summaries, corrections and other texts from texts.

BART is post-norm, with a norm after the embeddings and learned positions. `encoder_decoders`
explains the form. The tokenizer puts `<s>` before every text: a source is `<s>`, its tokens and the
end token, and a target begins with `<s>` after the begin token, which is `</s>`.

A folder holds `config.json`, `model.safetensors` (or `pytorch_model.bin`) and `tokenizer.json`.
"""

import functools

from keras_transformer.importers.encoder_decoders import EncoderDecoder, json_vocabulary

__all__ = ["load", "load_model", "row_orders"]

FAMILY = EncoderDecoder(
    "bart",
    functools.partial(json_vocabulary, begin="<s>"),
    unknown=3,
    embedding_norm=True,
    learned=True,
)
load_model, load, row_orders = FAMILY.origin.loaders
