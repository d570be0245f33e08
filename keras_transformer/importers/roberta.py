"""RoBERTa in Hugging Face's layout: BERT with other special tokens and pieces of bytes.

The first two position vectors belong to padding, so no text uses them. `encoders` explains the
form. A folder holds `config.json`, `model.safetensors` (or `pytorch_model.bin`) and
`tokenizer.json`.
"""

import dataclasses

from keras_transformer.importers.bert import CONFIG as BERT
from keras_transformer.importers.encoders import EncoderImporter, Relative
from keras_transformer.importers.tables import HeadReader, Loader, ModelLoader, RowOrders

__all__ = ["load", "load_model", "load_sentence_encoder", "load_task", "read_head", "row_orders"]

CONFIG = dataclasses.replace(
    BERT,
    model_type="roberta",
    defaults={**BERT.defaults, "layer_norm_eps": 1e-5, "pad_token_id": 1},
    fixed={**BERT.fixed, "pad_token_id": 1},  # which decides the first position
)
RELATIVE = Relative(
    CONFIG,
    "roberta.",
    names={
        r"^classifier\.dense": "pooler.dense",
        r"^classifier\.out_proj": "classifier",
        r"^lm_head\.dense": "cls.predictions.transform.dense",
        r"^lm_head\.layer_norm": "cls.predictions.transform.LayerNorm",
        r"^lm_head\.decoder": "cls.predictions.decoder",
        r"^lm_head\.bias": "cls.predictions.bias",
    },
    special=("<pad>", "<unk>", "<s>", "</s>"),
    first_position=2,
    two_ends=True,
)
IMPORTER = EncoderImporter("roberta", RELATIVE)

ORIGIN = IMPORTER.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
load_task: Loader = IMPORTER.load_task
read_head: HeadReader = IMPORTER.read_head
load_sentence_encoder: ModelLoader = IMPORTER.load_sentence_encoder
