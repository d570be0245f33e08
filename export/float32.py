"""Copies of models in float32, from which every export is made. Imports no TensorFlow."""

from typing import Any

import keras
import numpy as np

from keras_transformer.export.staging import ExportError, quoted
from keras_transformer.training.quantization import is_quantization_aware

REDUCED = ("bfloat16", "float16")


def as_float32(model: keras.Model) -> keras.Model:
    """Returns the model if it computes in float32, else a plain copy that does.

    Exporters reduce precision from float32 weights. Programs that round to bfloat16 at different
    places differ too much to be compared. Explicit casts in the model stay.

    Args:
        model: functional Keras model.

    Returns:
        A functional Keras model, with the same names of inputs.

    Raises:
        ExportError: the model cannot be rebuilt from its configuration.
    """
    policies = {layer.dtype_policy.name for layer in model._flatten_layers()}
    reduced = sorted(filter(_is_reduced, policies))
    if not reduced and not is_quantization_aware(model):
        return model
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")  # for inner layers that follow the global policy
    try:
        config = _with_float32(keras.saving.serialize_keras_object(model))
        copy = keras.saving.deserialize_keras_object(config)
        copy.set_weights(
            [
                weight if weight.dtype.kind in "iub" else np.asarray(weight, np.float32)
                for weight in model.get_weights()
            ]
        )
    except Exception as error:  # the user's layers run here
        raise ExportError(
            f"The model has the dtype policy {', '.join(reduced or policies)}. An export computes "
            "in float32, so the model is rebuilt from its configuration, and that failed: "
            f"{quoted(error, 500)} Decorate the model's layers and functions "
            "with keras.saving.register_keras_serializable() and give layers a get_config; or "
            "build the model under the float32 policy, load the weights, and export that."
        ) from error
    finally:
        keras.config.set_dtype_policy(policy)
    for mine, theirs in zip(copy.inputs, model.inputs, strict=True):
        mine.name = theirs.name  # Keras renames inputs that the user did not name
    return copy


def _is_reduced(policy: str) -> bool:
    return policy.startswith("mixed_") or policy in REDUCED


def _with_float32(config: Any) -> Any:
    """Replaces each reduced dtype policy in a configuration by float32."""
    if isinstance(config, dict):
        if config.get("class_name") in ("DTypePolicy", "FloatDTypePolicy"):
            return "float32" if _is_reduced(config["config"]["name"]) else config
        return {key: _with_float32(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return type(config)(_with_float32(item) for item in config)
    return config
