"""Moonshine's speech recognition models in Hugging Face's layout (arXiv 2410.15608).

Moonshine is the encoder-decoder of the paper, pre-norm, without log-mel features. Three strided
convolutions make a vector of 384 samples, 24 ms. The norms have no bias, the rotary positions turn
a part of each head's channels, and the decoder's feed-forward networks are gated. Moonshine does
not multiply its embedding by √D, so the importer divides the matrix by √D and multiplies the last
norm by it.

The model reads `samples` (B, N), float32 at 16 kHz in [-1, 1], and `target_ids` (B, T) in our
order: the begin token 2 is `<s>`, the end token 3 `</s>`. N is at least 895, and at most 64
seconds. A norm over the whole sound follows the first convolution, so the rows of a batch have one
length: silence at the end of a row would change its vectors. A search starts with the begin token.
`dropout`, `attention_dropout` and `dtype` hold for both sides. The file is long because no other
family has this encoder.

A folder holds `config.json`, `model.safetensors` (or `pytorch_model.bin`) and `tokenizer.json`.

Shapes: B batch, N samples, S vectors, T target length, D d_model.
"""

import functools
from collections.abc import Mapping
from typing import Any

import keras
from keras import layers, ops

from keras_transformer.importers import checkpoint, mapping
from keras_transformer.importers.encoder_decoders import json_vocabulary
from keras_transformer.importers.tables import Arrays, Loader, ModelLoader, Origin, RowOrders, Table
from keras_transformer.layers.blocks import EncoderBlock, GatedFeedForward
from keras_transformer.layers.positions import RotaryPositionEncoding
from keras_transformer.layers.signals import MaskedConv1D
from keras_transformer.models import Transformer
from keras_transformer.sound.mel import SAMPLE_RATE
from keras_transformer.types import Shape, Tensor

__all__ = ["load", "load_model", "row_orders"]

LAYER, BLOCK = "model.@.layers.#.", "@_block_#/"
PARTS = {"q": "query", "k": "key", "v": "value", "o": "output"}
TENSORS = {
    "model.encoder.conv1.weight": "filters_1/kernel",
    "model.encoder.groupnorm.*": "filters_norm",
    "model.encoder.conv2.*": "filters_2",
    "model.encoder.conv3.*": "filters_3",
    "model.decoder.embed_tokens.weight": "token_embedding/embeddings",
    **{
        f"{LAYER}self_attn.{name}_proj.weight": f"{BLOCK}self_attention/{path}/kernel"
        for name, path in PARTS.items()
    },
    **{
        f"model.decoder.layers.#.encoder_attn.{name}_proj.weight": (
            f"decoder_block_#/cross_attention/{path}/kernel"
        )
        for name, path in PARTS.items()
    },
    f"{LAYER}input_layernorm.weight": f"{BLOCK}self_attention_norm/gamma",
    "model.encoder.layers.#.post_attention_layernorm.weight": (
        "encoder_block_#/feed_forward_norm/gamma"
    ),
    "model.decoder.layers.#.post_attention_layernorm.weight": (
        "decoder_block_#/cross_attention_norm/gamma"
    ),
    "model.decoder.layers.#.final_layernorm.weight": "decoder_block_#/feed_forward_norm/gamma",
    "model.encoder.layers.#.mlp.fc1.*": "encoder_block_#/feed_forward/hidden",
    "model.decoder.layers.#.mlp.fc1.*": "decoder_block_#/feed_forward/{gate,hidden}",
    f"{LAYER}mlp.fc2.*": f"{BLOCK}feed_forward/output",
    "model.encoder.layer_norm.weight": "encoder_norm/gamma",
    "model.decoder.norm.weight": "decoder_norm/gamma",
    "proj_out.weight": "token_embedding/output_kernel",
}
CONFIG = checkpoint.HuggingFace(
    "moonshine",
    sizes=(
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "encoder_num_attention_heads",
        "decoder_num_attention_heads",
    ),
    layers=("encoder_num_hidden_layers", "decoder_num_hidden_layers"),
    ids=("eos_token_id", "decoder_start_token_id"),
    defaults={
        "attention_dropout": 0.0,
        "decoder_hidden_act": "silu",
        "decoder_num_key_value_heads": None,
        "encoder_hidden_act": "gelu",
        "encoder_num_key_value_heads": None,
        "max_position_embeddings": 512,
        "partial_rotary_factor": 0.9,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
    fixed={"attention_bias": False},
    equal=(
        (
            "encoder_num_attention_heads",
            "decoder_num_attention_heads",
            "encoder_num_key_value_heads",
            "decoder_num_key_value_heads",
        ),
    ),
)
# Of each convolution: the size of its filters, its strides, its activation.
FILTERS = ((127, 64, "tanh"), (7, 3, "gelu"), (3, 2, "gelu"))
EPSILON = 1e-5
LEAST, MOST = 895, 64 * SAMPLE_RATE  # samples
SPECIAL_IDS = {"<s>": "decoder_start_token_id", "</s>": "eos_token_id"}


@keras.saving.register_keras_serializable("keras_transformer")
class Waveform(keras.Layer):
    """Sound (B, N) as frames (B, N, 1) of one sample.

    A sound of another length is an error. An exported file fills shorter sound with silence.
    """

    max_length = MOST

    def call(self, samples: Tensor) -> Tensor:
        self.compute_output_shape(samples.shape)  # refuses sound that does not fit
        length = ops.shape(samples)[1]
        if not isinstance(length, int):
            samples = ops.pad(samples, [[0, 0], [0, LEAST - 1]])
            samples = samples[:, : ops.maximum(length, LEAST)]
        return samples[..., None]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        length = input_shape[-1]
        if length is not None and not LEAST <= length <= MOST:
            raise ValueError(
                f"Moonshine reads {LEAST} to {MOST:,} samples at 16 kHz, but the sound has "
                f"{length:,}. Record it again, or cut it into parts."
            )
        return (*input_shape, 1)


@keras.saving.register_keras_serializable("keras_transformer")
class LimitedRotation(RotaryPositionEncoding):
    """A `RotaryPositionEncoding` of a model that was trained on at most `max_length` positions."""

    def __init__(self, max_length: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_length: int | None = max_length

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "max_length": self.max_length}


def make_table(config: dict[str, Any], tensors: Arrays, options: dict[str, Any]) -> Table:
    d_model, size = config["hidden_size"], config["intermediate_size"]
    vocabulary = config["vocab_size"], None, None
    special = (*vocabulary, config["decoder_start_token_id"], config["eos_token_id"])
    gated = GatedFeedForward(size, checkpoint.activation(config, "decoder_hidden_act"))
    return Table(
        TENSORS,
        sizes={
            **{"D": d_model, "F": size, "S": 1, "U": 2 * d_model},
            **dict(zip("LWY", (size for size, _, _ in FILTERS), strict=True)),
        },
        layers={side: config[f"{side}_num_hidden_layers"] for side in ("encoder", "decoder")},
        num_heads=config["decoder_num_attention_heads"],
        special=[special],
        copies=checkpoint.tied(config, "proj_out.weight", "model.decoder.embed_tokens.weight"),
        scale=d_model**-0.5,
        never=mapping.NEVER_LOW,
        model=functools.partial(_make_model, config),
        settings={
            "dropout": 0.0,
            "attention_dropout": config["attention_dropout"],
            "use_bias": False,
            "norm_first": True,
            "norm": layers.LayerNormalization(epsilon=EPSILON, center=False),
            "d_ff": None,
            "feed_forward": gated,
            "positions": LimitedRotation(config["max_position_embeddings"], **_rotation(config)),
        },
    )


def _rotation(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the rotary positions."""
    names = ("partial_rotary_factor", "rope_theta")
    rope = {name: config[name] for name in names} | (config.get("rope_parameters") or {})
    if rope.get("rope_type", "default") != "default":
        raise ValueError(
            f"rope_parameters have the rope_type {rope['rope_type']!r:.100}, but only "
            '"default" is supported.'
        )
    size = config["hidden_size"] // config["decoder_num_attention_heads"]
    turned = int(size * rope["partial_rotary_factor"])
    if turned % 2:
        raise ValueError(
            f"partial_rotary_factor={rope['partial_rotary_factor']} turns {turned} of {size} "
            "channels, but must turn an even number."
        )
    return {"base": rope["rope_theta"], "size": turned}


def _make_model(config: Mapping[str, Any], **settings: Any) -> Transformer:
    """Makes the model with these arguments of `Transformer`, of which some hold for the encoder."""
    depth, settings["num_layers"] = settings["num_layers"]
    return Transformer(**{"encoder": _make_encoder(config, depth, settings), **settings})


def _make_encoder(
    config: Mapping[str, Any], num_layers: int, settings: Mapping[str, Any]
) -> keras.Model:
    """Makes the encoder, from samples (B, N) to (B, S, D)."""
    d_model, dtype = config["hidden_size"], settings.get("dtype")
    source = keras.Input((None,), name="samples")
    x = Waveform(dtype=dtype, name="waveform")(source)
    for number, (size, strides, activation) in enumerate(FILTERS, 1):
        x = MaskedConv1D(
            2 * d_model if number == 2 else d_model,
            size,
            strides,
            "valid",
            activation=activation,
            use_bias=number > 1,
            dtype=dtype,
            name=f"filters_{number}",
        )(x)
        if number == 1:
            x = layers.GroupNormalization(1, epsilon=EPSILON, dtype=dtype, name="filters_norm")(x)
    for i in range(num_layers):
        x = EncoderBlock(
            settings["num_heads"],
            config["intermediate_size"],
            settings["dropout"],
            checkpoint.activation(config, "encoder_hidden_act"),
            norm_first=True,
            attention_dropout=settings["attention_dropout"],
            positions=RotaryPositionEncoding(**_rotation(config)),
            norm=settings["norm"],
            dtype=dtype,
            name=f"encoder_block_{i}",
        )(x)
    norm = layers.LayerNormalization(
        epsilon=EPSILON, center=False, dtype=dtype, name="encoder_norm"
    )
    return keras.Model(source, norm(x), name="encoder")


_vocabulary = functools.partial(json_vocabulary, special=SPECIAL_IDS)
ORIGIN = Origin("moonshine", CONFIG.read_files, make_table, _vocabulary)
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
