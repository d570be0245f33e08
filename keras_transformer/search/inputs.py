"""The arguments of a search: checks, and conversion to tensors.

A source is either token ids or the arrays that a model's encoder reads.

Shapes: B batch, S source length, P prompt length, Q prefix length.
"""

import math
import numbers
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.decoding import START_IDS, ProjectedMemory, SearchModel
from keras_transformer.special_ids import BEGIN_ID, PAD_ID
from keras_transformer.types import Tensor

SOURCE_IDS = "source_ids"
Source = dict[str, Tensor]


def check_number(
    value: Any, name: str, kind: type, lowest: float, highest: float = math.inf
) -> None:
    """Raises unless `value` is a finite number of this kind, from `lowest` to `highest`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, kind):
        wanted = "an integer" if kind is numbers.Integral else "a number"
        raise TypeError(f"{name} must be {wanted}, got {value!r} ({type(value).__name__}).")
    if not lowest <= value <= highest or math.isinf(value):
        raise ValueError(f"{name} must lie in [{lowest}, {highest}] and be finite, got {value}.")


def check_flag(value: Any, name: str) -> None:
    """Raises `TypeError` unless `value` is `True` or `False`."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}.")


def missing_methods(thing: Any, contract: type) -> str:
    """The methods of a protocol that `thing` lacks, separated by commas."""
    methods = [name for name in vars(contract) if not name.startswith("_")]
    return ", ".join(name for name in methods if not hasattr(thing, name))


def read_inputs(
    model: SearchModel, source: Any, max_length: Any, target_prefix: Any, min_length: int
) -> dict[str, Any]:
    """Checks the arguments of a search and converts them to tensors.

    Args:
        model: `SearchModel`.
        source, max_length, target_prefix: as passed to the search.
        min_length: the search's own.

    Returns:
        A dict with "source", itself a dict of tensors, and with "max_length", int32 (B,), and
        "target_prefix", int32 (B, Q), if they were passed.

    Raises:
        TypeError, ValueError: if the model or an argument does not fit.
    """
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            "Searches need Keras' TensorFlow backend, but the backend is "
            f"{keras.config.backend()!r}. Set KERAS_BACKEND=tensorflow and load the saved model."
        )
    if missing := missing_methods(model, SearchModel):
        raise TypeError(
            f"{type(model).__name__} has no {missing}, so it cannot be searched. Pass a "
            "Transformer, a CausalTransformer or a model with these methods. To copy a model, use "
            "type(model).from_config(model.get_config()): keras.models.clone_model returns a plain "
            "functional model."
        )
    source = _source_tensors(source, source_specs(model))
    inputs = {}
    if max_length is not None:
        inputs["max_length"] = _max_lengths(max_length, source, min_length)
    if target_prefix is not None:
        inputs["target_prefix"] = integer_ids(target_prefix, "target_prefix")
    first, *others = {**source, **inputs}.items()
    for name, tensor in others:
        if not tensor.shape[:1].is_compatible_with(first[1].shape[:1]):
            raise ValueError(
                f"{name} must have the batch size of {first[0]}, but has shape {tensor.shape}; "
                f"{first[0]} has {first[1].shape}."
            )
    return {"source": source, **inputs}


def source_specs(model: SearchModel) -> dict[str, tf.TensorSpec]:
    """Names, shapes and dtypes of the arrays that a model's encoder reads."""
    inputs = getattr(model, "source_inputs", None)
    if inputs is None:
        return {SOURCE_IDS: tf.TensorSpec([None, None], tf.int32, SOURCE_IDS)}
    return {name: tf.TensorSpec(x.shape, x.dtype, name) for name, x in inputs.items()}


def _source_tensors(source: Any, specs: dict[str, tf.TensorSpec]) -> Source:
    if not isinstance(source, dict):
        if len(specs) > 1:
            raise TypeError(
                f"The model's encoder reads {sorted(specs)}: pass a dict with an array for each, "
                f"got {type(source).__name__}."
            )
        source = dict.fromkeys(specs, source)
    if set(source) != set(specs):
        raise ValueError(f"The source must be a dict of {sorted(specs)}, got {sorted(source)}.")
    return {name: _source_tensor(source[name], spec) for name, spec in specs.items()}


def _source_tensor(array: Any, spec: tf.TensorSpec) -> Tensor:
    if spec.name in (SOURCE_IDS, START_IDS):
        ids = tf.cast(integer_ids(array, spec.name, spec.shape.rank), spec.dtype)
        # A search starts from the first column, so an empty source needs one of padding.
        return tf.pad(ids, [[0, 0], [0, 1]]) if ids.shape[1] == 0 else ids
    tensor = tf.convert_to_tensor(array)
    fits = tensor.dtype.is_integer or tensor.dtype.is_bool or spec.dtype.is_floating
    if tensor.dtype == tf.string or not fits:
        raise TypeError(
            f"{spec.name} has dtype {tensor.dtype.name}, but the encoder reads {spec.dtype.name}."
        )
    if not spec.shape.is_compatible_with(tensor.shape):
        raise ValueError(
            f"{spec.name} has shape {tensor.shape}, but the encoder reads {spec.shape}. A single "
            "source needs a batch axis: array[None]."
        )
    return tf.ensure_shape(tf.cast(tensor, spec.dtype), spec.shape)


def integer_ids(ids: Any, name: str, rank: int = 2) -> Tensor:
    """`ids` as an int32 tensor of this rank."""
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        raise TypeError(
            f"{name} must hold integer ids, got dtype {ids.dtype.name}. Cast it to int32."
        )
    if ids.shape.rank != rank:
        raise ValueError(
            f"{name} must have rank {rank}, got shape {ids.shape}. "
            "A single sentence needs a batch axis: ids[None]."
        )
    return tf.cast(ids, tf.int32)


def _max_lengths(max_length: Any, source: Source, min_length: int) -> Tensor:
    """`max_length`, one integer or one for each sentence, as int32 (B,)."""
    if not tf.is_tensor(max_length) and np.ndim(max_length) == 0:
        check_number(max_length, "max_length", numbers.Integral, 1)
        if max_length < min_length:
            raise ValueError(
                f"max_length {max_length} is below the search's min_length {min_length}."
            )
    max_length = tf.convert_to_tensor(max_length)
    max_length = integer_ids(max_length, "max_length", min(max_length.shape.rank, 1))
    return max_length if max_length.shape.rank else tf.fill([batch_size_of(source)], max_length)


def check_right_padded(ids: tf.Tensor, name: str) -> None:
    """Raises `ValueError` if a row of eager `ids` has padding before a token."""
    is_token = ids.numpy() != PAD_ID
    rows = np.flatnonzero((is_token[:, 1:] & ~is_token[:, :-1]).any(axis=1))
    if rows.size:
        raise ValueError(
            f"{name} must be padded on the right, but row {rows[0]} has padding ({PAD_ID}) before "
            f"a token: {ids[rows[0]].numpy().tolist()}. Move its tokens to the front."
        )


def batch_size_of(source: Source) -> Tensor:
    """B, int32 scalar."""
    return tf.shape(next(iter(source.values())))[0]


def model_source(source: Source) -> Any:
    """The argument of a model's methods: token ids, or the dict of its encoder's inputs."""
    return source[SOURCE_IDS] if list(source) == [SOURCE_IDS] else source


def start_ids(model: SearchModel, source: Source) -> Tensor:
    """The tokens before the first generated one, int32 (B, P)."""
    if hasattr(model, "start_ids"):
        return tf.cast(model.start_ids(model_source(source)), tf.int32)
    return tf.fill([batch_size_of(source), 1], BEGIN_ID)


def source_lengths(source: Source, memory: Any) -> Tensor:
    """The length of each source without padding, int32 (B, 1).

    Without token ids it is the length of the encoder's output.
    """
    if SOURCE_IDS in source:
        mask = source[SOURCE_IDS] != PAD_ID
    elif not isinstance(memory, ProjectedMemory):
        raise ValueError("Cannot infer the source length. Pass max_length to the search.")
    elif isinstance(memory.mask, tuple):  # no padding
        keys, _ = memory.blocks[0]  # (B, H, S, K)
        return tf.fill([batch_size_of(source), 1], tf.shape(keys)[2])
    else:
        mask = memory.mask
    return tf.reduce_sum(tf.cast(mask, tf.int32), axis=1, keepdims=True)
