"""ModernBERT in Hugging Face's layout: a pre-norm encoder with rotary positions and local windows.

Every third block attends to all tokens, the others to a window, with other wavelengths. The
feed-forward networks are gated, and the first block has no norm before self-attention, because the
embeddings are normalised. The importer puts the channels of queries and keys in our order: pairs
instead of halves. `encoders` explains the form, and the heads have a dense layer and a norm of
their own. A folder holds `config.json`, `model.safetensors` and `tokenizer.json`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import keras
from keras import layers

from keras_transformer.importers import bert_heads, checkpoint
from keras_transformer.importers.encoders import TENSORS as BERT
from keras_transformer.importers.encoders import TYPES, WORDS, EncoderImporter, Relative, in_pairs
from keras_transformer.importers.tables import (
    Arrays,
    HeadReader,
    Loader,
    ModelLoader,
    RowOrders,
    Table,
)
from keras_transformer.layers.blocks import GatedFeedForward
from keras_transformer.layers.pooling import SequencePooling
from keras_transformer.layers.positions import RotaryPositionEncoding
from keras_transformer.types import Tensor

__all__ = ["load", "load_model", "load_sentence_encoder", "load_task", "read_head", "row_orders"]

TENSORS = {
    WORDS: "token_embedding/embeddings",
    "embeddings.token_type_embeddings.weight": TYPES,  # zeros
    "embeddings.norm.*": "source_embedding_norm",
    "layers.#.attn_norm.*": "encoder_block_#/self_attention_norm",
    "layers.#.attn.Wqkv.*": "encoder_block_#/self_attention/{query,key,value}",
    "layers.#.attn.Wo.*": "encoder_block_#/self_attention/output",
    "layers.#.mlp_norm.*": "encoder_block_#/feed_forward_norm",
    "layers.#.mlp.Wi.*": "encoder_block_#/feed_forward/{hidden,gate}",
    "layers.#.mlp.Wo.*": "encoder_block_#/feed_forward/output",
    "final_norm.*": "encoder_norm",
}
# The weights that a model lacks if a setting is false.
OPTIONAL = {
    "attention_bias": r".*/self_attention/.*/bias",
    "classifier_bias": "transform/bias",
    "decoder_bias": "words/bias",
    "mlp_bias": ".*/feed_forward/.*/bias",
    "norm_bias": ".*/beta",
}
CONFIG = checkpoint.HuggingFace(
    "modernbert",
    sizes=("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"),
    layers=("num_hidden_layers",),
    defaults={
        **dict.fromkeys(OPTIONAL, False),
        "attention_dropout": 0.0,
        "classifier_activation": "gelu",
        "classifier_dropout": 0.0,
        "classifier_pooling": "cls",
        "decoder_bias": True,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "hidden_activation": "gelu",
        "local_attention": 128,
        "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "mlp_dropout": 0.0,
        "norm_eps": 1e-5,
    },
)


def _transformed(vectors: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Returns the dense layer and the norm of every head."""
    activation = checkpoint.activation(config, "classifier_activation")
    size, use_bias = config["hidden_size"], config["classifier_bias"]
    x = layers.Dense(size, activation, use_bias=use_bias, name="transform")(vectors)
    return _norm(config, name="transform_norm")(x)


def _norm(config: Mapping[str, Any], **options: Any) -> keras.Layer:
    epsilon, center = config["layer_norm_eps"], config["norm_bias"]
    return layers.LayerNormalization(epsilon=epsilon, center=center, **options)


def _pooled(vectors: Tensor, config: Mapping[str, Any]) -> Tensor:
    kind = config["classifier_pooling"]
    if kind not in ("cls", "mean"):
        raise ValueError(f'classifier_pooling is {kind!r:.100}, but must be "cls" or "mean".')
    pooled = vectors[:, 0] if kind == "cls" else SequencePooling("mean", name="mean")(vectors)
    return _transformed(pooled, config)


def _words(vectors: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Logits (B, S, V) of the masked words. Their matrix is a copy of the embedding."""
    size, use_bias = config["vocab_size"], config["decoder_bias"]
    words = layers.Dense(size, use_bias=use_bias, dtype="float32", name="words")
    return words(_transformed(vectors, config))


def _head(kind: str, build: Any, **tensors: str) -> bert_heads.Class:
    """Returns a head of BERT after the dense layer and the norm."""
    parts = {"cls.head.dense.*": "transform", "cls.head.norm.*": "transform_norm"}
    parts |= {f"{name}.*": path for name, path in tensors.items()}
    return bert_heads.CLASSES[kind]._replace(tensors=parts, build=build)


DECODER = "cls.decoder.weight"
HEADS = {
    "MaskedLM": _head("MaskedLM", _words, **{"cls.decoder": "words"}),
    "QuestionAnswering": _head(
        "QuestionAnswering",
        lambda vectors, config: bert_heads.answer(_transformed(vectors, config), config),
        classifier="qa_outputs",
    ),
    "SequenceClassification": _head(
        "SequenceClassification",
        functools.partial(bert_heads.classes, _pooled),
        classifier="classifier",
    ),
    "TokenClassification": _head(
        "TokenClassification",
        lambda vectors, config: bert_heads.tags(_transformed(vectors, config), config),
        classifier="classifier",
    ),
}
RELATIVE = Relative(
    CONFIG,
    "model.",
    keys={
        "attention_dropout": "attention_probs_dropout_prob",
        "hidden_activation": "hidden_act",
        "mlp_dropout": "hidden_dropout_prob",
        "norm_eps": "layer_norm_eps",
    },
    settings={"heads": HEADS, "type_vocab_size": 0},
    names={
        r"^embeddings\.tok_embeddings": "embeddings.word_embeddings",
        "^head": "cls.head",
        "^decoder": "cls.decoder",
    },
)


class ModernBertImporter(EncoderImporter):
    """The loaders of ModernBERT."""

    def _table(self, config: dict[str, Any], tensors: Arrays, options: dict[str, Any]) -> Table:
        table = super()._table(config, tensors, options)
        head = {name: path for name, path in table.tensors.items() if name not in BERT}
        if f"{DECODER.removesuffix('.weight')}.*" in head and WORDS in tensors:
            tensors.setdefault(DECODER, tensors[WORDS])  # tied
        lacks = [pattern for name, pattern in OPTIONAL.items() if not config[name]]
        settings = {
            **table.settings,
            "norm": _norm(config),
            "norm_first": True,
            "embedding_norm": "first",
            "use_bias": config["attention_bias"],
            "positions": _positions(config),
            "feed_forward": GatedFeedForward(
                config["intermediate_size"], table.settings["activation"], config["mlp_bias"]
            ),
            **dict.fromkeys(("activation", "d_ff", "epsilon")),
        }
        return dataclasses.replace(
            table,
            tensors=TENSORS | head,
            without="|".join([*lacks, "encoder_block_0/self_attention_norm/.*"]),
            finish=functools.partial(in_pairs, table.finish, table.num_heads),
            settings=settings,
        )


def _positions(config: Mapping[str, Any]) -> list[RotaryPositionEncoding]:
    """Returns the encoding of each block."""
    every, window = config["global_attn_every_n_layers"], config["local_attention"] // 2
    kinds = config.get("layer_types") or [
        "sliding_attention" if i % every else "full_attention"
        for i in range(config["num_hidden_layers"])
    ]
    encodings, rope = {}, config.get("rope_parameters") or {}
    for kind, base, reach in (
        ("full_attention", config["global_rope_theta"], None),
        ("sliding_attention", config["local_rope_theta"], window),
    ):
        given = {"rope_type": "default", "rope_theta": base, **(rope.get(kind) or {})}
        if given["rope_type"] != "default":
            raise ValueError(
                f"rope_parameters of {kind} have the rope_type {given['rope_type']!r:.100}, but "
                'only "default" is supported.'
            )
        encodings[kind] = RotaryPositionEncoding(given["rope_theta"], window=reach)
    if unknown := {*kinds} - {*encodings}:
        raise ValueError(f"layer_types has {sorted(unknown)}, but must have {sorted(encodings)}.")
    return [encodings[kind] for kind in kinds]


IMPORTER = ModernBertImporter("modernbert", RELATIVE)

ORIGIN = IMPORTER.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
load_task: Loader = IMPORTER.load_task
read_head: HeadReader = IMPORTER.read_head
load_sentence_encoder: ModelLoader = IMPORTER.load_sentence_encoder
