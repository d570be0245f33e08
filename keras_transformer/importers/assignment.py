"""Weights by their paths: each one that the model has, each one once, each of the right shape."""

import numpy as np


def assign_weights(model, arrays):
    """Assigns every weight of a model by its path; changes nothing unless all of them fit.

    Args:
        model: a Keras model whose weights' paths differ, such as a `Transformer`. The documentation
            lists the paths and shapes of ours.
        arrays: dict from path to array. Arrays are cast to the dtype of the weight.

    Raises:
        ValueError: a weight is missing, left over or misshapen; the message names each. Or two
            weights of the model share a path, so that a path does not say which is meant.

    Example:

    >>> model = TransformerEncoder(vocab_size=23, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    >>> arrays = {weight.path: np.zeros(weight.shape) for weight in model.weights}
    >>> assign_weights(model, arrays)
    >>> float(keras.ops.max(model.weights[0]))
    0.0
    """
    weights = {weight.path: weight for weight in model.weights}
    if len(weights) < len(model.weights):
        paths = [weight.path for weight in model.weights]
        shared = sorted({path for path in paths if paths.count(path) > 1})
        raise ValueError(
            f"Weights of {model.name} share the paths {shared}: name the layers apart."
        )
    arrays = {path: np.asarray(array) for path, array in arrays.items()}
    problems = [f"{path} is missing" for path in weights if path not in arrays]
    problems += [f"{path} is left over" for path in arrays if path not in weights]
    problems += [
        f"{path} has shape {arrays[path].shape}, not {tuple(weight.shape)}"
        for path, weight in weights.items()
        if path in arrays and arrays[path].shape != tuple(weight.shape)
    ]
    if problems:
        raise ValueError(
            f"{len(problems)} of these weights do not fit {model.name}: {'; '.join(problems)}. "
            "Is the model made with the sizes, biases and norms of the origin?"
        )
    for path, weight in weights.items():
        weight.assign(arrays[path])
