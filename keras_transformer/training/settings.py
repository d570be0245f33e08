"""What a run of training was made with, so that a changed setting is noticed."""

import json
import pathlib
import warnings
from collections.abc import Mapping

import keras

from keras_transformer.training.checkpoints import stable_names


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
    """Sentences on how the learning rate differs; it is the only setting that may.

    Args:
        before: result of `settings_of` that a checkpoint holds.
        now: result of `settings_of`.
        path: the checkpoint, for the error.

    Raises:
        ValueError: any other setting differs.
    """
    changed = {
        place: f"{_shown(place)} was {before.get(place)!s:.100}, now {now.get(place)!s:.100}"
        for place in {**before, **now}
        if before.get(place) != now.get(place)
    }
    refused = [text for place, text in changed.items() if "/learning_rate" not in place]
    if refused:
        raise ValueError(
            f"{path} was saved with other settings: {'; '.join(refused[:5])} ({len(refused)} in "
            f"all). Restore them to go on, or delete {path.parent} to start anew."
        )
    return [f"{text}." for text in changed.values()]


def _shown(place):
    return " ".join(part for part in place.split("/") if part != "config")
