"""XLM-RoBERTa in Hugging Face's layout: RoBERTa with SentencePiece's pieces, as multilingual E5.

`encoders` explains the form. A folder holds the files of `roberta`.
"""

import dataclasses

from keras_transformer.importers import roberta
from keras_transformer.importers.encoders import EncoderImporter

__all__ = ["load", "load_model", "load_sentence_encoder", "load_task", "read_head", "row_orders"]

CONFIG = dataclasses.replace(roberta.CONFIG, model_type="xlm-roberta")
RELATIVE = dataclasses.replace(roberta.RELATIVE, files=CONFIG)
IMPORTER = EncoderImporter("xlm-roberta", RELATIVE)
load, load_model, load_sentence_encoder, load_task, read_head, row_orders = IMPORTER.loaders
