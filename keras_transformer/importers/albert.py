"""ALBERT in Hugging Face's layout: BERT with one block that all layers share.

Its embedding is narrower than the blocks, and a dense layer widens it. The file of an export holds
the block once. `encoders` explains the form. A folder holds the files of `bert`.
"""

import dataclasses
from typing import Any

import keras
from keras import layers

from keras_transformer.importers.bert import CONFIG as BERT
from keras_transformer.importers.encoders import EncoderImporter, Relative
from keras_transformer.importers.tables import HeadReader, Loader, ModelLoader, RowOrders
from keras_transformer.layers.blocks import EncoderBlock
from keras_transformer.layers.embeddings import SegmentEmbedding, TokenEmbedding
from keras_transformer.layers.positions import position_encoding
from keras_transformer.training.distribution import Model

__all__ = ["load", "load_model", "load_sentence_encoder", "load_task", "read_head", "row_orders"]


def make_encoder(
    *,
    vocab_size: int,
    num_layers: int,
    d_model: int,
    embedding_size: int,
    positions: Any,
    embedding_norm: bool,
    num_segments: int | None,
    epsilon: float,
    dropout: float,
    dtype: Any = None,
    **arguments: Any,
) -> keras.Model:
    """Makes the encoder from ids (B, S) to vectors (B, S, D), see `TransformerEncoder`."""
    inputs = ids = keras.Input((None,), dtype="int32", name="source_ids")
    x = TokenEmbedding(vocab_size, embedding_size, dtype=dtype, name="token_embedding")(ids)
    x = position_encoding(positions, dtype=dtype, name="source_positions")(x)
    if num_segments is not None:
        segment_ids = keras.Input((None,), dtype="int32", name="segment_ids")
        inputs = {"source_ids": ids, "segment_ids": segment_ids}
        x = SegmentEmbedding(num_segments, dtype=dtype, name="segment_embedding")(x, segment_ids)
    norm = {"epsilon": epsilon, "dtype": dtype}
    x = layers.LayerNormalization(name="source_embedding_norm", **norm)(x)
    x = layers.Dropout(dropout, dtype=dtype, name="source_dropout")(x)
    x = layers.Dense(d_model, dtype=dtype, name="widening")(x)
    block = EncoderBlock(name="encoder_block_0", dropout=dropout, **norm, **arguments)
    for _ in range(num_layers):
        x = block(x)
    return Model(inputs, x, name="encoder")


CONFIG = dataclasses.replace(
    BERT,
    model_type="albert",
    sizes=(*BERT.sizes, "embedding_size"),
    defaults={**BERT.defaults, "hidden_act": "gelu_new", "classifier_dropout_prob": 0.1},
    fixed={"num_hidden_groups": 1, "inner_group_num": 1},
)
BLOCK = r"^encoder\.albert_layer_groups\.0\.albert_layers\.0\."
RELATIVE = Relative(
    CONFIG,
    "albert.",
    keys={"classifier_dropout_prob": "classifier_dropout"},
    names={
        rf"{BLOCK}attention\.(query|key|value)\.": r"encoder.layer.0.attention.self.\1.",
        rf"{BLOCK}attention\.": "encoder.layer.0.attention.output.",
        rf"{BLOCK}ffn\.": "encoder.layer.0.intermediate.dense.",
        rf"{BLOCK}ffn_output\.": "encoder.layer.0.output.dense.",
        rf"{BLOCK}full_layer_layer_norm\.": "encoder.layer.0.output.LayerNorm.",
        r"^pooler\.": "pooler.dense.",
        r"^predictions\.(dense|LayerNorm)\.": r"cls.predictions.transform.\1.",
        r"^predictions\.": "cls.predictions.",
    },
    special=("<pad>", "<unk>", "[CLS]", "[SEP]"),
    encoder=make_encoder,
    tensors={"encoder.embedding_hidden_mapping_in.*": "widening"},
)
IMPORTER = EncoderImporter("albert", RELATIVE)

ORIGIN = IMPORTER.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
load_task: Loader = IMPORTER.load_task
read_head: HeadReader = IMPORTER.read_head
load_sentence_encoder: ModelLoader = IMPORTER.load_sentence_encoder
