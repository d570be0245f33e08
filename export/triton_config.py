"""The configuration of a Triton model: what its fields are, and how they are written.

The fields are those of `model_config.proto`. Shapes follow the rules that Triton's ONNX Runtime
backend holds a configuration to when it loads a model.
"""

import json

from keras_transformer.export.staging import ExportError

MAX_BATCH_SIZE = 64
DATA_TYPES = {
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "string": "TYPE_STRING",
}


class Enum(str):
    """A value that is written without quotes."""


def batch_size(inputs, outputs, asked):
    """The largest batch that Triton may make, 0 for none; raises where more is asked for."""
    if asked is not None and asked < 0:
        raise ValueError(f"`max_batch_size` must be at least 0, got {asked}.")
    fixed = [value["name"] for value in (*inputs, *outputs) if _first(value) != "batch"]
    if not fixed:
        return MAX_BATCH_SIZE if asked is None else asked
    if asked:
        raise ExportError(
            f"Triton can make no batches for this model: {', '.join(fixed)} has no batch axis of "
            "any size. Leave `max_batch_size` out, and send batches."
        )
    return 0


def _first(value):
    return value["axes"][0] if value["axes"] else None


def tensor(value, batched):
    """An input or output as the configuration lists it.

    With batches the first axis is Triton's own and left out. A tensor of no other axis has one of
    size 1 in requests; so has a scalar, which is there without batches only.
    """
    axes = value["axes"][1:] if batched else value["axes"]
    dims = [axis if isinstance(axis, int) else -1 for axis in axes]
    listed = {"name": value["name"], "data_type": Enum(DATA_TYPES[value["dtype"]])}
    if dims:
        return {**listed, "dims": dims}
    return {**listed, "dims": [1], **({"reshape": {"shape": []}} if batched else {})}


def text_format(message, indent=""):
    """A message as protocol buffers write it in text: a dict, with lists where fields repeat."""
    lines = []
    for name, value in message.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [_field(name, item, indent) for item in value]
        else:
            lines.append(_field(name, value, indent))
    return "".join(lines)


def _field(name, value, indent):
    if isinstance(value, dict):
        return f"{indent}{name} {{\n{text_format(value, indent + '  ')}{indent}}}\n"
    if isinstance(value, list):
        return f"{indent}{name}: [{', '.join(map(_scalar, value))}]\n"
    return f"{indent}{name}: {_scalar(value)}\n"


def _scalar(value):
    plain = isinstance(value, Enum | int)
    return str(value) if plain else json.dumps(value, ensure_ascii=False)
