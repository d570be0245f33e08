"""Whisper's speech recognition models in Hugging Face's layout (arXiv 2212.04356).

Whisper is the encoder-decoder of the paper, pre-norm. Two convolutions shorten the log-mel features
by half before the encoder. The encoder stores its sinusoids as a table, and the decoder learns its
positions. Whisper does not multiply its embedding by √D, so the importer divides the matrix by √D
and multiplies the last norm by it. Its keys have no bias: a bias adds the same number to all scores
of a query, which the softmax ignores. The importer sets it to zero.

Whisper has neither a padding nor an unknown token. A search starts from several tokens, such as
`<|startoftranscript|><|en|><|transcribe|>`, which it reads from the input `start_ids`.

Shapes: B batch, S frames, M mel bands, D d_model, U Whisper's vocabulary, V ours.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

from keras_transformer.importers import checkpoint, mapping
from keras_transformer.importers.speech_tokens import (
    SpeechSettings,
    language_code,
    make_settings,
    make_tokenizer,
)
from keras_transformer.layers.blocks import EncoderBlock
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.layers.signals import MaskedConv1D
from keras_transformer.models import Transformer
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.text.vocabularies import with_tokenizers
from keras_transformer.types import Array, Ids, StrPath

# Defaults of keys that `config.json` may omit.
DEFAULTS: dict[str, Any] = {
    "activation_function": "gelu",
    "attention_dropout": 0.0,
    "dropout": 0.0,
    "tie_word_embeddings": True,
}
LAYERS = ("encoder_layers", "decoder_layers")
SIZES = (
    "vocab_size",
    "num_mel_bins",
    "d_model",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "max_source_positions",
    "max_target_positions",
)
SPECIAL = ("eos_token_id", "decoder_start_token_id")
MOST_IDS = 1_000_000
EPSILON = 1e-5
KERNEL_SIZE = 3  # of both convolutions
STRIDES = 1, 2
# The logit bias of rows that Whisper lacks. Its logits may lie far below 0.
NEVER = -1e4


def load_model(folder: StrPath, **options: Any) -> Transformer:
    """Loads a `Transformer` from a Whisper folder in Hugging Face's layout.

    It reads `features` (B, S, M), log-mel features, and `target_ids` (B, T) in our order: the begin
    token 2 is `<|startoftranscript|>`, the end token 3 `<|endoftext|>`. A search also reads
    `start_ids` (B, P): all tokens before the first generated one. S is at most twice
    `max_source_positions`; Whisper itself pads each recording to this length.

    Args:
        folder: str or path-like, with `config.json` and `model.safetensors` (or
            `pytorch_model.bin`).
        **options: arguments of `Transformer` that do not change weights, such as `dropout`,
            `dtype` or `name`. `dropout`, `attention_dropout` and `dtype` hold for both sides.

    Returns:
        `Transformer`, with a table of encoder positions that is not trainable.

    Raises:
        OSError: a file is missing.
        ValueError: another architecture; feed-forward networks that differ between the sides; a
            tensor that is missing, left over or misshapen; a truncated file, or a pickle with code.

    Example:

    >>> model = load_model("whisper-base")  # doctest: +SKIP
    """
    config = read_config(folder)
    tensors, path = checkpoint.read_tensors(folder), pathlib.Path(folder) / "config.json"
    checkpoint.check_sizes(path, config, tensors, SIZES, LAYERS)
    order = row_order(config)
    return make_model(config, order, mapped_weights(config, tensors, order), options)


def load(folder: StrPath, **options: Any) -> tuple[Transformer, JsonTokenizer]:
    """Loads the model of `load_model`, and the tokenizer of `tokenizer.json` with our ids.

    Args:
        folder: str or path-like.
        **options: as in `load_model`.

    Returns:
        `(model, tokenizer)`.
    """
    config = read_config(folder)
    tokenizer = make_tokenizer(folder, row_order(config))
    return with_tokenizers(load_model(folder, **options), tokenizer)


def read_settings(folder: StrPath) -> SpeechSettings:
    """Reads the `SpeechSettings` of `generation_config.json`.

    Args:
        folder: str or path-like, with `config.json` and `generation_config.json`.

    Raises:
        OSError: a file is missing.
        ValueError: a value is of another type, or an id is not in the vocabulary.
    """
    path = pathlib.Path(folder) / "generation_config.json"
    read = checkpoint.read_json(path)
    languages = {
        language_code(name): id
        for name, id in checkpoint.check_ids(path, read.get("lang_to_id") or {}).items()
    }
    return make_settings(
        path,
        row_order(read_config(folder)),
        languages,
        read.get("suppress_tokens"),
        read.get("begin_suppress_tokens"),
        read.get("alignment_heads"),
    )


def read_config(folder: StrPath) -> dict[str, Any]:
    """Reads and checks the complete configuration of a Whisper folder."""
    config = checkpoint.read_config(folder, "whisper", (*SIZES, *LAYERS, *SPECIAL), DEFAULTS)
    if config["vocab_size"] > MOST_IDS:
        raise ValueError(
            f"config.json says vocab_size={config['vocab_size']}, but at most {MOST_IDS:,} ids are "
            "supported. Copy it again."
        )
    if config["encoder_ffn_dim"] != config["decoder_ffn_dim"]:
        raise ValueError(
            f"encoder_ffn_dim and decoder_ffn_dim are {config['encoder_ffn_dim']} and "
            f"{config['decoder_ffn_dim']}, but this importer reads sides of one size only."
        )
    return config


def row_order(config: Mapping[str, Any]) -> Ids:
    """Returns Whisper's ids of our rows, (V,)."""
    begin, end = config["decoder_start_token_id"], config["eos_token_id"]
    return mapping.row_order(config["vocab_size"], None, None, begin, end)


def make_model(
    config: Mapping[str, Any], order: Ids, arrays: Mapping[str, Array], options: Mapping[str, Any]
) -> Transformer:
    """Makes the model of a complete configuration with these weights.

    Args:
        config: dict with the keys of `config.json`; "activation_function" may be a function.
        order: (V,) integers, Whisper's id of each of our rows.
        arrays: dict from our path to array.
        options: as in `load_model`.
    """
    settings = {
        "dropout": config["dropout"],
        "attention_dropout": config["attention_dropout"],
        **options,
    }
    model = Transformer(
        len(order),
        config["decoder_layers"],
        config["d_model"],
        config["decoder_attention_heads"],
        config["decoder_ffn_dim"],
        **{
            "activation": checkpoint.activation(config, "activation_function"),
            "norm_first": True,
            "positions": LearnedPositionEncoding(config["max_target_positions"]),
            "encoder": _make_encoder(config, settings),
            "use_bias": True,
            "epsilon": EPSILON,
            "tie_output": config["tie_word_embeddings"],
            "output_bias": True,
            "reads_start": True,
            **settings,
        },
    )
    mapping.assign_weights(model, arrays)
    return model


def _make_encoder(config: Mapping[str, Any], settings: Mapping[str, Any]) -> keras.Model:
    """Makes the encoder, from features (B, S, M) to (B, S / 2, D)."""
    d_model, dtype = config["d_model"], settings.get("dtype")
    activation = checkpoint.activation(config, "activation_function")
    x = features = keras.Input((None, config["num_mel_bins"]), name="features")
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
    positions = LearnedPositionEncoding(
        config["max_source_positions"], trainable=False, dtype=dtype, name="source_positions"
    )
    x = positions(x)
    x = layers.Dropout(settings["dropout"], dtype=dtype, name="source_dropout")(x)
    for i in range(config["encoder_layers"]):
        block = EncoderBlock(
            config["encoder_attention_heads"],
            config["encoder_ffn_dim"],
            settings["dropout"],
            activation,
            norm_first=True,
            attention_dropout=settings["attention_dropout"],
            use_bias=True,
            epsilon=EPSILON,
            dtype=dtype,
            name=f"encoder_block_{i}",
        )
        x = block(x)
    norm = layers.LayerNormalization(epsilon=EPSILON, dtype=dtype, name="encoder_norm")
    return keras.Model(features, norm(x), name="encoder")


def mapped_weights(
    config: Mapping[str, Any], tensors: Mapping[str, Array], order: Ids
) -> dict[str, Array]:
    """Checks Whisper's tensors, and returns a dict from our path to array."""
    targets = _targets(config)
    keys = [name for name in targets if name.endswith("k_proj.bias")]
    key_biases = {targets.pop(name).paths[0]: np.zeros(config["d_model"]) for name in keys}
    table, kernel = "model.decoder.embed_tokens.weight", "proj_out.weight"
    shape = config["vocab_size"], config["d_model"]
    targets[table] = mapping.Target(shape)
    copies = {kernel: table}
    if not config["tie_word_embeddings"]:
        targets[kernel], copies = mapping.Target(shape), {}
    tensors = mapping.checked(tensors, targets, copies)

    arrays = mapping.mapped(tensors, targets) | key_biases
    kernel = None if copies else tensors[kernel]
    return arrays | embedding_weights(arrays, tensors[table], order, kernel)


def embedding_weights(
    arrays: Mapping[str, Array],
    table: Array,
    order: Ids,
    kernel: Array | None = None,
) -> dict[str, Array]:
    """Returns a dict from our path to array of embedding, logits and last norm.

    Args:
        arrays: dict from our path to array, with the last norm.
        table: (U, D), the embedding.
        order: (V,) integers, Whisper's id of each of our rows.
        kernel: (U, D), the matrix of the logits if it is not tied to the embedding, or `None`.
    """
    return mapping.embedding_weights(
        {"token_embedding": (table, order)},
        kernel=kernel,
        scale=table.shape[1] ** -0.5,
        last_norm=mapping.norm_weights(arrays, "decoder_norm"),
        never=NEVER,
    )


def _targets(config: Mapping[str, Any]) -> mapping.Targets:
    """Returns the targets of all tensors but the embedding."""
    d_model = config["d_model"]
    depths = [config[name] for name in LAYERS]
    targets = mapping.encoder_decoder_blocks("model.", depths, d_model, config["encoder_ffn_dim"])
    targets |= convolutions("model.encoder.conv{}.", config["num_mel_bins"], d_model)
    for side, text, length in (
        ("encoder", "source", config["max_source_positions"]),
        ("decoder", "target", config["max_target_positions"]),
    ):
        targets |= mapping.norm(f"model.{side}.layer_norm", d_model, f"{side}_norm")
        table = mapping.Target((length, d_model), (f"{text}_positions/embeddings",))
        targets[f"model.{side}.embed_positions.weight"] = table
    return targets


def convolutions(theirs: str, bands: int, d_model: int) -> mapping.Targets:
    """Returns the targets of the two convolutions.

    Args:
        theirs: str, the start of their names, with {} for the number of the convolution.
        bands: M.
        d_model: D.
    """
    targets: mapping.Targets = {}
    for number, channels in ((1, bands), (2, d_model)):
        start, ours = theirs.format(number), f"convolution_{number}"
        shape = (d_model, channels, KERNEL_SIZE)
        targets[f"{start}weight"] = mapping.Target(shape, (f"{ours}/kernel",), transposed=True)
        targets[f"{start}bias"] = mapping.Target((d_model,), (f"{ours}/bias",))
    return targets
