"""Low-rank updates of `Dense` layers, LoRA (arXiv 2106.09685): added, saved, loaded and merged."""

import functools
from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.layers.checks import check_positive

# Names in files of a kernel without its update, and of the update's two factors.
_UPDATE = ("lora_kernel", "lora_kernel_a", "lora_kernel_b")


class UpdateRecord:
    """Saves the low-rank updates of the `Dense` layers inside a layer or model apart from kernels.

    Keras saves the kernel W + A B of such a layer, so plain layers can load it. It then loads zeros
    as A and B, whose gradients are zero: training would have no effect (Keras 3.15). With this
    class, a layer of the same rank loads W, A and B as they were. From a file without updates, it
    loads the kernel, and begins with the A and B of a new update.
    """

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        for layer in self._layers:
            if has_updates(layer) and layer.lora_alpha == layer.lora_rank:  # as after loading
                for name, variable in _parts_of_update(layer).items():
                    store[f"{layer.name}_{name}"] = variable

    def load_own_variables(self, store: Any) -> None:
        values = {name: store[name] for name in store.keys()}
        for layer in self._layers:
            saved = {name: values.pop(f"{layer.name}_{name}", None) for name in _UPDATE}
            if has_updates(layer):  # Keras loads it after this layer
                layer.load_own_variables = functools.partial(_load_update, layer, saved)
        super().load_own_variables(values)


def has_updates(layer: keras.Layer) -> bool:
    """Returns whether a layer has low-rank updates."""
    return getattr(layer, "lora_enabled", False)


def _parts_of_update(layer: keras.Layer) -> dict[str, Any]:
    parts = layer._kernel, layer.lora_kernel_a, layer.lora_kernel_b
    return dict(zip(_UPDATE, parts, strict=True))


def _load_update(layer: keras.Layer, saved: dict[str, Any], store: Any) -> None:
    """Loads a layer with updates from `store`; `saved` is its record, of `None` without one."""
    del layer.load_own_variables  # one file only
    layer.load_own_variables(store)
    parts = _parts_of_update(layer)
    if all(value is not None and value.shape == parts[name].shape for name, value in saved.items()):
        for name, variable in parts.items():
            variable.assign(saved[name])
    else:
        start = keras.initializers.HeUniform()
        layer.lora_kernel_a.assign(start(layer.lora_kernel_a.shape))


def add_updates(model: keras.Model, rank: int, names: Sequence[str]) -> list[keras.layers.Dense]:
    """Adds updates to the `Dense` layers of these names, and freezes all other weights.

    Arguments and errors are those of `Model.enable_lora`.

    Returns:
        The layers with updates.
    """
    check_positive(rank=rank)
    if isinstance(names, str) or not names:
        raise TypeError(f"names must be a list of names, but {names!r} was passed.")
    every = model._flatten_layers(include_self=False)
    dense = [layer for layer in every if isinstance(layer, keras.layers.Dense)]
    chosen = [layer for layer in dense if layer.name in names]
    known = sorted({layer.name for layer in dense})
    if missing := [name for name in names if name not in known]:
        raise ValueError(
            f"enable_lora found no Dense layer of the names {missing}. The model has {known}."
        )
    if rank > (most := min(min(layer.kernel.shape) for layer in chosen)):
        raise ValueError(
            f"rank must be at most {most}, the shorter side of the smallest projection, but "
            f"{rank} was passed: a larger update has more weights and no other values."
        )
    if any(map(has_updates, every)):
        raise ValueError(
            "LoRA is already enabled; a model from a file keeps it. Name all layers in one "
            "call. For other updates merge these: model.merge_lora()."
        )
    # Keras ignores `trainable = False` of a layer that is frozen, whatever is inside. So the
    # layers around an update stay trainable, unless they have weights of their own.
    around = [
        layer
        for layer in every
        if not layer._trainable_variables
        and any(inner in chosen for inner in layer._flatten_layers(include_self=False))
    ]
    for layer in around:
        layer.trainable = True
    for layer in every:
        if layer not in around:
            layer.trainable = False
    for layer in chosen:
        layer.trainable = True
        layer.enable_lora(rank)
    return chosen


def merge_updates(model: keras.Model) -> list[keras.Layer]:
    """Merges all updates inside a model into the kernels.

    Returns:
        The layers that had updates.

    Raises:
        ValueError: there are none.
    """
    merged = [layer for layer in model._flatten_layers() if has_updates(layer)]
    if not merged:
        raise ValueError("merge_lora would have no effect: the model has no updates of LoRA.")
    for layer in merged:
        factors = layer.lora_kernel_a, layer.lora_kernel_b
        layer._kernel.assign(layer.kernel)
        layer.lora_enabled, layer.lora_rank = False, None
        layer._tracker.unlock()
        for factor in factors:
            layer._untrack_variable(factor)
        layer._tracker.lock()
        layer.lora_kernel_a = layer.lora_kernel_b = None
        layer._kernel.trainable = layer.trainable
    return merged
