"""The arguments of a search: checks, and conversion to tensors.

A source is either token ids or the arrays that a model's encoder reads.

Shapes: B batch, S source length, P prompt length, Q prefix length.
"""

import operator
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.call_options import (
    AT_MOST_DEFAULT,
    CALL_OPTIONS,
    CONSTRAINT_OPTIONS,
    check_lengths,
    check_needs,
    check_option,
)
from keras_transformer.decoding import (
    SOURCE_IDS,
    START_IDS,
    Alignments,
    ProjectedMemory,
    SearchModel,
)
from keras_transformer.layers.checks import check_id_range, check_no_text
from keras_transformer.padding import check_rows
from keras_transformer.special_ids import BEGIN_ID, PAD_ID
from keras_transformer.text.vocabularies import vocabulary_sizes
from keras_transformer.types import Array, Tensor

OPTIONS = {**CALL_OPTIONS, **CONSTRAINT_OPTIONS}
# The inputs that hold ids of the target.
TARGET_IDS = (START_IDS, *(name for name, option in OPTIONS.items() if option.rank > 1))
# By default a sentence may have this many more tokens than its source (section 6.1).
EXTRA_LENGTH = 50
Source = dict[str, Tensor]


def checked_alignments(value: Any) -> Alignments:
    """Returns the option `alignments` of a search, with pairs as tuples.

    Raises:
        TypeError: `value` is neither a bool nor a sequence of pairs of integers.
        ValueError: `value` is an empty sequence.
    """
    if isinstance(value, bool):
        return value
    try:
        pairs = tuple((operator.index(layer), operator.index(head)) for layer, head in value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "alignments must be True, False or a list of pairs of layer and head, such as "
            f"[(-1, 0)], got {value!r}."
        ) from error
    if not pairs:
        raise ValueError("alignments has no pair of layer and head. Pass False for no alignments.")
    return pairs


def missing_methods(thing: Any, contract: type) -> str:
    """Returns the methods of a protocol that `thing` lacks, separated by commas."""
    methods = [name for name in vars(contract) if not name.startswith("_")]
    return ", ".join(name for name in methods if not hasattr(thing, name))


def read_inputs(
    model: SearchModel, source: Any, options: Mapping[str, Any], defaults: Mapping[str, Array]
) -> dict[str, Any]:
    """Checks the arguments of a search and converts them to tensors.

    Args:
        model: `SearchModel`.
        source: as passed to the search.
        options: dict from names to values, as passed to the search. `None` counts as not passed.
        defaults: the search's `call_defaults`.

    Returns:
        A dict with "source", itself a dict of tensors, and with a tensor for each option that was
        passed. The first axis of an option is the batch or 1, except for a scalar.

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
            "Transformer, a CausalTransformer or a model with these methods. For a decoder on an "
            "encoder of your own, use Transformer(encoder=...). To copy a model, use "
            "type(model).from_config(model.get_config()): keras.models.clone_model returns a plain "
            "functional model."
        )
    options = {name: value for name, value in options.items() if value is not None}
    if unknown := sorted(set(options) - set(defaults)):
        raise TypeError(f"This search has no {', '.join(unknown)}. It has {', '.join(defaults)}.")
    check_needs(options)
    source = _source_tensors(model, source)
    inputs = {name: option_tensor(name, value, defaults[name]) for name, value in options.items()}
    first, *others = {**source, **inputs}.items()
    size = first[1].shape[0]
    for name, tensor in others:
        one_for_all = name in inputs and tensor.shape[:1] in ([], [1])
        if not one_for_all and not tensor.shape[:1].is_compatible_with([size]):
            raise ValueError(
                f"{name} must have the batch size of {first[0]}, but has shape {tensor.shape}; "
                f"{first[0]} has {first[1].shape}."
            )
    lengths = [options.get(name, defaults[name]) for name in ("min_length", "max_length")]
    if not any(map(tf.is_symbolic_tensor, lengths)):
        check_lengths(*lengths)
    return {"source": source, **inputs}


def option_tensor(name: str, value: Any, default: Array) -> Tensor:
    """Converts the value of an option to a tensor with the dtype and rank of its default."""
    if default.ndim > 1:
        return integer_ids(value, name, default.ndim)
    _check_number(name, value, default)
    tensor = tf.convert_to_tensor(value)
    if default.ndim == 1 and tensor.shape.rank == 0:
        tensor = tensor[tf.newaxis]
    if default.dtype.kind == "i":
        return integer_ids(tensor, name, default.ndim)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise TypeError(f"{name} must hold numbers, got dtype {tensor.dtype.name}.")
    if tensor.shape.rank != default.ndim:
        raise ValueError(f"{name} must have rank {default.ndim}, got shape {tensor.shape}.")
    return tf.cast(tensor, default.dtype)


def source_specs(model: SearchModel) -> dict[str, tf.TensorSpec]:
    """Returns names, shapes and dtypes of the arrays that a model's encoder reads."""
    inputs = getattr(model, "source_inputs", None)
    if inputs is None:
        return {SOURCE_IDS: tf.TensorSpec([None, None], tf.int32, SOURCE_IDS)}
    return {name: tf.TensorSpec(x.shape, x.dtype, name) for name, x in inputs.items()}


def _check_number(name: str, value: Any, default: Array) -> None:
    """Raises `TypeError` or `ValueError` for a number that does not fit the option.

    It checks Python's numbers, lists of them, and arrays and eager tensors with at most one axis.
    An array may hold 0 and the default, such as a `max_length` of -1. Other values pass.
    """
    number = value
    if hasattr(value, "shape") and not tf.is_symbolic_tensor(value):
        number = np.asarray(value).tolist()
    if isinstance(number, (list, tuple)) and number and all(np.ndim(one) == 0 for one in number):
        known = 0, *default.ravel().tolist()
        for one in number:
            if isinstance(one, bool) or one not in known:
                _check_number(name, one, default)
    if tf.is_tensor(number) or np.ndim(number) > 0:
        return
    least, most = AT_MOST_DEFAULT.get(name), default.max(initial=0)
    if least is not None and most and isinstance(number, Integral) and not least <= number <= most:
        raise ValueError(
            f"{name} of a call must be from {least} to the search's {most}, got {number}. "
            f"Make a search with a larger {name}."
        )
    if name in OPTIONS:
        check_option(name, number)


def _source_tensors(model: SearchModel, source: Any) -> Source:
    """Converts a source to the tensors that a model's encoder reads."""
    specs = source_specs(model)
    if not isinstance(source, dict):
        if len(specs) > 1:
            raise TypeError(
                f"The model's encoder reads {sorted(specs)}: pass a dict with an array for each, "
                f"got {type(source).__name__}."
            )
        source = dict.fromkeys(specs, source)
    if set(source) != set(specs):
        raise ValueError(f"The source must be a dict of {sorted(specs)}, got {sorted(source)}.")
    tensors = {name: _source_tensor(source[name], spec) for name, spec in specs.items()}
    length = tensors[SOURCE_IDS].shape[1] if SOURCE_IDS in tensors else None
    longest = getattr(model, "max_source_length", None)
    if None not in (length, longest) and length > longest:
        raise ValueError(
            f"{SOURCE_IDS} has {length} tokens a row, but the encoder has positions for {longest}. "
            "Cut or split the source, or build the model with more positions."
        )
    return tensors


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
    """Converts `ids` to an int32 tensor of this rank."""
    check_no_text(ids, name)
    check_rows(ids, name)
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


def check_ids(model: SearchModel, inputs: Mapping[str, Any], least: Array) -> None:
    """Raises `ValueError` for ids in eager inputs of a search that the model cannot read.

    Prompts and prefixes must be padded on the right, ids must be of the vocabularies, and the model
    must have a position for each token of a prompt and of the shortest output.

    Args:
        model: `SearchModel`.
        inputs: the result of `read_inputs`.
        least: (B,), (1,) or (), the number of tokens of the shortest output, at least 1.
    """
    source = inputs["source"]
    prompt = START_IDS if START_IDS in source else SOURCE_IDS
    padded = {f"The prompt in {prompt}": start_ids(model, source)}
    tokens = np.count_nonzero(start_ids(model, source).numpy() != PAD_ID, axis=1)
    least = np.broadcast_to(least, tokens.shape)
    positions = getattr(model, "max_length", None)
    # The last token is never fed back, so it needs no position.
    if positions is not None and (wrong := np.flatnonzero(tokens + least - 1 > positions)).size:
        row = wrong[0]
        raise ValueError(
            f"A prompt in {prompt} has {tokens[row]} tokens, and at least {least[row]} follow, but "
            f"the model has positions for {positions}. Shorten the prompt, pass a smaller "
            "min_length, or build the model with more positions."
        )
    if "target_prefix" in inputs:
        padded["target_prefix"] = inputs["target_prefix"]
    for name, ids in padded.items():
        is_token = ids.numpy() != PAD_ID
        rows = np.flatnonzero((is_token[:, 1:] & ~is_token[:, :-1]).any(axis=1))
        if rows.size:
            raise ValueError(
                f"{name} must be padded on the right, but row {rows[0]} has padding ({PAD_ID}) "
                f"before a token: {ids[rows[0]].numpy().tolist()}. Move its tokens to the front."
            )
    sizes = vocabulary_sizes(model)
    sizes = {SOURCE_IDS: sizes["source"], **dict.fromkeys(TARGET_IDS, sizes["target"])}
    for name, ids in {**source, **inputs}.items():
        if sizes.get(name) is not None:
            check_id_range(ids, sizes[name], name)


def batch_size_of(source: Source) -> Tensor:
    """Returns B, int32 scalar."""
    return tf.shape(next(iter(source.values())))[0]


def model_source(source: Source) -> Any:
    """Returns the source for a model's methods: token ids, or a dict of its encoder's inputs."""
    return source[SOURCE_IDS] if list(source) == [SOURCE_IDS] else source


def start_ids(model: SearchModel, source: Source) -> Tensor:
    """Returns the tokens before the first generated one, int32 (B, P)."""
    if hasattr(model, "start_ids"):
        ids = tf.cast(model.start_ids(model_source(source)), tf.int32)
        is_empty = tf.cast(tf.equal(tf.shape(ids)[1], 0), tf.int32)
        return tf.pad(ids, [[0, 0], [0, is_empty]])  # a search starts from the first column
    return tf.fill([batch_size_of(source), 1], BEGIN_ID)


def source_lengths(source: Source, memory: Any) -> Tensor | None:
    """Returns the length of each source without padding, int32 (B, 1).

    Without token ids it is the length of the encoder's output, or `None` if that is unknown.
    """
    while hasattr(memory, "memories"):  # all members of an ensemble read the same source
        memory = memory.memories[0]
    if SOURCE_IDS in source:
        mask = source[SOURCE_IDS] != PAD_ID
    elif (projected := _projected(memory)) is None:
        return None
    elif isinstance(projected.mask, tuple):  # no padding
        return tf.fill([batch_size_of(source), 1], projected.length)
    else:
        mask = projected.mask
    return tf.reduce_sum(tf.cast(mask, tf.int32), axis=1, keepdims=True)


def memory_length(model: SearchModel, memory: Any) -> Tensor:
    """Returns S, the length of the encoded source, padding included: int32 scalar.

    Raises:
        ValueError: the model's decoder does not attend to a source.
    """
    projected = _projected(memory)
    if projected is None:
        raise ValueError(
            f"The search has alignments, but {type(model).__name__} has no decoder that attends to "
            "a source. Pass a Transformer, or a search without alignments."
        )
    return projected.length


def _projected(memory: Any) -> ProjectedMemory | None:
    """Finds the encoded source in the memory of a model, or of a model around it."""
    while not isinstance(memory, ProjectedMemory) and hasattr(memory, "memory"):
        memory = memory.memory
    return memory if isinstance(memory, ProjectedMemory) else None


def for_each_sentence(tensor: Tensor, batch_size: Tensor) -> Tensor:
    """Broadcasts the first axis of `tensor` to B; scalars stay."""
    if tensor.shape.rank == 0:
        return tensor
    return tf.broadcast_to(tensor, tf.concat([[batch_size], tf.shape(tensor)[1:]], axis=0))


def length_limits(
    source: Source, memory: Any, max_length: Tensor | None, least: Any, batch_size: Tensor
) -> Tensor:
    """Returns the greatest number of tokens of each sentence, (B, 1).

    Args:
        source: the tensors of the source.
        memory: the encoded source.
        max_length: int32 (B,) or (1,), -1 for the default; `None` for the default everywhere.
        least: int or int32 (B,) or (1,), the `min_length`; the default is not below it.
        batch_size: B, int32 scalar.
    """
    lengths = source_lengths(source, memory)
    if max_length is None:
        if lengths is None:
            raise ValueError("Cannot infer the source length. Pass max_length to the search.")
        return _default_limits(lengths, least)
    limit = for_each_sentence(max_length, batch_size)[:, tf.newaxis]
    if lengths is None:
        return limit
    return tf.where(limit < 0, _default_limits(lengths, least), limit)


def _default_limits(lengths: Tensor, least: Any) -> Tensor:
    limits = EXTRA_LENGTH + lengths  # (B, 1)
    if isinstance(least, int) and least <= EXTRA_LENGTH:
        return limits
    return tf.maximum(limits, tf.reshape(least, [-1, 1]))
