"""The files of a checkpoint in the way of Hugging Face: `config.json` and tensors by name.

`safetensors` files are read with NumPy. A `pytorch_model.bin` is a pickle: it is read where PyTorch
is installed, and only as weights, so that code in it is refused and never run.
"""

import json
import pathlib

import numpy as np

from keras_transformer.layers.feed_forward import gelu_tanh

# Hugging Face's names of activations: Keras' names, or functions.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": gelu_tanh,
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def read_config(folder, model_type, defaults, fixed=()):
    """The configuration of a checkpoint, a dict.

    Args:
        folder: str or path.
        model_type: "marian" and so on, the architecture that it must be of.
        defaults: dict of values that `config.json` may leave out.
        fixed: dict of values that our model has no choice of; a configuration may not say
            otherwise.

    Raises:
        OSError: `config.json` is missing.
        ValueError: it is no JSON object, of another architecture, or says what our model cannot do.
    """
    path = pathlib.Path(folder) / "config.json"
    config = read_json(path)
    found = config.get("model_type")
    if found != model_type:
        raise ValueError(
            f"{path} is of the architecture {found!r}, but this importer reads {model_type!r}. "
            "Use the importer of that name, if there is one."
        )
    config = {**defaults, **config}
    for name, expected in dict(fixed).items():
        if config.get(name, expected) != expected:
            raise ValueError(
                f"{path} says {name}={config[name]!r}, but our model can only do {expected!r}."
            )
    return config


def read_json(path):
    """A JSON object as a dict; raises `ValueError` unless the file is one."""
    try:
        read = json.loads(pathlib.Path(path).read_text("utf-8"))
    except ValueError as error:  # of JSON or of UTF-8
        raise ValueError(f"{path} is no JSON file: {error}.") from error
    if not isinstance(read, dict):
        raise ValueError(f"{path} must hold a JSON object, but holds a {type(read).__name__}.")
    return read


def activation(config, name):
    """Our name of the activation that a configuration has under `name`."""
    if config[name] not in ACTIVATIONS:
        raise ValueError(f"{name} is {config[name]!r}, but these are known: {sorted(ACTIVATIONS)}.")
    return ACTIVATIONS[config[name]]


def need(config, *names):
    """The values of a configuration under these names; raises `ValueError` if one is missing."""
    missing = [name for name in names if config.get(name) is None]
    if missing:
        raise ValueError(f"config.json lacks {missing}, without which there is no model.")
    return [config[name] for name in names]


def read_tensors(folder):
    """All tensors of a checkpoint, `{name: float32 array}`.

    Args:
        folder: str or path, with `model.safetensors`, or `model.safetensors.index.json` and the
            files that it names, or `pytorch_model.bin`.

    Raises:
        FileNotFoundError: there is none of them.
        ValueError: a file is truncated or something else, or a pickle that holds more than weights.
        ImportError: `safetensors`, or for a `.bin` PyTorch, is not installed.
    """
    folder = pathlib.Path(folder)
    index, pickled = folder / "model.safetensors.index.json", folder / "pytorch_model.bin"
    if (folder / "model.safetensors").exists():
        tensors = _read_safetensors(folder / "model.safetensors")
    elif index.exists():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        if any(pathlib.Path(name).name != name for name in names):
            raise ValueError(f"{index} names files outside of its folder: {names}.")
        tensors = {}
        for name in names:
            tensors.update(_read_safetensors(folder / name))
    elif pickled.exists():
        tensors = _read_pickle(pickled)
    else:
        raise FileNotFoundError(
            f"{folder} has neither model.safetensors nor pytorch_model.bin. Is it the folder of a "
            "checkpoint?"
        )
    return {name: np.asarray(array, np.float32) for name, array in tensors.items()}


def _read_safetensors(path):
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError as error:
        raise ImportError(
            "Reading .safetensors needs the package of that name. Install it with: "
            "pip install 'keras-transformer-onnx[import]'"
        ) from error
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is no whole safetensors file: {error}.") from error


def _read_pickle(path):
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"{path.name} is PyTorch's: reading it needs torch, or save the model as "
            "model.safetensors."
        ) from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except Exception as error:  # PyTorch raises many kinds, by what is wrong with the file
        raise ValueError(
            f"{path} could not be read as a dict of tensors and nothing else: "
            f"{(str(error).splitlines() or [type(error).__name__])[0]}"
        ) from error
