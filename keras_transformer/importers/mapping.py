"""Rows of a vocabulary in our order, and the assignment of weights by path.

`row_order` puts the rows of a vocabulary in our order: padding 0, unknown 1, begin 2, end 3, then
all others. In an origin one token may have two of these roles: Marian begins with its padding
token, GPT-2 begins and ends with one token. The importer copies its row, and only one copy may
count among the logits. `logit_bias` is `NEVER` for the other copies and for rows that the origin
lacks.

Shapes: V our number of ids, U the origin's.
"""

from collections.abc import Iterable, Mapping

import keras
import numpy as np

from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from keras_transformer.types import Array, Ids

ABSENT = -1  # in an order: a row that the origin does not have
# The logit bias of tokens that must never be generated: exp(-100) is negligible in float32. A
# larger bias would distort losses with smoothed labels, and the scale of compared exports.
NEVER = -100.0
# The same for origins whose logits may be far below 0, such as GPT-2's, which are about -100.
NEVER_LOW = -1e4


def assign_weights(model: keras.Model, arrays: Mapping[str, Array]) -> None:
    """Assigns every weight of a model by its path. Changes nothing unless all of them fit.

    Args:
        model: a Keras model whose weights have distinct paths, such as a `Transformer`. The
            documentation lists the paths and shapes of our models.
        arrays: dict from path to array. Arrays are cast to the dtype of the weight.

    Raises:
        ValueError: a weight is missing, left over or misshapen; the message names each. Or two
            weights of the model share a path.

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
            f"Weights of {model.name} share the paths {shared}. Give the layers different names."
        )
    arrays = {path: np.asarray(array) for path, array in arrays.items()}
    shapes = {path: tuple(weight.shape) for path, weight in weights.items()}
    if problems := misfits(arrays, shapes):
        raise ValueError(
            f"{len(problems)} of these weights do not fit {model.name}: {'; '.join(problems)}. "
            "Create the model with the sizes, biases and norms of the origin."
        )
    for path, weight in weights.items():
        weight.assign(arrays[path])


def misfits(
    arrays: Mapping[str, Array],
    shapes: Mapping[str, tuple[int, ...]],
    spare: Iterable[str] = (),
) -> list[str]:
    """Returns a phrase for each array that is missing, left over or misshapen."""
    expected = {*shapes, *spare}
    problems = [f"{name} is missing" for name in shapes if name not in arrays]
    problems += [f"{name} is left over" for name in arrays if name not in expected]
    return problems + [
        f"{name} has shape {arrays[name].shape}, not {shape}"
        for name, shape in shapes.items()
        if name in arrays and arrays[name].shape != shape
    ]


def row_order(
    size: int,
    pad: int | None,
    unknown: int | None,
    begin: int | None,
    end: int | None,
    copies: int = 0,
) -> Ids:
    """Returns the origin's id of each of our rows, (V,) integers.

    Args:
        size: int, U.
        pad, unknown, begin, end: int, the origin's ids, or `None` for a token that it lacks. Begin
            may equal another.
        copies: int, number of further copies of the unknown token, for pieces of text that the
            origin treats as unknown. Defaults to 0.

    Raises:
        ValueError: an id is not below U.

    Example, the order of Marian's Hugging Face folders, whose padding is the last id:

    >>> row_order(6, pad=5, unknown=1, begin=5, end=0).tolist()
    [5, 1, 5, 0, 2, 3, 4]
    """
    special = [ABSENT if id is None else id for id in (pad, unknown, begin, end)]
    outside = [id for id in special if not ABSENT <= id < size]
    if outside:
        raise ValueError(f"Special ids {outside} are not among the {size} ids of the vocabulary.")
    others = [id for id in range(size) if id not in special]
    return np.array(special + others + [unknown] * copies)


def our_ids(order: Ids) -> dict[int, int]:
    """Returns a dict from the origin's id to ours.

    A token with several roles maps to end, then to begin.
    """
    ours: dict[int, int] = {}
    for row in (END_ID, BEGIN_ID, UNKNOWN_ID, PAD_ID, *range(4, len(order))):
        ours.setdefault(int(order[row]), row)
    return {theirs: row for theirs, row in ours.items() if theirs != ABSENT}


def rows(array: Array, order: Ids, axis: int = 0) -> Array:
    """Returns the origin's rows (U, ...) in our order (V, ...); zeros where it has none."""
    nothing = np.zeros_like(np.take(array, [0], axis))
    extended = np.concatenate([array, nothing], axis)  # index ABSENT is the last row
    return np.take(extended, order, axis)


def logit_bias(order: Ids, bias: Array | None = None, never: float = NEVER) -> Array:
    """Returns the bias (V,) of our logits from the origin's (U,), or from none.

    The softmax over our logits then equals the softmax over the origin's: each of its ids counts
    once, and every other row has the bias `never`.
    """
    bias = np.zeros(len(order), np.float32) if bias is None else rows(bias, order)
    silent = np.ones(len(order), bool)
    silent[list(our_ids(order).values())] = False
    bias[silent] = never
    return bias
