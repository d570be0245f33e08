"""Shared by exporters to other engines, which support only the paper's architecture.

Engines for published translation models support embeddings with added positions, blocks of
attention and feed-forward networks, and logits. This module reads these parts of a `Transformer`,
and lists the arguments that such engines do not support.

Shapes: P positions, D d_model.
"""

import math
import numbers
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.call_options import check_number
from keras_transformer.export.arguments import check_weights
from keras_transformer.export.staging import WhyNot, why_not_files
from keras_transformer.models import Transformer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabularies import check_tokenizers, of_both_sides
from keras_transformer.types import Array

CONFIG_FILE = "config.json"
# This entry of the configuration marks an export. Engines ignore it.
PRODUCER = {"producer": "keras-transformer-onnx"}


def check_translator(model: Any, **tokenizers: Any) -> None:
    """Raises unless `model` is a `Transformer`, and each tokenizer a `Tokenizer` or `None`.

    Raises:
        TypeError: another kind of model or tokenizer.
        ValueError: a tokenizer that does not belong to the model.
        ExportError: a weight holds NaN.
    """
    if not isinstance(model, Transformer):
        raise TypeError(
            f"model must be a Transformer, but {type(model).__name__} was passed. Export others "
            "with export_onnx."
        )
    for name, given in tokenizers.items():
        if given is not None and not isinstance(given, Tokenizer):
            raise TypeError(
                f"{name} must be a Tokenizer, a SentencePiece model, but {type(given).__name__} "
                "was passed."
            )
    if tokenizers["tokenizer"] is not None:
        given = tokenizers["tokenizer"], tokenizers["target_tokenizer"]
        check_tokenizers(model, of_both_sides(model, *given))
    check_weights(model)


def differences(model: Transformer, activations: Collection[Callable[..., Any]]) -> list[str]:
    """Returns arguments of the model that engines for published models do not support.

    Args:
        model: `Transformer`.
        activations: the activations that the engine supports.
    """
    if model.encoder_stack is None:
        return [f"encoder={model.encoder.name!r}, your own model"]
    found = []
    if any(layer.quantization_mode is not None for layer in model._flatten_layers()):
        found.append("weights that model.quantize rounded; export the model before quantize")
    if not model.reads_end:
        found.append("reads_end=False")
    if model.recurrent_decoder:
        found.append("recurrent_decoder=True")
    positions = model.encoder_stack.positions
    if positions.in_attention:
        found.append(f"positions={type(positions).__name__} inside of attention")
    if keras.activations.get(model.activation) not in activations:
        known = sorted(function.__name__ for function in activations)
        found.append(f"activation={model.get_config()['activation']!r}, known are {known}")
    size = model.d_model // model.num_heads
    if {model.key_dim, model.value_dim} - {None, size}:
        found.append(
            f"key_dim={model.key_dim}, value_dim={model.value_dim}, where heads have "
            f"d_model / num_heads = {size} channels"
        )
    return found


def refuse(engine: str, found: Sequence[str]) -> None:
    """Raises `ValueError` that names all differences, if there are any."""
    if found:
        raise ValueError(
            f"{engine} cannot hold this model: it has {'; '.join(found)}. Export it with "
            "export_onnx, which holds every model."
        )


def depths(model: Transformer) -> tuple[int, int]:
    """Returns the numbers of encoder and decoder blocks."""
    return len(model.encoder_stack.blocks), len(model.decoder_stack.blocks)


def weights_of(model: Transformer) -> dict[str, Array]:
    """Returns all weights by path. Kernels include their LoRA updates."""
    weights = {weight.path: weight for weight in model.weights}
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            weights[layer._kernel.path] = layer.kernel
    return {path: keras.ops.convert_to_numpy(weight) for path, weight in weights.items()}


def positions_to_write(model: Transformer, max_length: int | None, default: int) -> int:
    """Returns the number of positions P: `max_length`, else the model's limit, else `default`.

    Raises:
        TypeError, ValueError: `max_length` is no integer, holds no token beside the end token, or
            is larger than the model's limit.
    """
    if max_length is None:
        return model.max_length or default
    check_number(max_length, "max_length", numbers.Integral, 2, model.max_length or math.inf)
    return int(max_length)


def position_tables(model: Transformer, length: int) -> list[Array]:
    """Returns the first position vectors of encoder and decoder, two arrays (P, D)."""
    nothing = np.zeros((1, length, model.d_model), "float32")
    stacks = model.encoder_stack, model.decoder_stack
    return [np.asarray(stack.positions(nothing))[0] for stack in stacks]


def why_not_engine(*names: str) -> WhyNot:
    """Returns the `WhyNot` of an engine's exports, which consist of these files."""
    return why_not_files(names, CONFIG_FILE, PRODUCER)
