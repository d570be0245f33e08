"""XLM-RoBERTa in Hugging Face's layout: RoBERTa with SentencePiece's pieces, as multilingual E5.

`encoders` explains the form. A folder holds the files of `roberta`.
"""

import dataclasses

from keras_transformer.importers import roberta
from keras_transformer.importers.encoders import EncoderImporter
from keras_transformer.importers.tables import HeadReader, Loader, ModelLoader, RowOrders

__all__ = ["load", "load_model", "load_sentence_encoder", "load_task", "read_head", "row_orders"]

CONFIG = dataclasses.replace(roberta.CONFIG, model_type="xlm-roberta")
RELATIVE = dataclasses.replace(roberta.RELATIVE, files=CONFIG)
IMPORTER = EncoderImporter("xlm-roberta", RELATIVE)

ORIGIN = IMPORTER.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
load_task: Loader = IMPORTER.load_task
read_head: HeadReader = IMPORTER.read_head
load_sentence_encoder: ModelLoader = IMPORTER.load_sentence_encoder
