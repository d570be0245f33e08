"""A model of reduced precision as one that computes in float32, which is what exporters trace."""

import keras
import numpy as np

REDUCED = ("bfloat16", "float16")


def as_float32(model):
    """`model` itself where all of it is float32, else a copy that computes in float32.

    Converters and CPUs know little of bfloat16, and rounding twice helps nobody: lower precisions
    are made from float32 weights. And two programs that round to bfloat16 at other places give
    numbers too far apart to prove one by the other.
    """
    config = keras.saving.serialize_keras_object(model)
    plain = _with_float32(config)
    if plain == config:
        return model
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")  # of layers inside that were made without one
    try:
        copy = keras.saving.deserialize_keras_object(plain)
    finally:
        keras.config.set_dtype_policy(policy)
    copy.set_weights([np.asarray(weight, np.float32) if weight.dtype.kind not in "iub" else weight
                      for weight in model.get_weights()])  # fmt: skip
    return copy


def _with_float32(config):
    """A configuration in which every dtype of reduced precision has become float32.

    Keras writes a layer's precision as a policy, `{"class_name": "DTypePolicy", "config": {"name":
    "mixed_bfloat16"}}`, or as the name of a dtype under the key "dtype".
    """
    if isinstance(config, dict):
        if config.get("class_name") in ("DTypePolicy", "FloatDTypePolicy"):
            name = config["config"]["name"]
            return "float32" if name.startswith("mixed_") or name in REDUCED else config
        return {
            key: "float32" if key == "dtype" and value in REDUCED else _with_float32(value)
            for key, value in config.items()
        }
    if isinstance(config, (list, tuple)):
        return type(config)(_with_float32(item) for item in config)
    return config
