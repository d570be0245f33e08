"""The progress of callbacks, such as the best weights so far, in a form that a checkpoint holds."""

from collections.abc import Mapping, Sequence

import keras
import numpy as np

from keras_transformer.training.checkpoints import arrays_of


def attributes(callback: keras.callbacks.Callback) -> dict[str, object]:
    """The attributes that JSON can hold; names with an underscore are Keras' own."""
    kinds = bool | int | float | str | np.generic
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in vars(callback).items()
        if isinstance(value, kinds) and not name.startswith("_")
    }


def progress(
    callbacks: Sequence[keras.callbacks.Callback], fresh: Sequence[Mapping[str, object]]
) -> tuple[list[tuple[str, dict[str, object]]], dict[str, np.ndarray]]:
    """Returns the attributes that training has changed.

    Other attributes are settings; the new run's values are used.

    Args:
        callbacks: the callbacks.
        fresh: `attributes` of each of them, before the first epoch.

    Returns:
        For each callback its class and a dictionary of attributes; and the arrays of attributes
        that are lists of arrays.
    """
    states, arrays = [], {}
    for number, (callback, before) in enumerate(zip(callbacks, fresh, strict=True)):
        changed = dict(attributes(callback).items() - before.items())
        states.append((type(callback).__name__, changed))
        for name, value in vars(callback).items():
            if isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value):
                for place, array in enumerate(value):
                    arrays[f"callbacks/{number}/{name}/{place}"] = array
    return states, arrays


def restore(
    callbacks: Sequence[keras.callbacks.Callback],
    states: Sequence[tuple[str, Mapping[str, object]]],
    arrays: Mapping[str, np.ndarray],
    go_on: bool = False,
):
    """Gives callbacks of the same classes what `progress` returned.

    Args:
        callbacks: the callbacks.
        states: from `progress`.
        arrays: from `progress`.
        go_on: whether training goes on after a callback has stopped it. The patience that is used
            up (`wait`) and the epoch of the stop (`stopped_epoch`) are then left out.
    """
    left_out = {"wait", "stopped_epoch"} if go_on else set()
    for number, (callback, (_, state)) in enumerate(zip(callbacks, states, strict=True)):
        lists: dict[str, list[np.ndarray]] = {}
        for name, array in arrays_of(arrays, f"callbacks/{number}").items():
            lists.setdefault(name.partition("/")[0], []).append(array)
        kept = {name: value for name, value in state.items() if name not in left_out}
        vars(callback).update(kept, **lists)
