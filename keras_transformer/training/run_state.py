"""Settings of a run and progress of callbacks, which checkpoints store besides variables."""

import json
import pathlib
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.training.checkpoints import arrays_of, stable_names
from keras_transformer.types import Array

# For each optimizer: settings of its learning rate, as configured and as its last run left them.
_rates: weakref.WeakKeyDictionary[Any, tuple[dict[str, Any], dict[str, Any]]]
_rates = weakref.WeakKeyDictionary()


def settings_of(model: keras.Model) -> dict[str, Any]:
    """Returns the configuration of a compiled model, its optimizer and its loss.

    Returns:
        Dictionary from a place, such as "model/config/dropout", to a JSON value. If a model or a
        loss has no configuration, the place holds the name of its class.
    """
    parts = {"model": model, "optimizer": model.optimizer, "loss": model.loss}
    flat = {}
    for part, configured in parts.items():
        for path, value in keras.tree.flatten_with_path(_config(configured)):
            place = "/".join(map(str, (part, *path)))
            # Modules move between releases.
            if not place.endswith(("/module", "/registered_name")):
                flat[place] = value
    names = stable_names(
        value for place, value in flat.items() if place.endswith("/name") and value is not None
    )
    return {
        place: names.get(value, value) if isinstance(value, str) else value
        for place, value in flat.items()
    }


def configured_settings(model: keras.Model) -> dict[str, Any]:
    """Same as `settings_of`, with the learning rate from before callbacks changed it."""
    settings = settings_of(model)
    configured, left = _rates.get(model.optimizer, ({}, None))
    return settings | configured if _rate_settings(settings) == left else settings


def note_rate(model: keras.Model, settings: Mapping[str, Any]) -> None:
    """Records the learning rate that a run leaves, which callbacks may have changed.

    Args:
        model: the model of the run.
        settings: result of `configured_settings` before the run.
    """
    _rates[model.optimizer] = _rate_settings(settings), _rate_settings(settings_of(model))


def _rate_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {place: value for place, value in settings.items() if "/learning_rate" in place}


def refuse_other_data(
    before: Mapping[str, Any], now: Mapping[str, Any], path: pathlib.Path
) -> None:
    """Raises an error if the data differs from the data of a checkpoint within an epoch.

    Args:
        before: `settings` of the package's batches that the checkpoint holds; for other datasets a
            dictionary with the number of batches, "batches".
        now: the same of the data here.
        path: the checkpoint, for error messages.

    Raises:
        ValueError: any value differs.
    """
    changed = _differences(before, now)
    if changed:
        raise ValueError(
            f"{path} was saved within an epoch of other data: {'; '.join(changed.values())}. "
            f"Restore the data to continue, or delete {path.parent} to start anew."
        )


def rate_changes(
    before: Mapping[str, Any], now: Mapping[str, Any], path: pathlib.Path
) -> list[str]:
    """Describes changes of the learning rate; any other change raises an error.

    Args:
        before: result of `settings_of` that a checkpoint holds.
        now: result of `settings_of`.
        path: the checkpoint, for error messages.

    Raises:
        ValueError: any other setting differs.
    """
    changed = _differences(before, now)
    refused = [text for place, text in changed.items() if "/learning_rate" not in place]
    if refused:
        raise ValueError(
            f"{path} was saved with other settings: {'; '.join(refused[:5])} ({len(refused)} in "
            f"all). Restore them to continue, or delete {path.parent} to start anew."
        )
    return [f"{text}." for text in changed.values()]


def _config(part: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns that a function cannot be read back safely
        try:
            config = part
            if isinstance(part, keras.Model):  # Keras would add the arguments of `compile`
                config = {"class_name": type(part).__name__, "config": part.get_config()}
            config = keras.saving.serialize_keras_object(config)
        except (NotImplementedError, TypeError, ValueError):
            config = type(part).__name__
    return json.loads(json.dumps(config, default=lambda value: type(value).__name__))


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Returns a dictionary from each place whose value differs to a sentence on it."""
    return {
        place: f"{place.replace('/config/', '/').replace('/', ' ')} was "
        f"{before.get(place)!s:.100}, now {now.get(place)!s:.100}"
        for place in {**before, **now}
        if before.get(place) != now.get(place)
    }


# Settings whose sign Keras changes at the end of the first epoch of each `fit`.
SIGNED = {"min_delta"}


def attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Returns the attributes that JSON can hold, except Keras' own, which begin with "_"."""
    kinds = bool | int | float | str | np.generic
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in vars(callback).items()
        if isinstance(value, kinds) and not name.startswith("_") and name not in SIGNED
    }


def progress(
    callbacks: Sequence[keras.callbacks.Callback], fresh: Sequence[Mapping[str, Any]]
) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, Array]]:
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
    states: Sequence[tuple[str, Mapping[str, Any]]],
    arrays: Mapping[str, Array],
    go_on: bool = False,
) -> None:
    """Restores the result of `progress` in callbacks of the same classes.

    Args:
        callbacks: the callbacks.
        states: from `progress`.
        arrays: from `progress`.
        go_on: whether training continues after a callback has stopped it. The used patience
            (`wait`) and the epoch of the stop (`stopped_epoch`) are then left out.
    """
    left_out = SIGNED | ({"wait", "stopped_epoch"} if go_on else set())
    for number, (callback, (_, state)) in enumerate(zip(callbacks, states, strict=True)):
        lists: dict[str, list[Array]] = {}
        for name, array in arrays_of(arrays, f"callbacks/{number}").items():
            lists.setdefault(name.partition("/")[0], []).append(array)
        kept = {name: value for name, value in state.items() if name not in left_out}
        vars(callback).update(kept, **lists)
