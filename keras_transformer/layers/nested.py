"""Settings of layers inside a layer: frozen weights, quantization and LoRA survive saving.

Keras saves `trainable` and the dtype policy of a layer, but not those of the layers that it makes
for itself. A frozen or quantized sublayer would come back as it was made first.
"""

from typing import Any

import keras
from keras import layers


def sublayer_settings(layer: layers.Layer) -> dict[str, Any]:
    """Returns the settings of sublayers that differ from a new layer's.

    Args:
        layer: a built layer or model.

    Returns:
        JSON-serializable dict without empty entries: "frozen", the paths of layers that are not
        trainable; "dtype", the policies of quantized layers by path; "lora", the ranks by path.
    """
    inner = list(_by_path(layer).items())
    settings = {
        "frozen": [path for path, part in inner if part.weights and not part.trainable],
        "dtype": {
            path: keras.dtype_policies.serialize(part.dtype_policy)
            for path, part in inner
            if part.quantization_mode is not None
        },
        "lora": {
            path: part.lora_rank for path, part in inner if getattr(part, "lora_enabled", False)
        },
    }
    return {name: value for name, value in settings.items() if value}


def restore_sublayers(layer: layers.Layer, settings: dict[str, Any]) -> None:
    """Applies the result of `sublayer_settings` to the layers inside a built layer or model."""
    inner = _by_path(layer)
    if missing := {*settings.get("dtype", {}), *settings.get("lora", {})} - set(inner):
        raise ValueError(
            f"The saved settings of {sorted(missing)} fit no layer of {layer.name!r}, which has "
            f"{sorted(inner)}. Load the file with the code that saved it."
        )
    if "frozen" in settings:
        frozen = set(settings["frozen"])
        for path, part in inner.items():  # outer layers come first: they set those inside
            part.trainable = path not in frozen
    for path, policy in settings.get("dtype", {}).items():
        inner[path].dtype_policy = keras.dtype_policies.deserialize(policy)  # quantizes
    for path, rank in settings.get("lora", {}).items():
        inner[path].enable_lora(rank)


def _by_path(layer: layers.Layer) -> dict[str, layers.Layer]:
    """The layers inside a layer by their path below it, each after the layers around it."""
    return {
        top.name + part.path.removeprefix(top.path): part
        for top in layer._layers
        for part in _with_inner(top)
        if part.path and top.path
    }


def _with_inner(layer):
    if not isinstance(layer, keras.Model):  # Keras saves the settings of a model's layers
        yield layer
        for part in layer._layers:
            yield from _with_inner(part)


class NestedLayer(layers.Layer):
    """A layer whose configuration keeps the settings of its sublayers; see `sublayer_settings`.

    Subclasses call `restore_sublayers` at the end of `build`.
    """

    def __init__(self, *, sublayers: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._sublayer_settings = sublayers

    def restore_sublayers(self) -> None:
        """Gives new sublayers the settings that were saved, and freezes those of a frozen layer."""
        if not self.trainable:
            self.trainable = False
        if self._sublayer_settings:
            restore_sublayers(self, dict(self._sublayer_settings))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        settings = sublayer_settings(self) if self.built else self._sublayer_settings
        return {**config, "sublayers": settings} if settings else config
