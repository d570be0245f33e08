"""Shared by exporters to other engines: the paper's model, and refusals of all other models.

An engine for published translation models holds embeddings, positions that are added, blocks of
attention and a feed-forward network, and logits. This module reads these parts of a `Transformer`,
and lists the parts that such engines lack.

Shapes: P positions, D d_model.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.export.arguments import check_weights
from keras_transformer.export.staging import WhyNot, why_not_files
from keras_transformer.models import Transformer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array

CONFIG_FILE = "config.json"
# This entry of the configuration marks an export. Engines ignore it.
PRODUCER = {"producer": "keras-transformer-onnx"}


def check_translator(model: Any, **tokenizers: Any) -> None:
    """Raises unless `model` is a `Transformer`, and each tokenizer a SentencePiece one or `None`.

    Raises:
        TypeError: another kind of model or tokenizer.
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
    check_weights(model)


def differences(model: Transformer, activations: Collection[Callable[..., Any]]) -> list[str]:
    """Arguments of the model that no engine for published translation models supports.

    Args:
        model: `Transformer`.
        activations: the activations that the engine knows.
    """
    if model.encoder_stack is None:
        return [f"encoder={model.encoder.name!r}, your own model"]
    found = []
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
    """Blocks in the encoder and in the decoder."""
    return len(model.encoder_stack.blocks), len(model.decoder_stack.blocks)


def weights_of(model: Transformer) -> dict[str, Array]:
    """All weights by path."""
    return {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}


def position_tables(model: Transformer, length: int) -> list[Array]:
    """The first positions' vectors of encoder and decoder, two arrays (P, D)."""
    nothing = np.zeros((1, length, model.d_model), "float32")
    stacks = model.encoder_stack, model.decoder_stack
    return [np.asarray(stack.positions(nothing))[0] for stack in stacks]


def why_not_engine(*names: str) -> WhyNot:
    """Why a folder is no earlier export for an engine that consists of these files."""
    return why_not_files(names, CONFIG_FILE, PRODUCER)
