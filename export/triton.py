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
from types import SimpleNamespace
from typing import Any

import onnxruntime

from keras_transformer.call_options import check_number
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import engine_of
from keras_transformer.export.artefact.reader import Artefact, read_artefact
from keras_transformer.export.artefact.signature import ONNX_RUNTIME
from keras_transformer.export.exporter import Format, Rule, check_rules, export
from keras_transformer.export.staging import ExportError, Progress, WhyNot
from keras_transformer.types import StrPath

CONFIG_FILE = "config.pbtxt"
VERSION = "1"
MAX_BATCH_SIZE = 64
DEVICES = {"cpu": "KIND_CPU", "gpu": "KIND_GPU"}
# Precisions beside float32; the first one is advice.
PRECISIONS = {
    "cpu": ("int8", *sorted(set(signature.PRECISIONS) - {"float16", "int8", "float32"})),
    "gpu": ("float16",),
}
DATA_TYPES = {
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "string": "TYPE_STRING",
}


RULES = (
    Rule(
        ValueError,
        lambda a: not re.fullmatch(r"[\w.-]*\w[\w.-]*", a.name),
        lambda a: f"`name` must be letters, digits, '_', '-' and '.', got {a.name!r}.",
    ),
    Rule(
        ValueError,
        lambda a: a.device not in DEVICES,
        lambda a: f"`device` must be one of {list(DEVICES)}, got {a.device!r}.",
    ),
    # Of an artefact that Triton's ONNX Runtime backend serves.
    Rule(
        ExportError,
        lambda a: engine_of(a.manifest) != ONNX_RUNTIME,
        lambda a: (
            f"{a.folder} was exported for {engine_of(a.manifest)}, and Triton's backend is ONNX "
            "Runtime. Export the model with export_onnx."
        ),
    ),
    Rule(
        ExportError,
        lambda a: a.manifest.get("layout", "loop") != "loop",
        lambda a: (
            f"{a.folder} has the layout {a.manifest['layout']!r}: the loop of its search is "
            "outside of the graph, but Triton runs one graph per request. Export the model with "
            "layout='loop'."
        ),
    ),
    Rule(
        ExportError,
        lambda a: a.text and a.manifest["text"] is None,
        lambda a: f"{a.folder} holds no text model. Export the model with text=True.",
    ),
    Rule(
        ExportError,
        lambda a: a.text and not a.op_library,
        lambda a: (
            "The text model needs the operators of onnxruntime-extensions: pass the path of that "
            "library on the server as `op_library`. The one in Python's package does not load "
            "without Python; take the one for C++, libortextensions.so."
        ),
    ),
    Rule(
        ExportError,
        lambda a: a.op_library and not a.text,
        lambda a: "`op_library` goes with `text`: the model of ids needs no library.",
    ),
    Rule(
        ExportError,
        lambda a: a.manifest["precision"] not in ("float32", *PRECISIONS[a.device]),
        lambda a: (
            f"{a.folder} has precision {a.manifest['precision']!r}, which is not for "
            f"device={a.device!r}. Export the model with precision='float32' or "
            f"{PRECISIONS[a.device][0]!r}, or choose the other device."
        ),
    ),
)


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
    for what, value, least in (
        ("instances", instances, 1),
        ("threads", threads, 1),
        ("max_batch_size", max_batch_size, 0),
        ("queue_delay", queue_delay, 0),
    ):
        if value is not None:
            check_number(value, f"`{what}`", numbers.Integral, least)
    artefact = read_artefact(folder)
    chosen = {"name": name, "text": text, "op_library": op_library, "device": device}
    check_rules(RULES, SimpleNamespace(**chosen, **artefact._asdict()))
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
    export(repository / name, TritonModel(artefact, text, config), verbose=False)
    return repository / name


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


def why_not_triton(folder: pathlib.Path) -> str | None:
    """Returns why a folder is not a result of `export_triton`, or `None`."""
    odd = sorted({item.name for item in folder.iterdir()} - {CONFIG_FILE, VERSION})
    if odd:
        return f"{odd[0]} is not a file of such an export"
    if not (folder / CONFIG_FILE).is_file():
        return f"it has no {CONFIG_FILE}"
    return None


class TritonModel(Format):
    """A model of a repository: files of an artefact, which was proven before, and `config.pbtxt`.

    Args:
        artefact: `Artefact`.
        text: whether the model is the text model.
        config: the content of `config.pbtxt`, a dict.
    """

    why_not: WhyNot = staticmethod(why_not_triton)

    def __init__(self, artefact: Artefact, text: bool, config: Mapping[str, Any]) -> None:
        self.artefact: Artefact = artefact
        self.text: bool = text
        self.config: Mapping[str, Any] = config

    def write(self, folder: pathlib.Path, progress: Progress) -> None:
        (folder / CONFIG_FILE).write_text(_text_format(self.config) + "\n", "utf-8")
        source, model, place = self.artefact.folder, signature.MODEL_FILE, folder / VERSION
        files = {signature.TEXT_MODEL_FILE if self.text else model: model}
        if not self.text and signature.WEIGHTS_FILE in self.artefact.manifest["files"]:
            place /= model  # several files are a folder in Triton
            files[signature.WEIGHTS_FILE] = signature.WEIGHTS_FILE
        place.mkdir(parents=True)
        for name, other in files.items():
            shutil.copyfile(source / name, place / other)
