"""Checks of what is passed to a search, each with an error that says how to mend it."""

import math
import numbers

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.special_ids import PAD_ID

METHODS = ("encode", "initial_cache", "decode_step")


def check_model(model):
    """The backend runs searches, and the model has the three methods of a search."""
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            f"Searches run on Keras' TensorFlow backend, this is {keras.config.backend()!r}. "
            "Set KERAS_BACKEND=tensorflow and load the saved model there."
        )
    missing = [name for name in METHODS if not hasattr(model, name)]
    if missing:
        raise TypeError(
            f"{type(model).__name__} has no {', '.join(missing)}, so nothing can be generated with "
            "it. Pass a Transformer, a CausalTransformer or a model with these methods. To copy a "
            "model, use type(model).from_config(model.get_config()): keras.models.clone_model "
            "returns a plain functional model."
        )


def check_number(value, name, kind, lowest, highest=math.inf):
    """`value` is a number of this kind, finite, from `lowest` to `highest`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, kind):
        wanted = "an integer" if kind is numbers.Integral else "a number"
        raise TypeError(f"{name} must be {wanted}, got {value!r} ({type(value).__name__}).")
    if not lowest <= value <= highest or math.isinf(value):
        raise ValueError(f"{name} must lie in [{lowest}, {highest}] and be finite, got {value}.")


def check_flag(value, name):
    """`value` is `True` or `False`."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}.")


def integer_ids(ids, name, rank=2):
    """`ids` as an int32 tensor of this rank."""
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        raise TypeError(
            f"{name} must hold integer ids, got dtype {ids.dtype.name}. Cast it to int32."
        )
    if ids.shape.rank != rank:
        raise ValueError(
            f"{name} must have rank {rank}, got shape {ids.shape}. "
            "One sentence alone needs a batch axis: ids[None]."
        )
    return tf.cast(ids, tf.int32)


def max_lengths(max_length, source, min_length):
    """`max_length`, one integer or one a sentence, as int32 (B,)."""
    if not tf.is_tensor(max_length) and np.ndim(max_length) == 0:
        check_number(max_length, "max_length", numbers.Integral, 1)
        if max_length < min_length:
            raise ValueError(
                f"max_length {max_length} is below the search's min_length {min_length}."
            )
    max_length = tf.convert_to_tensor(max_length)
    max_length = integer_ids(max_length, "max_length", 1 if max_length.shape.rank else 0)
    name, array = next(iter(source.items()))
    if max_length.shape.rank and not max_length.shape.is_compatible_with(array.shape[:1]):
        raise ValueError(
            "max_length must be one integer, or one a sentence: "
            f"{name} {array.shape}, max_length {max_length.shape}."
        )
    return tf.broadcast_to(max_length, tf.shape(array)[:1])


def prefix_ids(target_prefix, source):
    """`target_prefix` as int32 (B, Q)."""
    prefix = integer_ids(target_prefix, "target_prefix")
    name, array = next(iter(source.items()))
    if not array.shape[:1].is_compatible_with(prefix.shape[:1]):
        raise ValueError(
            "target_prefix must have one row a sentence: "
            f"{name} {array.shape}, target_prefix {prefix.shape}."
        )
    return prefix


def check_right_padded(ids, name):
    """No row of eager `ids` has padding before a token; a row of padding alone is empty."""
    there = ids.numpy() != PAD_ID
    rows = np.flatnonzero((there[:, 1:] & ~there[:, :-1]).any(axis=1))
    if rows.size:
        raise ValueError(
            f"{name} must be padded on the right, but row {rows[0]} has padding ({PAD_ID}) before "
            f"a token: {ids[rows[0]].numpy().tolist()}. Move its tokens to the front."
        )
