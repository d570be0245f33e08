"""A model of reduced precision as one that computes in float32, which is what exporters trace."""

from collections.abc import Callable

import keras
import numpy as np

from keras_transformer.export.staging import ExportError

REDUCED = ("bfloat16", "float16")
# Largest difference of a copy from its model, as `verify.TOLERANCES` explains it. One that is
# another model is off by 0.5 or more.
COPY_TOLERANCE = 0.25


def as_float32(model: keras.Model) -> keras.Model:
    """`model` itself where no layer has a reduced dtype policy, else a copy without these policies.

    Converters and CPUs know little of bfloat16, and rounding twice helps nobody: lower precisions
    are made from float32 weights. And two programs that round to bfloat16 at other places give
    numbers too far apart to prove one by the other. Casts that the model makes itself stay.

    Raises:
        ExportError: the configuration cannot be written or read.
    """
    policies = {layer.dtype_policy.name for layer in model._flatten_layers()}
    reduced = sorted(filter(_is_reduced, policies))
    if not reduced:
        return model
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")  # of layers inside that were made without one
    try:
        config = _with_float32(keras.saving.serialize_keras_object(model))
        copy = keras.saving.deserialize_keras_object(config)
        copy.set_weights([_float32(weight) for weight in model.get_weights()])
    except Exception as error:  # the user's own layers run here
        raise ExportError(
            f"The model has the dtype policy {', '.join(reduced)}. An export computes in "
            "float32, so the model is rebuilt from its configuration, and that failed: "
            f"{type(error).__name__}: {error!s:.500} Decorate the model's layers and functions "
            "with keras.saving.register_keras_serializable() and give layers a get_config; or "
            "build the model under the float32 policy, load the weights, and export that."
        ) from error
    finally:
        keras.config.set_dtype_policy(policy)
    for mine, theirs in zip(copy.inputs, model.inputs, strict=True):
        mine.name = theirs.name  # Keras renames those that the user did not name
    return copy


def check_copy(compare: Callable[[], float]) -> None:
    """Raises `ExportError` where `compare`, of a float32 copy with the passed model, does."""
    try:
        compare()
    except ExportError as error:
        raise ExportError(
            "The model has a reduced dtype policy, and the export is made from a copy in float32, "
            f"rebuilt from its configuration. The copy is another model: {error} Put all state of "
            "layers into weights or get_config, or build the model under the float32 policy, load "
            "the weights, and export that."
        ) from error


def _is_reduced(policy):
    return policy.startswith("mixed_") or policy in REDUCED


def _float32(weight):
    return weight if weight.dtype.kind in "iub" else np.asarray(weight, np.float32)


def _with_float32(config):
    """A configuration in which every reduced dtype policy has become float32."""
    if isinstance(config, dict):
        if config.get("class_name") in ("DTypePolicy", "FloatDTypePolicy"):
            return "float32" if _is_reduced(config["config"]["name"]) else config
        return {key: _with_float32(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return type(config)(_with_float32(item) for item in config)
    return config
