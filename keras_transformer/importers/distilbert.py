"""DistilBERT in Hugging Face's layout: BERT without segments, with half of its layers.

`encoders` explains the form. A folder holds the files of `bert`.
"""

from keras_transformer.importers import checkpoint
from keras_transformer.importers.encoders import EncoderImporter, Relative
from keras_transformer.importers.tables import HeadReader, Loader, ModelLoader, RowOrders

__all__ = ["load", "load_model", "load_sentence_encoder", "load_task", "read_head", "row_orders"]

CONFIG = checkpoint.HuggingFace(
    "distilbert",
    sizes=("vocab_size", "dim", "n_heads", "hidden_dim", "max_position_embeddings"),
    layers=("n_layers",),
    defaults={
        "activation": "gelu",
        "attention_dropout": 0.1,
        "dropout": 0.1,
        "seq_classif_dropout": 0.2,
    },
)
RELATIVE = Relative(
    CONFIG,
    "distilbert.",
    keys={
        "dim": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "hidden_dim": "intermediate_size",
        "activation": "hidden_act",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "seq_classif_dropout": "classifier_dropout",
    },
    settings={"layer_norm_eps": 1e-12, "type_vocab_size": 0, "pooler_activation": "relu"},
    names={
        r"^transformer\.layer": "encoder.layer",
        r"attention\.q_lin": "attention.self.query",
        r"attention\.k_lin": "attention.self.key",
        r"attention\.v_lin": "attention.self.value",
        r"attention\.out_lin": "attention.output.dense",
        "sa_layer_norm": "attention.output.LayerNorm",
        r"ffn\.lin1": "intermediate.dense",
        r"ffn\.lin2": "output.dense",
        "output_layer_norm": "output.LayerNorm",
        "^pre_classifier": "pooler.dense",
        "^vocab_transform": "cls.predictions.transform.dense",
        "^vocab_layer_norm": "cls.predictions.transform.LayerNorm",
        r"^vocab_projector\.weight": "cls.predictions.decoder.weight",
        r"^vocab_projector\.bias": "cls.predictions.bias",
    },
)
IMPORTER = EncoderImporter("distilbert", RELATIVE)

ORIGIN = IMPORTER.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
load_task: Loader = IMPORTER.load_task
read_head: HeadReader = IMPORTER.read_head
load_sentence_encoder: ModelLoader = IMPORTER.load_sentence_encoder
