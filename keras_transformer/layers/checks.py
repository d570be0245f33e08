"""Refusals that several layers share: what was passed, what was expected, how to mend it."""

import keras


def check_positive(**sizes):
    """Refuses a size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, but {size} was passed.")


def check_ranks(**shapes):
    """Refuses inputs that are not (batch, length, features)."""
    for name, shape in shapes.items():
        if len(shape) != 3:
            raise ValueError(
                f"{name} must have shape (batch, length, features), but {tuple(shape)} "
                "was passed. Add or merge axes first."
            )


def check_same_length(key, value):
    """Refuses keys and values (B, S, ...) that do not belong together, where S is known."""
    lengths = key.shape[1], value.shape[1]
    if None not in lengths and lengths[0] != lengths[1]:
        raise ValueError(
            f"key and value must have the same length, but {lengths[0]} and {lengths[1]} positions "
            "were passed. Each value belongs to the key at its position."
        )


def check_ids(ids, otherwise):
    """Refuses token ids that are not integers; `otherwise` says what else could have been meant."""
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if "int" in dtype:
        return
    message = f"Token ids must be integers, but their dtype is {dtype}. Cast them, or {otherwise}."
    if "float" in dtype and keras.backend.backend() == "tensorflow":
        message += (
            " If this is `fit` on several replicas of a tf.distribute strategy and your ids are "
            "integers: Keras has averaged them over the replicas. Call "
            "keras_transformer.training.prepare(model) after model.compile."
        )
    raise TypeError(message)


def check_known(taker, arguments, *known):
    """Refuses keyword arguments that are none of the known ones."""
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise TypeError(
            f"{type(taker).__name__} has no arguments {unknown}. Look for a misspelt name: "
            f"help({type(taker).__name__}) lists them."
        )
