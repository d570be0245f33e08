"""The base class of layers: it saves settings of sublayers and finds lost masks."""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

from keras_transformer.layers.lora import UpdateRecord, has_updates
from keras_transformer.types import Shape, Tensor

# These layers keep a mask only if all of their inputs have one.
_MERGES = (
    layers.Add,
    layers.Average,
    layers.Concatenate,
    layers.Maximum,
    layers.Minimum,
    layers.Multiply,
    layers.Subtract,
)


class BaseLayer(UpdateRecord, keras.Layer):
    """A layer that keeps the shape and the Keras mask of its first input.

    It adds two things to a Keras layer:

    - Keras saves `trainable` and the dtype policy of a layer, but not of its sublayers. This class
      also saves the settings of frozen, quantized and low-rank sublayers. A subclass with
      sublayers calls `restore_sublayers` at the end of `build`.
    - Operations such as `a + b` drop the Keras mask of a tensor without a warning, and padding
      would then change the results. A layer that reads masks refuses such a tensor while a
      functional model is built. A saved model loads with a warning instead. In a subclassed model,
      the layer warns when TensorFlow traces the model.

    Args:
        **kwargs: `name`, `dtype` and `trainable`; and `sublayers`, settings of a saved layer.

    Attributes:
        reads: names of the call arguments whose lost masks are errors, each with the name of the
            argument that can replace its Keras mask.
    """

    reads: Mapping[str, str] = {}
    _loaded = False

    def __init__(self, **kwargs: Any) -> None:
        self._sublayer_settings = kwargs.pop("sublayers", None)
        super().__init__(**kwargs)
        self.supports_masking = True

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BaseLayer":
        layer = super().from_config(config)
        layer._loaded = True
        return layer

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        settings = sublayer_settings(self) if self.built else self._sublayer_settings
        return {**config, "sublayers": settings} if settings else config

    def restore_sublayers(self) -> None:
        """Applies the saved settings to new sublayers; freezes the sublayers of a frozen layer."""
        if not self.trainable:
            for layer in self._layers:
                layer.trainable = False
        if self._sublayer_settings:
            apply_settings(self, dict(self._sublayer_settings))

    def compute_output_shape(self, input_shape: Shape, *other_shapes: Shape) -> Shape:
        return input_shape

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Only tensors of a graph have a history. A layer of a functional model was checked before.
        first = next(iter((*args, *kwargs.values())), None)
        if self.reads and not self._inbound_nodes and hasattr(first, "graph"):
            self._check_masks(args, kwargs, may_refuse=False)
        return super().__call__(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        given = self._check_masks(args, kwargs, may_refuse=not self._loaded)
        if given.get("return_attention_scores"):
            return keras.Operation.compute_output_spec(self, *args, **kwargs)  # traces `call`
        return super().compute_output_spec(*args, **kwargs)

    def _check_masks(self, args: Any, kwargs: Any, may_refuse: bool) -> dict[str, Any]:
        """Refuses or reports inputs whose Keras mask was lost; returns the arguments by name."""
        bound = inspect.signature(self.call).bind_partial(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        for name, explicit in self.reads.items():
            # Under a causal mask, padding on the right changes only outputs of padding. Attention
            # to the encoder output has no causal mask.
            is_causal = explicit == "attention_mask" and given.get("use_causal_mask")
            if is_causal or given.get(explicit) is not None:
                continue
            operation = lost_at(given.get(name))
            if operation is None:
                continue
            kind = getattr(operation, "type", type(operation).__name__)  # of TensorFlow, or Keras
            message = (
                f"{type(self).__name__} {self.name!r} was passed a tensor whose Keras mask was "
                f"lost in {kind} {operation.name!r}, so padding would change "
                "its results. Operations such as `a + b` drop masks. Write "
                "keras.layers.Add()([a, b]) if both have a mask, or pass the mask yourself, such "
                "as keras_transformer.padding_mask(ids)."
            )
            if may_refuse:
                raise ValueError(message)
            warnings.warn(message, stacklevel=3)
        return given


class DigestRecord:
    """Stores the digests of the tokenizers of a layer or model with its weights.

    Attributes:
        digests: the tokenizers' `digest` by side, "source" and "target".
    """

    digests: Mapping[str, str] = {}

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        for side, digest in self.digests.items():
            store[f"{side}_tokenizer"] = np.frombuffer(digest.encode(), np.uint8)

    def load_own_variables(self, store: Any) -> None:
        values = {name: store[name] for name in store.keys()}
        found = {side: values.pop(f"{side}_tokenizer", None) for side in ("source", "target")}
        self.digests = {
            side: bytes(np.asarray(codes)).decode()
            for side, codes in found.items()
            if codes is not None
        }
        super().load_own_variables(values)


def lost_at(tensor: Tensor | None) -> Any:
    """Finds the operation that dropped a tensor's Keras mask.

    It follows (B, T, ...) back while batch size and length stay the same, and through the
    reshaped product of a `Dense` layer. It skips layers that do not support masks, because Keras
    warns about them.

    Args:
        tensor: tensor of a functional model, or of a TensorFlow graph: then each loss is found
            once. Any other tensor has no history and gives `None`.

    Returns:
        `keras.Operation` or `tf.Operation`, or `None` if no mask was lost.
    """
    pending, seen = [tensor], set()
    while pending:
        output = pending.pop()
        has_mask = getattr(output, "_keras_mask", None) is not None
        operation, inputs = _origin(output)
        known = id(output) in seen or getattr(output, "_lost_mask_was_sought", False)
        if operation is None or has_mask or known:
            continue
        seen.add(id(output))
        if output is tensor and hasattr(tensor, "graph"):
            # The layers after this one, and inside it, do not report the same loss again.
            tensor._lost_mask_was_sought = True
        is_product = getattr(operation, "type", None) in ("Reshape", "MatMul")
        for given in inputs[:1] if is_product else inputs:
            is_same = given.shape[:2] == tensor.shape[:2]
            if getattr(given, "_keras_mask", None) is None:
                if is_same or is_product:
                    pending.append(given)
            elif is_same and (
                isinstance(operation, _MERGES) or not isinstance(operation, keras.Layer)
            ):
                return operation
    return None


def _origin(tensor: Tensor | None) -> tuple[Any, Any]:
    """Returns the operation that made a tensor and its inputs; `None` without a history."""
    history = getattr(tensor, "_keras_history", None)
    if history is not None:
        operation = history.operation
        return operation, operation._inbound_nodes[history.node_index].input_tensors
    operation = getattr(tensor, "op", None)  # eager tensors have none
    return operation, getattr(operation, "inputs", ())


def sublayer_settings(layer: keras.Layer) -> dict[str, Any]:
    """Returns the settings of sublayers that differ from a new layer's.

    Args:
        layer: a built layer or model.

    Returns:
        JSON-serializable dict without empty entries: "frozen", the paths of layers that are not
        trainable; "dtype", the policies of quantized layers by path; "lora", the ranks by path;
        "whole", the paths of layers with updates whose kernels are trained, too.
    """
    inner = _by_path(layer)
    settings = {
        "frozen": [path for path, part in inner.items() if part.weights and not part.trainable],
        "dtype": {
            path: keras.dtype_policies.serialize(part.dtype_policy)
            for path, part in inner.items()
            if part.quantization_mode is not None
        },
        "lora": {path: part.lora_rank for path, part in inner.items() if has_updates(part)},
        "whole": [
            path for path, part in inner.items() if has_updates(part) and part._kernel.trainable
        ],
    }
    return {name: value for name, value in settings.items() if value}


def apply_settings(layer: keras.Layer, settings: dict[str, Any]) -> None:
    """Applies the result of `sublayer_settings` to the layers inside a built layer or model.

    Args:
        layer: a built layer or model.
        settings: the result of `sublayer_settings` for a layer of the same structure.

    Raises:
        ValueError: a quantized or low-rank layer of `settings` does not exist.
    """
    inner = _by_path(layer)
    if missing := {*settings.get("dtype", {}), *settings.get("lora", {})} - set(inner):
        raise ValueError(
            f"The saved settings of {sorted(missing)} fit no layer of {layer.name!r}, which has "
            f"{sorted(inner)}. Load the file with the code that saved it."
        )
    if "frozen" in settings:
        frozen = set(settings["frozen"])
        for path, part in inner.items():  # also sets the sublayers, which come after it
            part.trainable = path not in frozen
    for path, policy in settings.get("dtype", {}).items():
        inner[path].dtype_policy = keras.dtype_policies.deserialize(policy)  # quantizes
    for path, rank in settings.get("lora", {}).items():
        inner[path].enable_lora(rank)
        inner[path]._kernel.trainable = path in settings.get("whole", ())


def _by_path(layer: keras.Layer) -> dict[str, keras.Layer]:
    """Returns the layers inside a layer by their path in it. Sublayers come after their layer."""
    return {
        top.name + part.path.removeprefix(top.path): part
        for top in layer._layers
        for part in _with_sublayers(top)
        if part.path and top.path
    }


def _with_sublayers(layer: keras.Layer) -> list[keras.Layer]:
    if isinstance(layer, keras.Model):  # Keras saves the settings of a model's layers
        return []
    return [layer, *(part for inner in layer._layers for part in _with_sublayers(inner))]
