"""The files of a checkpoint in the way of Hugging Face: `config.json` and tensors by name.

`safetensors` files are read with NumPy. A `pytorch_model.bin` is a pickle: it is read where PyTorch
is installed, and only as weights, so that code in it is refused and never run.
"""

import json
import os
import pathlib
import zipfile
from collections.abc import Iterable

import numpy as np

from keras_transformer.layers.blocks import gelu_tanh

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


def read_config(folder, model_type, needed, defaults, fixed=()):
    """The configuration of a checkpoint, a dict.

    Args:
        folder: str or path.
        model_type: "marian" and so on, the architecture that it must be of.
        needed: names of sizes and ids, integers of at least 0, of which none may be null.
        defaults: dict of values that `config.json` may leave out. Its values are of the same kind;
            integers where the default is `None`.
        fixed: dict of values that our model has no choice of; a configuration may not say
            otherwise.

    Raises:
        OSError: `config.json` is missing.
        ValueError: it is no JSON object, of another architecture, lacks a value, has one of another
            kind, or says what our model cannot do.
    """
    path = pathlib.Path(folder) / "config.json"
    read = read_json(path)
    config = {**defaults, **{n: v for n, v in read.items() if v is not None or n in needed}}
    found = config.get("model_type")
    if found != model_type:
        raise ValueError(
            f"{path} is of the architecture {_short(found)}, but this importer reads "
            f"{model_type!r}. Use the importer of that name, if there is one."
        )
    missing = [name for name in needed if config.get(name) is None]
    if missing:
        raise ValueError(f"{path} lacks {missing}, without which there is no model.")
    for name, expected in dict(fixed).items():
        if config.get(name, expected) != expected:
            raise ValueError(
                f"{path} says {name}={_short(config[name])}, but our model can only do "
                f"{expected!r}."
            )
    for name in (*needed, *defaults):
        _check_kind(path, name, config[name], defaults.get(name))
    return config


def _check_kind(path: pathlib.Path, name: str, value: object, default: object) -> None:
    """Raises `ValueError` unless a value is of the kind of its default, or a count without one."""
    kind = int if default is None else type(default)
    fits = type(value) is kind or kind is float and type(value) is int or value is default
    if not fits or kind is int and value is not None and value < 0:
        expected = {int: "an integer of at least 0", float: "a number", bool: "true or false"}
        raise ValueError(
            f"{path} says {name}={_short(value)}, but {expected.get(kind, 'a text')} is needed. Is "
            "the file damaged?"
        )


def _short(value: object) -> str:
    return repr(value)[:100]


def check_sizes(
    path: str | os.PathLike,
    config: dict,
    tensors: dict[str, np.ndarray],
    sizes: Iterable[str],
    layers: Iterable[str],
) -> None:
    """Raises `ValueError` if tensors cannot have the sizes that a configuration says.

    Call it before anything of these sizes is made: a configuration may say any number.

    Args:
        path: the file of the configuration.
        config: dict of the configuration.
        tensors: `{their name: array}`.
        sizes: names of lengths of axes, and of what an axis is divided into.
        layers: names of numbers of layers.
    """
    longest = max((length for array in tensors.values() for length in array.shape), default=0)
    wrong = [name for name in sizes if not 0 < config[name] <= longest]
    wrong += [name for name in layers if config[name] > len(tensors)]
    if wrong:
        raise ValueError(
            f"{path} says {', '.join(f'{name}={_short(config[name])}' for name in wrong)}, but the "
            f"checkpoint has {len(tensors)} tensors with axes of 1 to {longest}. Are the files of "
            "one model?"
        )


def read_json(path):
    """A JSON object as a dict; raises `ValueError` unless the file is one."""
    try:
        read = json.loads(pathlib.Path(path).read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # of JSON, of UTF-8, or nested too deeply
        raise ValueError(f"{path} is no JSON file: {error}.") from error
    if not isinstance(read, dict):
        raise ValueError(f"{path} must hold a JSON object, but holds a {type(read).__name__}.")
    return read


def check_ids(path: str | os.PathLike, ids: object) -> dict[str, int]:
    """`ids`; raises `ValueError` unless it is a dict from piece to id, as a vocabulary is."""
    if not isinstance(ids, dict) or any(type(number) is not int for number in ids.values()):
        raise ValueError(
            f"{path} must hold a vocabulary, an object from pieces to integers, but holds "
            f"{_short(ids)}. Is it the right file?"
        )
    return ids


def activation(config, name):
    """Our name of the activation that a configuration has under `name`."""
    if config[name] not in ACTIVATIONS:
        raise ValueError(
            f"{name} is {_short(config[name])}, but these are known: {sorted(ACTIVATIONS)}."
        )
    return ACTIVATIONS[config[name]]


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
        files = read_json(index).get("weight_map")
        if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
            raise ValueError(
                f"{index} has no weight_map from tensors to files, but {_short(files)}. Copy it "
                "anew."
            )
        names = sorted(set(files.values()))
        if any(pathlib.Path(name).name != name for name in names):
            raise ValueError(f"{index} names files outside of its folder: {_short(names)}.")
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
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # such as 8-bit floats
        raise ValueError(
            f"{path} holds numbers of a type that NumPy does not have ({error}). Save the model as "
            "float32."
        ) from error


def _read_pickle(path):
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"{path.name} is PyTorch's: reading it needs torch, or save the model as "
            "model.safetensors."
        ) from error
    try:
        size = path.stat().st_size
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:  # PyTorch compresses nothing
                _check_room("its parts have", sum(part.file_size for part in file.infolist()), size)
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name, tensor in state.items():
            _check_room(f"{name!r} has", tensor.numel() * tensor.element_size(), size)
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except Exception as error:  # PyTorch raises many kinds, by what is wrong with the file
        raise ValueError(
            f"{path} could not be read as a dict of tensors and nothing else: "
            f"{(str(error).splitlines() or [type(error).__name__])[0]}"
        ) from error


def _check_room(what: str, needed: int, size: int) -> None:
    if needed > size:
        raise ValueError(f"{what} {needed:,} bytes, more than the {size:,} of the file")
