"""Export of an artefact to a Triton model repository: its files and `config.pbtxt`.

    export_triton("out/onnx", "repository", "translator")
    python -m keras_transformer.export out/onnx repository --format triton --name translator

The export needs no framework and no Triton. Triton's `model_config.proto` defines the fields of the
configuration. Shapes follow the rules that Triton's ONNX Runtime backend checks when it
loads a model.
"""

import json
import numbers
import pathlib
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime

from keras_transformer.call_options import check_number
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import Artefact, read_artefact
from keras_transformer.export.staging import ExportError, staged
from keras_transformer.types import StrPath

CONFIG_FILE = "config.pbtxt"
VERSION = "1"
MAX_BATCH_SIZE = 64
DEVICES = {"cpu": "KIND_CPU", "gpu": "KIND_GPU"}
DATA_TYPES = {
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "string": "TYPE_STRING",
}


class Enum(str):
    """A value that protocol buffers write without quotes."""


def export_triton(
    folder: StrPath,
    repository: StrPath,
    name: str | None = None,
    *,
    text: bool = False,
    op_library: str | None = None,
    device: str = "cpu",
    instances: int = 1,
    threads: int | None = None,
    max_batch_size: int | None = None,
    queue_delay: int = 2000,
) -> pathlib.Path:
    """Writes an artefact into a model repository of NVIDIA's Triton Inference Server.

    The repository gets the folder `NAME` with `config.pbtxt` and version 1 of the model. If the
    model takes batches of any size, Triton joins requests to batches (dynamic batching). Triton
    does not pad, so it joins only requests of equal shapes.

    Args:
        folder: result of `export_onnx` with the default layout.
        repository: folder of the model repository.
        name: name of the model. Defaults to `None`: the name of `folder`.
        text: whether to serve the artefact's text model, strings in and out. Defaults to `False`.
        op_library: path on the server of the library of onnxruntime-extensions for C++, such as
            "/opt/libortextensions.so". `text` needs it. Defaults to `None`.
        device: "cpu" or "gpu". Defaults to "cpu".
        instances: copies of the model that run at the same time, on each GPU if there are GPUs.
            Defaults to 1.
        threads: threads of a batch on CPUs. Defaults to `None`: every core.
        max_batch_size: maximum rows of a batch; 0 disables batching. Defaults to `None`: 64, or 0
            if a batch has a fixed size or an input such as the seed of sampling holds for the whole
            batch.
        queue_delay: microseconds that a request may wait for others. Defaults to 2000.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ExportError: Triton cannot serve the artefact, or the folder cannot be written.
        ArtefactError: `folder` is damaged or not an artefact.
        TypeError, ValueError: an invalid argument.

    Example:

    >>> export_triton("out/onnx", "repository", "translator")  # doctest: +SKIP
    PosixPath('repository/translator')
    """
    folder, repository = pathlib.Path(folder), pathlib.Path(repository)
    name = folder.absolute().name if name is None else name
    _check_arguments(name, device, instances, threads, max_batch_size, queue_delay)
    artefact = read_artefact(folder)
    _check_artefact(artefact, text, op_library, device)
    inputs, outputs = _values(artefact, text)
    size = _batch_size([*inputs, *outputs], max_batch_size)
    config = {
        "name": name,
        "backend": "onnxruntime",
        "max_batch_size": size,
        "input": [_tensor(value, size > 0) for value in inputs],
        "output": [_tensor(value, size > 0) for value in outputs],
        "instance_group": [{"count": instances, "kind": Enum(DEVICES[device])}],
    }
    if size > 0:
        config["dynamic_batching"] = {"max_queue_delay_microseconds": queue_delay}
    if threads is not None:
        count = {"string_value": str(threads)}
        config["parameters"] = [{"key": "intra_op_thread_count", "value": count}]
    if text:
        config["model_operations"] = {"op_library_filename": op_library}
    with staged(repository / name, why_not_triton) as aside:
        _copy_model(artefact, text, aside / VERSION)
        (aside / CONFIG_FILE).write_text(_text_format(config) + "\n", "utf-8")
    return repository / name


def _check_arguments(
    name: str,
    device: str,
    instances: int,
    threads: int | None,
    max_batch_size: int | None,
    queue_delay: int,
) -> None:
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*", name):
        raise ValueError(f"`name` must be letters, digits, '_', '-' and '.', got {name!r}.")
    if device not in DEVICES:
        raise ValueError(f"`device` must be one of {list(DEVICES)}, got {device!r}.")
    for what, value, least in (
        ("instances", instances, 1),
        ("threads", threads, 1),
        ("max_batch_size", max_batch_size, 0),
        ("queue_delay", queue_delay, 0),
    ):
        if value is not None:
            check_number(value, f"`{what}`", numbers.Integral, least)


def _check_artefact(artefact: Artefact, text: bool, op_library: str | None, device: str) -> None:
    """Raises `ExportError` if Triton's ONNX Runtime backend cannot serve the artefact."""
    manifest, folder = artefact.manifest, artefact.folder
    layout, precision = manifest.get("layout", "loop"), manifest["precision"]
    if layout != "loop":
        raise ExportError(
            f"{folder} has the layout {layout!r}: the loop of its search is outside of the graph, "
            "but Triton runs one graph per request. Export the model with layout='loop'."
        )
    if text and manifest["text"] is None:
        raise ExportError(f"{folder} holds no text model. Export the model with text=True.")
    if text and not op_library:
        raise ExportError(
            "The text model needs the operators of onnxruntime-extensions: pass the path of that "
            "library on the server as `op_library`. The one in Python's package does not load "
            "without Python; take the one for C++, libortextensions.so."
        )
    if op_library and not text:
        raise ExportError("`op_library` goes with `text`: the model of ids needs no library.")
    if (device == "gpu") != (precision == "float16") and precision != "float32":
        fit = "float16" if device == "gpu" else "int8"
        raise ExportError(
            f"{folder} has precision {precision!r}, which is not for device={device!r}. Export the "
            f"model with precision='float32' or {fit!r}, or choose the other device."
        )


def _values(artefact: Artefact, text: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns inputs and outputs with the shapes that ONNX Runtime infers and Triton checks.

    A length that follows from the graph is a number there; the manifest has the name of its axis.
    """
    manifest = artefact.manifest
    if text:  # ONNX Runtime infers no shapes after operators of strings
        return manifest["text"]["inputs"], manifest["text"]["outputs"]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        artefact.model_path, options, providers=["CPUExecutionProvider"]
    )
    shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    inputs, outputs = (
        [{**value, "axes": shapes[value["name"]]} for value in manifest[side]]
        for side in ("inputs", "outputs")
    )
    return inputs, outputs


def _batch_size(values: Sequence[Mapping[str, Any]], asked: int | None) -> int:
    """Returns the largest batch that Triton may make, or 0; raises if `asked` is impossible."""
    fixed = [value["name"] for value in values if value["axes"][:1] != ["batch"]]
    if not fixed:
        return MAX_BATCH_SIZE if asked is None else asked
    if asked:
        raise ExportError(
            f"Triton cannot make batches for this model: {', '.join(fixed)} has no batch axis of "
            "free size. Leave `max_batch_size` out, and send batches."
        )
    return 0


def _tensor(value: Mapping[str, Any], batched: bool) -> dict[str, Any]:
    """Returns the configuration of an input or output.

    With batching, Triton adds the first axis, so it is left out. A tensor without other axes has
    one of size 1 in requests. So has a scalar, which exists only without batching.
    """
    axes = value["axes"][1:] if batched else value["axes"]
    dims = [axis if isinstance(axis, int) else -1 for axis in axes]
    entry = {"name": value["name"], "data_type": Enum(DATA_TYPES[value["dtype"]])}
    if dims:
        return {**entry, "dims": dims}
    return {**entry, "dims": 1, **({"reshape": {"shape": []}} if batched else {})}


def _text_format(message: Mapping[str, Any], indent: str = "") -> str:
    """Formats a message as text of protocol buffers. A list is a repeated field."""
    lines = []
    for name, value in message.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                lines += [f"{indent}{name} {{", _text_format(item, f"{indent}  "), f"{indent}}}"]
            elif isinstance(item, Enum | int):
                lines.append(f"{indent}{name}: {item}")
            else:
                lines.append(f"{indent}{name}: {json.dumps(item, ensure_ascii=False)}")
    return "\n".join(lines)


def _copy_model(artefact: Artefact, text: bool, folder: pathlib.Path) -> None:
    """Copies the model to its place in Triton: a file, or a folder for several files."""
    folder.mkdir()
    if text:
        shutil.copyfile(artefact.folder / signature.TEXT_MODEL_FILE, folder / signature.MODEL_FILE)
        return
    if signature.WEIGHTS_FILE in artefact.manifest["files"]:
        folder = folder / signature.MODEL_FILE
        folder.mkdir()
        weights = artefact.folder / signature.WEIGHTS_FILE
        shutil.copyfile(weights, folder / signature.WEIGHTS_FILE)
    shutil.copyfile(artefact.model_path, folder / signature.MODEL_FILE)


def why_not_triton(folder: pathlib.Path) -> str | None:
    """Returns why a folder is not a result of `export_triton`, or `None`."""
    odd = sorted({item.name for item in folder.iterdir()} - {CONFIG_FILE, VERSION})
    if odd:
        return f"{odd[0]} is not a file of such an export"
    if not (folder / CONFIG_FILE).is_file():
        return f"it has no {CONFIG_FILE}"
    return None
