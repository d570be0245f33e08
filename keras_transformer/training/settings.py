"""Configuration of a training run, saved to detect changed settings."""

import json
import pathlib
import warnings
import weakref
from collections.abc import Mapping

import keras

from keras_transformer.training.checkpoints import stable_names

# For each optimizer: its configured learning rate, and the value that training has seen last.
_rates = weakref.WeakKeyDictionary()


def settings_of(model: keras.Model) -> dict[str, object]:
    """The configuration of a compiled model, its optimizer and its loss.

    Returns:
        Dictionary from a place, such as "model/config/dropout", to what JSON can hold. Where a
        model or a loss has no configuration, the place holds the name of its class.
    """
    parts = {"model": model, "optimizer": model.optimizer, "loss": model.loss}
    flat = {}
    for part, found in parts.items():
        for path, value in keras.tree.flatten_with_path(_config(found)):
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


def configured_settings(model: keras.Model) -> dict[str, object]:
    """`settings_of`, with the learning rate as it was before callbacks changed it."""
    settings = settings_of(model)
    here = {place: value for place, value in settings.items() if "/learning_rate" in place}
    configured, seen = _rates.get(model.optimizer, (here, None))
    if seen is not None and configured.keys() == here.keys():
        if float(seen) == float(model.optimizer.learning_rate):
            return settings | configured
    _rates[model.optimizer] = here, None
    return settings


def note_rate(model: keras.Model):
    """Notes the learning rate during training: a callback may have changed it.

    Call it after `configured_settings`. A schedule cannot be changed and is not noted.
    """
    configured, _ = _rates[model.optimizer]
    if all(place.endswith("/learning_rate") for place in configured):
        # The value stays on its device: a copy to the host would wait for the update.
        _rates[model.optimizer] = (
            configured,
            keras.ops.copy(model.optimizer.learning_rate),
        )


def refuse_other_data(before: Mapping[str, object], now: Mapping[str, object], path: pathlib.Path):
    """Raises an error if the data differs from the data of a checkpoint within an epoch.

    Args:
        before: `settings` of the package's batches that the checkpoint holds; for other datasets a
            dictionary with the number of batches, "batches".
        now: the same of the data here.
        path: the checkpoint, for the error.

    Raises:
        ValueError: any value differs.
    """
    changed = _differences(before, now)
    if changed:
        raise ValueError(
            f"{path} was saved within an epoch of other data: {'; '.join(changed.values())}. "
            f"Restore the data to go on, or delete {path.parent} to start anew."
        )


def _config(found: object) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Keras, that a function cannot be read back safely
        try:
            if isinstance(found, keras.Model):  # Keras would add what `compile` was given
                config = {"class_name": type(found).__name__, "config": found.get_config()}
            else:
                config = found
            config = keras.saving.serialize_keras_object(config)
        except (NotImplementedError, TypeError, ValueError):
            config = type(found).__name__
    return json.loads(json.dumps(config, default=lambda value: type(value).__name__))


def rate_changes(
    before: Mapping[str, object], now: Mapping[str, object], path: pathlib.Path
) -> list[str]:
    """Describes changes of the learning rate. Any other change raises an error.

    Args:
        before: result of `settings_of` that a checkpoint holds.
        now: result of `settings_of`.
        path: the checkpoint, for the error.

    Raises:
        ValueError: any other setting differs.
    """
    changed = _differences(before, now)
    refused = [text for place, text in changed.items() if "/learning_rate" not in place]
    if refused:
        raise ValueError(
            f"{path} was saved with other settings: {'; '.join(refused[:5])} ({len(refused)} in "
            f"all). Restore them to go on, or delete {path.parent} to start anew."
        )
    return [f"{text}." for text in changed.values()]


def _differences(before, now):
    """Dictionary from each place whose value differs to a sentence on it."""
    return {
        place: f"{_shown(place)} was {before.get(place)!s:.100}, now {now.get(place)!s:.100}"
        for place in {**before, **now}
        if before.get(place) != now.get(place)
    }


def _shown(place):
    return " ".join(part for part in place.split("/") if part != "config")
