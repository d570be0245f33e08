"""BERT and models of its class, such as MiniLM, BGE, GTE and E5, in Hugging Face's layout.

`load_model` and `load` return the `TransformerEncoder`, `load_task` the model with the head or the
pooling that the folder describes. `encoders` explains the form.

A folder holds `config.json`, `model.safetensors` (or `pytorch_model.bin`), and `tokenizer.json` or
`vocab.txt`.
"""

from keras_transformer.importers import checkpoint
from keras_transformer.importers.encoders import (
    SPECIAL,
    EncoderImporter,
    Relative,
    read_vocabulary,
)
from keras_transformer.importers.tables import HeadReader, Loader, ModelLoader, RowOrders

__all__ = [
    "SPECIAL",
    "load",
    "load_model",
    "load_sentence_encoder",
    "load_task",
    "read_head",
    "read_vocabulary",
    "row_orders",
]

CONFIG = checkpoint.HuggingFace(
    "bert",
    sizes=(
        "vocab_size",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    ),
    layers=("num_hidden_layers",),
    more_sizes=("type_vocab_size",),
    defaults={
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    },
    fixed={
        "add_cross_attention": False,
        "is_decoder": False,
        "position_embedding_type": "absolute",
    },
)
IMPORTER = EncoderImporter("bert", Relative(CONFIG, "bert."))

ORIGIN = IMPORTER.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
load_task: Loader = IMPORTER.load_task
read_head: HeadReader = IMPORTER.read_head
load_sentence_encoder: ModelLoader = IMPORTER.load_sentence_encoder
