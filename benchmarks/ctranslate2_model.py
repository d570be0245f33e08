"""A `Transformer` as a CTranslate2 model: the same weights in another engine.

    save_ctranslate2(model, "out/ct2", tokenizer)
    translator = ctranslate2.Translator("out/ct2", compute_type="float32")

CTranslate2 (https://github.com/OpenNMT/CTranslate2) is the speed anchor of the benchmarks and,
written by others in C++, an independent check of models and searches.

Shapes: D d_model, F d_ff, V vocabulary, P positions.
"""

from pathlib import Path

import keras
import numpy as np
import sentencepiece
from ctranslate2.specs import common_spec, transformer_spec

# Positions that CTranslate2 can count to. Its own sinusoids begin at position 1 and put all sines
# before all cosines, so that ours are written as a matrix.
POSITIONS = 1024
ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "silu": common_spec.Activation.SWISH,
    "gelu": common_spec.Activation.GELU,
}


def save_ctranslate2(model, folder, tokenizer=None, precision="float32"):
    """Writes a CTranslate2 model folder with the weights of a `Transformer`.

    CTranslate2 speaks strings: `vocabulary` says which one stands for which id. Sources end with
    the end mark, as in training; CTranslate2 adds none.

    Args:
        model: `Transformer` whose positions are not rotary.
        folder: str or path, made if missing.
        tokenizer: `Tokenizer`, for the vocabulary. Defaults to `None`: ids as strings.
        precision: "float32", or another that CTranslate2 stores, such as "int8".

    Returns:
        The vocabulary, list of str in the order of ids.

    Raises:
        ValueError: CTranslate2 has no such model, or its loader would misread it.
    """
    config = model.get_config()
    spec = specification(model)
    tokens = vocabulary(config["target_vocab_size"] or config["vocab_size"], tokenizer)
    spec.register_target_vocabulary(tokens)
    spec.register_source_vocabulary(vocabulary(config["vocab_size"], tokenizer))
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = tokens[1:4]
    spec.config.decoder_start_token = tokens[2]
    spec.config.layer_norm_epsilon = model.decoder.blocks[0].epsilon
    spec.validate()
    spec.optimize(quantization=None if precision == "float32" else precision)
    Path(folder).mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))
    return tokens


def vocabulary(size, tokenizer=None):
    """One distinct string an id: the tokenizer's pieces, `<id>` where it has none."""
    pieces = []
    if tokenizer is not None:
        processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
        pieces = processor.id_to_piece(list(range(min(size, tokenizer.vocab_size))))
    return pieces + [f"<id {i}>" for i in range(len(pieces), size)]


def specification(model):
    """The `TransformerSpec` that holds the weights, found by their paths."""
    config = model.get_config()
    _check(config)
    weights = {v.path: keras.ops.convert_to_numpy(v).astype("float32") for v in model.weights}
    shared = config["target_vocab_size"] is None
    spec = transformer_spec.TransformerSpec.from_config(
        config["num_layers"],
        config["num_heads"],
        pre_norm=config["norm_first"],
        activation=ACTIVATIONS[config["activation"]],
    )
    sides = (
        (spec.encoder, "encoder", "source", spec.encoder.embeddings[0]),
        (spec.decoder, "decoder", "target", spec.decoder.embeddings),
    )
    for stack, side, language, embeddings in sides:
        embeddings.weight = weights[f"{'token' if shared else language}_embedding/embeddings"]
        stack.position_encodings.encodings = weights.get(
            f"{language}_positions/embeddings", sinusoids(POSITIONS, config["d_model"])
        )
        if config["norm_first"]:
            _set_norm(stack.layer_norm, weights, f"{side}_norm")
        for i, layer in enumerate(stack.layer):
            _set_block(layer, weights, f"{side}_block_{i}")
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    return spec


def sinusoids(length, size):
    """Position encodings of section 3.5, (P, D)."""
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, size, 2) / size)  # (P, D / 2)
    return np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(length, size).astype("float32")


def _check(config):
    """Raises for a model that CTranslate2's encoder-decoder cannot hold."""
    if config["positions"] == "rotary":
        raise ValueError("CTranslate2's encoder-decoder has no rotary positions like ours.")
    if config["activation"] not in ACTIVATIONS:
        raise ValueError(
            f"CTranslate2 has no activation {config['activation']!r} of ours, only "
            f"{sorted(ACTIVATIONS)}."
        )
    size = config["d_model"] // config["num_heads"]
    if {config["key_dim"], config["value_dim"]} - {None, size}:
        raise ValueError(
            f"CTranslate2 takes heads of d_model / num_heads = {size} channels only, this model "
            f"has key_dim={config['key_dim']}, value_dim={config['value_dim']}."
        )


def _set_block(layer, weights, name):
    """Fills one block. CTranslate2 fuses the projections that read the same input."""
    _set_attention(layer.self_attention, weights, f"{name}/self_attention", [3])
    if hasattr(layer, "attention"):
        _set_attention(layer.attention, weights, f"{name}/cross_attention", [1, 2])
    _set_linear(layer.ffn.linear_0, weights, [f"{name}/feed_forward/hidden"])
    _set_linear(layer.ffn.linear_1, weights, [f"{name}/feed_forward/output"])
    _set_norm(layer.ffn.layer_norm, weights, f"{name}/feed_forward_norm")


def _set_attention(attention, weights, name, fused):
    """Query, key and value in products of `fused` each, then the output projection."""
    names = [f"{name}/{part}" for part in ("query", "key", "value")]
    for linear, count in zip(attention.linear, fused, strict=False):
        _set_linear(linear, weights, names[:count])
        names = names[count:]
    _set_linear(attention.linear[-1], weights, [f"{name}/output"])
    _set_norm(attention.layer_norm, weights, f"{name}_norm")


def _set_linear(linear, weights, names):
    """Ours computes x W, CTranslate2 x W^T, so kernels are transposed. A missing bias stays so."""
    linear.weight = np.concatenate([weights[f"{name}/kernel"].T for name in names])
    if f"{names[0]}/bias" in weights:
        linear.bias = np.concatenate([weights[f"{name}/bias"] for name in names])


def _set_norm(norm, weights, name):
    norm.gamma, norm.beta = weights[f"{name}/gamma"], weights[f"{name}/beta"]
