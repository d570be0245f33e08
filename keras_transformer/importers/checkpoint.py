"""Checkpoints in Hugging Face's layout: `config.json` and tensors by name.

NumPy reads `safetensors` files. PyTorch, where it is installed, reads a `pytorch_model.bin`. That
file is a pickle: PyTorch loads only weights, and refuses code in it.
"""

import json
import pathlib
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_transformer.importers import activations
from keras_transformer.types import Array, StrPath, Tensor

# By origin: a pattern of a file that its folders hold. `tables.Origin` adds its entry.
FILES: dict[str, str] = {}


def check_origin(folder: StrPath, origin: str) -> None:
    """Checks that a folder may hold a model of an origin.

    Args:
        folder: str or path-like.
        origin: str, the name of an importer.

    Raises:
        OSError: there is no such folder, or it lacks the origin's files.
        ValueError: it holds a model of another origin; the message names the importer.
    """
    path = pathlib.Path(folder)
    advice = "Pass the folder with the published files of a model."
    if not path.is_dir():
        reason = "is a file" if path.exists() else "does not exist"
        raise NotADirectoryError(f"{path} {reason}. {advice}")
    if (found := _origin_of(path)) not in (None, origin):
        raise ValueError(
            f"{path} holds a model of {found}, but this importer reads {origin}. Use the importer "
            f"{found}."
        )
    if not any(path.glob(FILES[origin])):
        raise FileNotFoundError(
            f"{path} has no {FILES[origin]}, so it holds no model of {origin}. {advice}"
        )


def _origin_of(folder: pathlib.Path) -> str | None:
    """Returns the importer of a folder's files, or `None`."""
    config = folder / "config.json"
    if (folder / "model.bin").exists() and config.exists():
        return "ctranslate2"
    if not config.exists():
        spm = any(folder.glob("*vocab*.spm")) and any(folder.glob("model*.bin"))
        return "bergamot" if spm else None
    read = read_json(config)
    if str(read.get("module")).startswith("keras_hub"):
        return "keras_hub"
    decoder = read.get("decoder")  # of a model that reads pictures
    kind = (decoder if isinstance(decoder, dict) else read).get("model_type")
    return kind if isinstance(kind, str) and FILES.get(kind) == config.name else None


@dataclass(frozen=True)
class HuggingFace:
    """The files of a model in Hugging Face's layout: its configuration and its tensors.

    Attributes:
        model_type: str, the expected architecture, such as "marian".
        sizes: names of lengths of axes, and of numbers that divide an axis.
        layers: names of numbers of layers.
        more_sizes: names of sizes that have a default.
        ids: names of ids. Sizes, layers and ids are integers of at least 0, and never null.
        defaults: dict of values that `config.json` may omit. A given value must have the type of
            its default; where the default is `None` it must be an integer.
        fixed: dict of the only values that our model supports.
        equal: groups of names whose values must be equal, or null.
    """

    model_type: str
    sizes: tuple[str, ...]
    layers: tuple[str, ...]
    ids: tuple[str, ...] = ()
    more_sizes: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    equal: tuple[tuple[str, ...], ...] = ()

    def read_config(self, folder: pathlib.Path) -> dict[str, Any]:
        """Reads and checks `config.json`.

        Raises:
            OSError: the folder or the file is missing.
            ValueError: a folder of another origin; or the file is not a JSON object, describes
                another architecture, lacks a value, or has a value of another type or one that our
                model does not support.
        """
        check_origin(folder, self.model_type)
        path = folder / "config.json"
        return self.check(path, read_json(path))

    def check(self, path: pathlib.Path, read: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a configuration with all defaults, see `read_config`. `path` is of its file."""
        needed = (*self.sizes, *self.layers, *self.ids)
        given = {name: value for name, value in read.items() if value is not None or name in needed}
        config = {**self.defaults, **given}
        found = config.get("model_type")
        if found != self.model_type:
            raise ValueError(
                f"{path} describes the architecture {_short(found)}, but this importer reads "
                f"{self.model_type!r}. No importer reads that one: {', '.join(sorted(FILES))} "
                "exist."
            )
        missing = [name for name in needed if config.get(name) is None]
        if missing:
            raise ValueError(f"{path} lacks {missing}, which the model needs.")
        for name, expected in self.fixed.items():
            if config.get(name, expected) != expected:
                raise ValueError(
                    f"{path} says {name}={_short(config[name])}, but our model supports only "
                    f"{expected!r}."
                )
        for name in (*needed, *self.defaults):
            _check_kind(path, name, config[name], self.defaults.get(name))
        for names in self.equal:
            given = {name: config[name] for name in names if config[name] is not None}
            if len({*given.values()}) > 1:
                raise ValueError(
                    f"{path} says {given}, but the two sides of our model have the same heads and "
                    "feed-forward networks, so all of these must be equal."
                )
        return config

    def read_files(self, folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Array]]:
        """Reads the configuration and all tensors by name, and compares their sizes."""
        config, tensors = self.read_config(folder), read_tensors(folder)
        sizes = [name for name in (*self.sizes, *self.more_sizes) if config[name] is not None]
        check_sizes(folder / "config.json", config, tensors, sizes, self.layers)
        return config, tensors


def _check_kind(path: pathlib.Path, name: str, value: object, default: object) -> None:
    """Raises `ValueError` unless a value has its default's type; without default it is a count."""
    kind = int if default is None else type(default)
    fits = type(value) is kind or kind is float and type(value) is int or value is default
    if not fits or kind is int and value is not None and value < 0:
        expected = {int: "an integer of at least 0", float: "a number", bool: "true or false"}
        raise ValueError(
            f"{path} says {name}={_short(value)}, but must say {expected.get(kind, 'a string')}. "
            "The file may be damaged: copy it again."
        )


def _short(value: object) -> str:
    return repr(value)[:100]


def check_sizes(
    path: StrPath,
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    sizes: Iterable[str],
    layers: Iterable[str],
) -> None:
    """Raises `ValueError` if the tensors cannot have the sizes that a configuration gives.

    Call it before you create arrays of these sizes: a configuration may hold any number.

    Args:
        path: the file of the configuration.
        config: dict, the configuration.
        tensors: dict from the origin's name to array.
        sizes: keys of lengths of axes, and of numbers that divide an axis.
        layers: keys of numbers of layers.
    """
    longest = max((length for array in tensors.values() for length in array.shape), default=0)
    wrong = [name for name in sizes if not 0 < config[name] <= longest]
    wrong += [name for name in layers if config[name] > len(tensors)]
    if wrong:
        raise ValueError(
            f"{path} says {', '.join(f'{name}={_short(config[name])}' for name in wrong)}, but the "
            f"checkpoint has {len(tensors)} tensors with axes of 1 to {longest}. Check that both "
            "files belong to one model, and that no tensor is missing."
        )


def read_json(path: StrPath, optional: bool = False) -> dict[str, Any]:
    """Reads a JSON object as a dict. Raises `ValueError` for any other content.

    If the file is `optional`, a missing one is an empty dict.
    """
    if optional and not pathlib.Path(path).exists():
        return {}
    try:
        read = json.loads(pathlib.Path(path).read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # of JSON, of UTF-8, or nested too deeply
        raise ValueError(f"{path} is no JSON file: {error}.") from error
    if not isinstance(read, dict):
        raise ValueError(f"{path} must hold a JSON object, but holds a {type(read).__name__}.")
    return read


def check_ids(path: StrPath, ids: Any) -> dict[str, int]:
    """Returns `ids`, a vocabulary. Raises `ValueError` unless it is a dict from piece to id."""
    if not isinstance(ids, dict) or any(type(number) is not int for number in ids.values()):
        raise ValueError(
            f"{path} must hold a vocabulary, an object from pieces to integers, but holds "
            f"{_short(ids)}. Check that it is the right file."
        )
    return ids


def activation(config: Mapping[str, Any], name: str) -> str | Callable[[Tensor], Tensor]:
    """Returns our name of the activation `config[name]`, or its function."""
    return activations.named(activations.HUGGING_FACE, config[name], name)


def tied(config: Mapping[str, Any], kernel: str, table: str) -> dict[str, str]:
    """Returns the copies of `tables.Table`: the matrix of the logits, if it is the embedding's."""
    return {kernel: table} if config["tie_word_embeddings"] else {}


def read_tensors(folder: StrPath) -> dict[str, Array]:
    """Reads all tensors of a checkpoint, a dict from name to float32 array.

    Args:
        folder: str or path-like, with `model.safetensors`, or
            `model.safetensors.index.json` and its files, or `pytorch_model.bin`.

    Raises:
        FileNotFoundError: none of these files exists.
        ValueError: a file is truncated or of another format, or a pickle that holds more than
            weights.
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
                f"{index} must have a weight_map from tensors to files, but has {_short(files)}. "
                "Copy it again."
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
            f"{folder} has neither model.safetensors nor pytorch_model.bin. Pass the folder of a "
            "checkpoint."
        )
    return {name: np.asarray(array, np.float32) for name, array in tensors.items()}


def _read_safetensors(path: pathlib.Path) -> dict[str, Array]:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError as error:
        raise ImportError(
            "Reading .safetensors needs the package safetensors. Install it with: "
            "pip install 'keras-transformer-onnx[train]'"
        ) from error
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is no complete safetensors file: {error}.") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # such as 8-bit floats
        raise ValueError(
            f"{path} holds a number type that NumPy lacks ({error}). Save the model as float32."
        ) from error


def _read_pickle(path: pathlib.Path) -> dict[str, Array]:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"Reading {path.name} needs PyTorch. Install torch, or save the model as "
            "model.safetensors."
        ) from error
    try:
        size = path.stat().st_size
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:  # PyTorch stores its parts uncompressed
                _check_room("its parts have", sum(part.file_size for part in file.infolist()), size)
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name, tensor in state.items():
            _check_room(f"{name!r} has", tensor.numel() * tensor.element_size(), size)
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except Exception as error:  # PyTorch raises many types, depending on the damage
        raise ValueError(
            f"{path} could not be read as a dict of tensors: "
            f"{(str(error).splitlines() or [type(error).__name__])[0]}"
        ) from error


def _check_room(what: str, needed: int, size: int) -> None:
    if needed > size:
        raise ValueError(f"{what} {needed:,} bytes, more than the {size:,} of the file")
