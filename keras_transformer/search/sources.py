"""What a search starts from: token ids, or the arrays that a model's own encoder reads.

Shapes: B batch, S source length.
"""

import tensorflow as tf

from keras_transformer.decoding import Memory
from keras_transformer.search.checks import integer_ids
from keras_transformer.special_ids import PAD_ID

SOURCE_IDS = "source_ids"


def source_specs(model):
    """Names, shapes and dtypes of a model's sources: dict of `tf.TensorSpec`."""
    inputs = getattr(model, "source_inputs", None)
    if inputs is None:
        return {SOURCE_IDS: tf.TensorSpec([None, None], tf.int32, SOURCE_IDS)}
    return {name: tf.TensorSpec(x.shape, x.dtype, name) for name, x in inputs.items()}


def source_tensors(source, specs):
    """`source`, one array or a dict of them, as a dict of tensors that suit `specs`.

    Raises:
        TypeError: an array is not of the kind that is read, as floats where ids are.
        ValueError: names or shapes do not fit.
    """
    if not isinstance(source, dict):
        if len(specs) > 1:
            raise TypeError(
                f"The model's encoder reads {sorted(specs)}: pass a dict with an array for each, "
                f"got {type(source).__name__}."
            )
        source = dict.fromkeys(specs, source)
    if set(source) != set(specs):
        raise ValueError(f"The source must be a dict of {sorted(specs)}, got {sorted(source)}.")
    tensors = {name: _tensor(source[name], spec) for name, spec in specs.items()}
    first, *others = (tensor.shape[:1] for tensor in tensors.values())
    if not all(first.is_compatible_with(other) for other in others):
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        raise ValueError(f"All parts of the source must have one batch size, got {shapes}.")
    return tensors


def _tensor(array, spec):
    if spec.name == SOURCE_IDS:
        return tf.cast(integer_ids(array, spec.name, spec.shape.rank), spec.dtype)
    tensor = tf.convert_to_tensor(array)
    numbers = tensor.dtype.is_integer or tensor.dtype.is_bool or spec.dtype.is_floating
    if tensor.dtype == tf.string or not numbers:
        raise TypeError(
            f"{spec.name} has dtype {tensor.dtype.name}, but the encoder reads {spec.dtype.name}."
        )
    if not spec.shape.is_compatible_with(tensor.shape):
        raise ValueError(
            f"{spec.name} has shape {tensor.shape}, but the encoder reads {spec.shape}. One source "
            "alone needs a batch axis: array[None]."
        )
    return tf.ensure_shape(tf.cast(tensor, spec.dtype), spec.shape)


def batch_size_of(source):
    """B of a dict of tensors, int32 scalar."""
    return tf.shape(next(iter(source.values())))[0]


def as_read(source):
    """What a model's methods take: the token ids themselves, or the dict of an encoder's inputs."""
    return source[SOURCE_IDS] if list(source) == [SOURCE_IDS] else source


def source_lengths(source, memory):
    """How long each source is, int32 (B, 1): its tokens, or what its encoder makes of it.

    Padding does not count, as far as it is known.
    """
    if SOURCE_IDS in source:
        there = source[SOURCE_IDS] != PAD_ID
    elif not isinstance(memory, Memory):
        raise ValueError("How long such a source is cannot be told: pass max_length to the search.")
    elif isinstance(memory.mask, tuple):  # no padding
        keys, _ = memory.blocks[0]  # (B, H, S, K)
        return tf.fill([batch_size_of(source), 1], tf.shape(keys)[2])
    else:
        there = memory.mask
    return tf.reduce_sum(tf.cast(there, tf.int32), axis=1, keepdims=True)


def source_numbers(source):
    """The source as integers (B, N), 0 where it is padded; equal sources give equal ones.

    Token ids are taken as they are. Other numbers are rounded to multiples of 2^-12, so that every
    runtime makes the same integers of them.
    """
    return tf.concat([_as_integers(tensor) for tensor in source.values()], axis=1)


def _as_integers(tensor):
    if tensor.dtype.is_floating:
        scaled = tf.clip_by_value(tf.cast(tensor, tf.float32) * 2.0**12, -(2.0**31), 2.0**31)
        tensor = tf.floor(scaled)
    tensor = tf.cast(tensor, tf.int64)
    if tensor.shape.rank == 2:
        return tensor
    shape = tf.shape(tensor)
    return tf.reshape(tensor, [shape[0], tf.reduce_prod(shape[1:])])
