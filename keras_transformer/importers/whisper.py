"""Whisper's speech recognition models in Hugging Face's layout (arXiv 2212.04356).

Whisper is the encoder-decoder of the paper, pre-norm. Two convolutions shorten the log-mel features
by half before the encoder. The encoder stores its sinusoids as a table, and the decoder learns its
positions. Whisper does not multiply its embedding by √D, so the importer divides the matrix by √D
and multiplies the last norm by it. Its keys have no bias: a bias adds the same number to all scores
of a query, which the softmax ignores. The importer sets it to zero.

Whisper has neither a padding nor an unknown token. A search starts from several tokens, such as
`<|startoftranscript|><|en|><|transcribe|>`, which it reads from the input `start_ids`.

The model reads `features` (B, S, M), log-mel features, and `target_ids` (B, T) in our order: the
begin token 2 is `<|startoftranscript|>`, the end token 3 `<|endoftext|>`. A search also reads
`start_ids` (B, P): all tokens before the first generated one. S is at most twice
`max_source_positions`; Whisper itself pads each recording to this length. `dropout`,
`attention_dropout` and `dtype` hold for both sides.

With the option `seconds`, such as `load("whisper-base", seconds=30)`, the model reads `samples`
(B, N) in place of the features: float32 at 16 kHz in [-1, 1], up to a window of this many seconds.
A `LogMel` in front of the encoder computes the features and fills the window. It has no weights, so
a file of weights fits both models.

A folder holds `config.json`, `model.safetensors` (or `pytorch_model.bin`), `tokenizer.json` and
`generation_config.json`, which `read_settings` reads.

Shapes: B batch, N samples, S frames, M mel bands, T target length, P start length, D d_model.
"""

import functools
import math
import numbers
import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.call_options import check_number
from keras_transformer.importers import checkpoint, fairseq, mapping
from keras_transformer.importers.speech_tokens import (
    SpeechSettings,
    language_code,
    make_settings,
    vocabulary,
)
from keras_transformer.importers.stack import encoder_stack
from keras_transformer.importers.tables import (
    Arrays,
    Loader,
    ModelLoader,
    Origin,
    RowOrders,
    Special,
    Table,
)
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.layers.signals import LogMel, MaskedConv1D
from keras_transformer.models import Transformer
from keras_transformer.sound.features import FRAMES_PER_SECOND
from keras_transformer.types import StrPath

__all__ = ["load", "load_model", "read_settings", "row_orders"]

TENSORS = {
    **{f"model.{name}": path for name, path in fairseq.NAMES.items()},
    "model.encoder.conv1.*": "convolution_1",
    "model.encoder.conv2.*": "convolution_2",
    "model.decoder.embed_tokens.weight": "token_embedding/embeddings",
    "proj_out.weight": "token_embedding/output_kernel",
}
DEFAULTS = {
    "activation_function": "gelu",
    "attention_dropout": 0.0,
    "dropout": 0.0,
    "tie_word_embeddings": True,
}
CONFIG = checkpoint.HuggingFace(
    "whisper",
    sizes=(
        "vocab_size",
        "num_mel_bins",
        "d_model",
        "encoder_attention_heads",
        "decoder_attention_heads",
        "encoder_ffn_dim",
        "decoder_ffn_dim",
        "max_source_positions",
        "max_target_positions",
    ),
    layers=("encoder_layers", "decoder_layers"),
    ids=("eos_token_id", "decoder_start_token_id"),
    defaults=DEFAULTS,
    equal=(("encoder_ffn_dim", "decoder_ffn_dim"),),
)
MOST_IDS = 1_000_000
EPSILON = 1e-5
KERNEL_SIZE = 3  # of both convolutions
STRIDES = 1, 2


def read_settings(folder: StrPath) -> SpeechSettings:
    """Reads the `SpeechSettings` of `generation_config.json`.

    Args:
        folder: str or path-like, with `config.json` and `generation_config.json`.

    Raises:
        OSError: a file is missing.
        ValueError: a value is of another type, or an id is not in the vocabulary.
    """
    path = pathlib.Path(folder) / "generation_config.json"
    order = mapping.row_order(*_special(CONFIG.read_config(pathlib.Path(folder))))
    read = checkpoint.read_json(path)
    languages = {
        language_code(name): id
        for name, id in checkpoint.check_ids(path, read.get("lang_to_id") or {}).items()
    }
    return make_settings(
        path,
        order,
        languages,
        read.get("suppress_tokens"),
        read.get("begin_suppress_tokens"),
        read.get("alignment_heads"),
    )


def _special(config: Mapping[str, Any]) -> Special:
    """Returns the number of Whisper's ids and its special ids."""
    if config["vocab_size"] > MOST_IDS:
        raise ValueError(
            f"config.json says vocab_size={config['vocab_size']}, but at most {MOST_IDS:,} ids are "
            "supported. Copy it again."
        )
    begin, end = config["decoder_start_token_id"], config["eos_token_id"]
    return config["vocab_size"], None, None, begin, end


def make_table(config: dict[str, Any], tensors: Arrays, options: dict[str, Any]) -> Table:
    keys = [
        f"model.{side}.layers.{i}.{attention}.k_proj.bias"
        for side in ("encoder", "decoder")
        for i in range(config[f"{side}_layers"])
        for attention in ("self_attn", "encoder_attn")
    ]
    return Table(
        TENSORS,
        special=[_special(config)],
        copies=checkpoint.tied(config, "proj_out.weight", "model.decoder.embed_tokens.weight"),
        computed=dict.fromkeys(keys, np.zeros(config["d_model"], np.float32)),
        **common(config),
    )


def common(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes of `Table` that do not depend on the layout of the files.

    Args:
        config: dict with the keys of `config.json`.
    """
    return {
        "sizes": {
            "D": config["d_model"],
            "F": config["encoder_ffn_dim"],
            "P": config["max_source_positions"],
            "Q": config["max_target_positions"],
            "M": config["num_mel_bins"],
            "K": KERNEL_SIZE,
        },
        "layers": {side: config[f"{side}_layers"] for side in ("encoder", "decoder")},
        "num_heads": config["decoder_attention_heads"],
        "scale": config["d_model"] ** -0.5,
        "never": mapping.NEVER_LOW,
        "model": functools.partial(_make_model, config),
        "settings": {
            "dropout": config["dropout"],
            "attention_dropout": config["attention_dropout"],
            "activation": checkpoint.activation(config, "activation_function"),
            "norm_first": True,
            "positions": LearnedPositionEncoding(config["max_target_positions"]),
            "epsilon": EPSILON,
            "reads_start": True,
        },
    }


def _make_model(config: Mapping[str, Any], **settings: Any) -> Transformer:
    """Makes the model with these arguments of `Transformer`, of which some hold for the encoder."""
    encoder = _make_encoder(config, settings, settings.pop("seconds", None))
    _, settings["num_layers"] = settings["num_layers"]
    return Transformer(**{"encoder": encoder, **settings})


def _make_encoder(
    config: Mapping[str, Any], settings: Mapping[str, Any], seconds: float | None
) -> keras.Model:
    """Makes the encoder, from features (B, S, M), or from samples (B, N), to (B, S / 2, D)."""
    d_model, dtype = config["d_model"], settings.get("dtype")
    if seconds is None:
        x = source = keras.Input((None, config["num_mel_bins"]), name="features")
    else:
        source = keras.Input((None,), name="samples")
        x = LogMel(config["num_mel_bins"], _frames(config, seconds), name="log_mel")(source)
    for number, strides in enumerate(STRIDES, 1):
        convolution = MaskedConv1D(
            d_model,
            KERNEL_SIZE,
            strides,
            activation="gelu",
            dtype=dtype,
            name=f"convolution_{number}",
        )
        x = convolution(x)
    x = encoder_stack(
        x,
        config["encoder_layers"],
        config["max_source_positions"],
        learned=False,
        num_heads=config["encoder_attention_heads"],
        d_ff=config["encoder_ffn_dim"],
        dropout=settings["dropout"],
        activation=settings["activation"],
        attention_dropout=settings["attention_dropout"],
        epsilon=EPSILON,
        dtype=dtype,
    )
    return keras.Model(source, x, name="encoder")


def _frames(config: Mapping[str, Any], seconds: Any) -> int:
    """Returns the number of frames of a window, of which the second convolution keeps half."""
    most = math.prod(STRIDES) * config["max_source_positions"]
    check_number(seconds, "seconds", numbers.Real, 1 / FRAMES_PER_SECOND, most / FRAMES_PER_SECOND)
    return round(FRAMES_PER_SECOND * seconds)


ORIGIN = Origin("whisper", CONFIG.read_files, make_table, vocabulary)
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
