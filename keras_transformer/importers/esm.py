"""ESM in Hugging Face's layout: encoders of proteins, whose tokens are amino acids.

They are the encoder of the paper, pre-norm. ESM-2 has rotary positions, ESM-1b and ESM-1v learned
ones. ESM-1b also has a norm before the blocks. With `token_dropout`, masked tokens are zeros, and
the embeddings are multiplied by the share of tokens that training left, 0.88, over the share in the
row: `DroppedTokenEmbedding`. Files store the rotary frequencies, which may have been rounded to
half precision. `FrequencyRotation` uses them as they are.

`encoders` explains the form. These two layers and the tokenizer make this file longer than other
relatives. The head of contacts is left out, with a warning. A folder holds `config.json`,
`model.safetensors` (or `pytorch_model.bin`) and `vocab.txt`.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.importers import checkpoint, pieces
from keras_transformer.importers.bert import CONFIG as BERT
from keras_transformer.importers.encoders import (
    POSITIONS,
    EncoderImporter,
    Relative,
    in_pairs,
    read_vocabulary,
)
from keras_transformer.importers.mapping import our_ids
from keras_transformer.importers.tables import (
    Arrays,
    HeadReader,
    Loader,
    ModelLoader,
    RowOrders,
    Table,
)
from keras_transformer.layers.embeddings import TokenEmbedding
from keras_transformer.layers.positions import RotaryPositionEncoding
from keras_transformer.models import TransformerEncoder
from keras_transformer.special_ids import PAD_ID
from keras_transformer.training.distribution import Model
from keras_transformer.types import StrPath, Tensor

__all__ = ["load", "load_model", "load_sentence_encoder", "load_task", "read_head", "row_orders"]

SPECIAL = ("<pad>", "<unk>", "<cls>", "<eos>")
MASK, FREQUENCIES = "<mask>", "rotary_embeddings.inv_freq"
KEPT = 1 - 0.15 * 0.8  # of the tokens of a row in training: 15 % are chosen, 80 % of them masked


@keras.saving.register_keras_serializable("keras_transformer")
class DroppedTokenEmbedding(TokenEmbedding):
    """A `TokenEmbedding` whose masked tokens are zeros, as if dropout had dropped them.

    The vectors of a row are multiplied by 0.88 / (1 - m / n) for m masked tokens of n.

    Args:
        mask_id: int, the id of masked tokens.
        **kwargs: as in `TokenEmbedding`.
    """

    def __init__(self, *, mask_id: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mask_id: int = mask_id

    def call(self, inputs: Tensor, logits: bool = False) -> Tensor:
        vectors = super().call(inputs, logits)
        is_read = ops.logical_and(inputs != PAD_ID, inputs != self.mask_id)
        masked = ops.sum(ops.cast(inputs == self.mask_id, "float32"), axis=1)
        read = ops.sum(ops.cast(is_read, "float32"), axis=1)
        factor = KEPT * (read + masked) / ops.maximum(read, 1.0)  # (B,)
        seen = ops.cast(inputs != self.mask_id, "float32") * factor[:, None]  # (B, S)
        return vectors * ops.cast(seen, vectors.dtype)[..., None]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mask_id": self.mask_id}


@keras.saving.register_keras_serializable("keras_transformer")
class FrequencyRotation(RotaryPositionEncoding):
    """A `RotaryPositionEncoding` with the given frequencies, (K / 2,) numbers."""

    def __init__(self, frequencies: Sequence[float], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.frequencies: list[float] = [*frequencies]

    def sines_and_cosines(
        self, positions: Tensor, size: int, base: float = 10000.0
    ) -> tuple[Tensor, Tensor]:
        angles = positions[:, None] * ops.convert_to_tensor(self.frequencies, "float32")
        return ops.sin(angles), ops.cos(angles)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "frequencies": self.frequencies}


def make_encoder(mask_id: int | None = None, **settings: Any) -> keras.Model:
    """Makes the `TransformerEncoder`, for `mask_id` with a `DroppedTokenEmbedding`."""
    encoder = TransformerEncoder(**settings)
    if mask_id is None:
        return encoder
    plain, inputs = encoder.encoder_stack.embedding, encoder.input
    embedding = DroppedTokenEmbedding(mask_id=mask_id, **plain.get_config())
    stack = dataclasses.replace(encoder.encoder_stack, embedding=embedding)
    given = inputs if isinstance(inputs, dict) else {"source_ids": inputs}
    x = stack(given["source_ids"], segment_ids=given.get("segment_ids"))
    return Model(inputs, x, name=encoder.name)


def residues(folder: StrPath, ids: dict[str, int]) -> dict[str, Any]:
    """Returns a `tokenizer.json` with the tokens of `vocab.txt`, the longest first.

    Text between them is one unknown token for each word.

    Args:
        folder: str or path-like; no other file of it is read.
        ids: dict from piece to the origin's id.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    known = "|".join(re.escape(piece) for piece in sorted(ids, key=len, reverse=True))
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(known), "isolated"),
            pre_tokenizers.Split(Regex(r"[\s\x1c-\x1f]+"), "removed"),  # as `str.split`
        ]
    )
    tokenizer.add_special_tokens([piece for piece in (*SPECIAL, MASK) if piece in ids])
    return json.loads(tokenizer.to_str())


CONFIG = checkpoint.HuggingFace(
    "esm",
    sizes=BERT.sizes[:-1],  # rotary positions have no table
    layers=BERT.layers,
    defaults={
        "attention_probs_dropout_prob": 0.1,
        "emb_layer_norm_before": False,
        "hidden_dropout_prob": 0.1,
        "layer_norm_eps": 1e-12,
        "mask_token_id": None,
        "max_position_embeddings": 1026,
        "position_embedding_type": "absolute",
        "rope_theta": 10000.0,
        "token_dropout": False,
    },
    fixed={
        "add_cross_attention": False,
        "is_decoder": False,
        "is_folding_model": False,
        "pad_token_id": 1,  # it decides the first position
    },
)
RELATIVE = Relative(
    CONFIG,
    "esm.",
    settings={"hidden_act": "gelu", "type_vocab_size": 0},
    names={
        r"^embeddings\.layer_norm": "embeddings.LayerNorm",
        r"\.attention\.LayerNorm": ".attention.output.LayerNorm",
        r"^(encoder\.layer\.\d+)\.LayerNorm": r"\1.output.LayerNorm",
        r"^encoder\.layer\..+\.rotary_embeddings": "rotary_embeddings",  # equal in all blocks
        r"^classifier\.dense": "pooler.dense",
        r"^classifier\.out_proj": "classifier",
        r"^contact_head": "cls.contact_head",
        r"^lm_head\.dense": "cls.predictions.transform.dense",
        r"^lm_head\.layer_norm": "cls.predictions.transform.LayerNorm",
        r"^lm_head\.decoder": "cls.predictions.decoder",
        r"^lm_head\.bias": "cls.predictions.bias",
    },
    special=SPECIAL,
    first_position=2,
    encoder=make_encoder,
    tensors={"encoder.emb_layer_norm_after.*": "encoder_norm"},
    tokenizer=residues,
)


class EsmImporter(EncoderImporter):
    """The loaders of ESM."""

    def _table(self, config: dict[str, Any], tensors: Arrays, options: dict[str, Any]) -> Table:
        table, absent = super()._table(config, tensors, options), []
        settings = {**table.settings, "norm_first": True, "embedding_norm": True}
        if not config["emb_layer_norm_before"]:
            settings["embedding_norm"] = False
            absent.append("source_embedding_norm/.*")
        if config["token_dropout"]:
            settings["mask_id"] = our_ids(table.orders[0])[_mask(config)]
        if config["position_embedding_type"] == "rotary":
            settings["positions"] = FrequencyRotation(_frequencies(config, tensors))
            absent.append("source_positions/.*")
            tensors.pop(POSITIONS, None)  # unused in the origin
            table = dataclasses.replace(
                table, finish=functools.partial(in_pairs, table.finish, table.num_heads)
            )
        elif config["position_embedding_type"] != "absolute":
            raise ValueError(
                f"position_embedding_type is {config['position_embedding_type']!r:.100}, but must "
                'be "absolute" or "rotary".'
            )
        return dataclasses.replace(table, settings=settings, without="|".join(absent))


def _mask(config: Mapping[str, Any]) -> int:
    """Returns the origin's id of masked tokens."""
    found = pieces.special_id(read_vocabulary(config["folder"]), MASK)
    given = {name: config[name] for name in ("mask_token_id", "vocab_size")}
    if found != given["mask_token_id"] or found >= given["vocab_size"]:
        raise ValueError(
            f"The vocabulary numbers {MASK!r} as {found}, but config.json says {given}. Check that "
            "both belong to one model."
        )
    return found


def _frequencies(config: Mapping[str, Any], tensors: Arrays) -> list[float]:
    """Returns the frequencies of the file, or those of `rope_theta` without any."""
    size = config["hidden_size"] // config["num_attention_heads"]
    expected = config["rope_theta"] ** (-np.arange(0, size, 2, dtype=np.float32) / size)
    found = tensors.pop(FREQUENCIES, expected)
    if found.shape != expected.shape:
        raise ValueError(
            f"{FREQUENCIES} has shape {found.shape}, not {expected.shape}. Copy the file again."
        )
    return found.tolist()


IMPORTER = EsmImporter("esm", RELATIVE)

ORIGIN = IMPORTER.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
load_task: Loader = IMPORTER.load_task
read_head: HeadReader = IMPORTER.read_head
load_sentence_encoder: ModelLoader = IMPORTER.load_sentence_encoder
