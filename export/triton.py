"""A Triton model repository made of an exported artefact: its files, and `config.pbtxt`.

    export_triton("out/onnx", "repository", "translator")
    python -m keras_transformer.export.triton out/onnx repository --name translator

`triton_config` says what the configuration holds. No framework is needed, and no Triton.
"""

import argparse
import pathlib
import re
import shutil
import sys

import onnxruntime

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.staging import ExportError, staged
from keras_transformer.export.triton_config import Enum, batch_size, tensor, text_format

CONFIG_FILE = "config.pbtxt"
VERSION = "1"
DEVICES = {"cpu": "KIND_CPU", "gpu": "KIND_GPU"}


def export_triton(
    folder,
    repository,
    name=None,
    *,
    text=False,
    op_library=None,
    device="cpu",
    instances=1,
    threads=None,
    max_batch_size=None,
    queue_delay=2000,
):
    """Writes an artefact into a model repository of NVIDIA's Triton Inference Server.

    The repository gets the folder `NAME` with `config.pbtxt` and version 1 of the model. Requests
    are joined to batches by Triton (dynamic batching) where the model takes batches of any size.
    Triton pads nothing: it joins requests of equal shapes only.

    Args:
        folder: what `export_onnx` wrote, with the default layout.
        repository: folder of the model repository.
        name: str, of the model. Defaults to `None`: the name of `folder`.
        text: bool, serve the text model, strings in and out, which the artefact then must have.
        op_library: str, path on the server of the library of onnxruntime-extensions for C++, such
            as "/opt/libortextensions.so"; with `text` only, and needed there.
        device: "cpu" or "gpu".
        instances: int, copies of the model that run at the same time: on each GPU, if on GPUs.
        threads: int, threads of a batch on CPUs. Defaults to `None`: every core.
        max_batch_size: int, most rows of a batch; 0 for no batches by Triton. Defaults to `None`:
            64, or 0 where a batch has a fixed size or another input, such as the seed of sampling,
            holds for all of a batch.
        queue_delay: int, microseconds that a request may wait for others.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ExportError: the artefact cannot be served in this way, or the folder cannot be written.
        ArtefactError: the artefact is damaged, or none.
        ValueError: an argument that nobody can mean.

    Example:

    >>> export_triton("out/onnx", "repository", "translator")  # doctest: +SKIP
    PosixPath('repository/translator')
    """
    folder, repository = pathlib.Path(folder), pathlib.Path(repository)
    name = folder.absolute().name if name is None else name
    _check_arguments(name, device, instances, threads, queue_delay)
    artefact = read_artefact(folder)
    _check_artefact(artefact, text, op_library, device)
    inputs, outputs = _values(artefact, text)
    config = {
        "name": name,
        "backend": "onnxruntime",
        "max_batch_size": batch_size(inputs, outputs, max_batch_size),
    }
    batched = config["max_batch_size"] > 0
    config["input"] = [tensor(value, batched) for value in inputs]
    config["output"] = [tensor(value, batched) for value in outputs]
    config["instance_group"] = [{"count": instances, "kind": Enum(DEVICES[device])}]
    if batched:
        config["dynamic_batching"] = {"max_queue_delay_microseconds": queue_delay}
    if threads is not None:
        count = {"string_value": str(threads)}
        config["parameters"] = [{"key": "intra_op_thread_count", "value": count}]
    if text:
        config["model_operations"] = {"op_library_filename": [op_library]}
    with staged(repository / name, why_not_triton) as aside:
        _copy_model(artefact, text, aside / VERSION)
        (aside / CONFIG_FILE).write_text(text_format(config), "utf-8")
    return repository / name


def _check_arguments(name, device, instances, threads, queue_delay):
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*", name):
        raise ValueError(f"`name` must be letters, digits, '_', '-' and '.', got {name!r}.")
    if device not in DEVICES:
        raise ValueError(f"`device` must be one of {list(DEVICES)}, got {device!r}.")
    for what, value, least in (
        ("instances", instances, 1),
        ("threads", threads, 1),
        ("queue_delay", queue_delay, 0),
    ):
        if value is not None and value < least:
            raise ValueError(f"`{what}` must be at least {least}, got {value}.")


def _check_artefact(artefact, text, op_library, device):
    """Raises `ExportError` for what Triton's ONNX Runtime backend does not serve in this way."""
    manifest, folder = artefact.manifest, artefact.folder
    layout, precision = manifest.get("layout", "loop"), manifest["precision"]
    if layout != "loop":
        raise ExportError(
            f"{folder} has the layout {layout!r}: the loop of its search is outside of the graph, "
            "and Triton runs one graph a request. Export the model with layout='loop'."
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


def _values(artefact, text):
    """Inputs and outputs with the shapes that ONNX Runtime has for them, which Triton asks for.

    A length that follows from the graph is a number there, whatever the artefact calls its axis.
    """
    manifest = artefact.manifest
    if text:  # its strings come from operators of whose shapes nothing is known
        return manifest["text"]["inputs"], manifest["text"]["outputs"]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        artefact.model, options, providers=["CPUExecutionProvider"]
    )
    shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    return [
        [{**value, "axes": shapes[value["name"]]} for value in manifest[side]]
        for side in ("inputs", "outputs")
    ]


def _copy_model(artefact, text, folder):
    """Copies the model to where Triton looks for it: a file, or a folder if there are several."""
    folder.mkdir()
    if text:
        shutil.copyfile(artefact.folder / signature.TEXT_MODEL_FILE, folder / signature.MODEL_FILE)
        return
    weights = artefact.folder / signature.WEIGHTS_FILE
    if signature.WEIGHTS_FILE in artefact.manifest["files"]:
        folder = folder / signature.MODEL_FILE
        folder.mkdir()
        shutil.copyfile(weights, folder / signature.WEIGHTS_FILE)
    shutil.copyfile(artefact.model, folder / signature.MODEL_FILE)


def why_not_triton(folder):
    """Why a folder is not what `export_triton` wrote, or None."""
    known = {CONFIG_FILE, VERSION}
    odd = sorted(item.name for item in folder.iterdir() if item.name not in known)
    if odd:
        return f"{odd[0]} is no file of such an export"
    if not (folder / CONFIG_FILE).is_file():
        return f"it has no {CONFIG_FILE}"
    return None


def main(arguments=None):
    """The command line. Returns the exit status: 0, or 1 with the reason told."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export.triton",
        description="Writes an artefact into a model repository of Triton Inference Server.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("folder", help="what export_onnx wrote")
    parser.add_argument("repository", help="folder of the model repository")
    parser.add_argument("--name", help="of the model (the folder's)")
    parser.add_argument("--text", action="store_true", help="serve the text model")
    parser.add_argument(
        "--op-library", metavar="PATH", help="onnxruntime-extensions on the server; with --text"
    )
    parser.add_argument("--device", choices=DEVICES, help="(cpu)")
    parser.add_argument("--instances", type=int, metavar="N", help="copies of the model (1)")
    parser.add_argument("--threads", type=int, metavar="N", help="of a batch (every core)")
    parser.add_argument("--max-batch-size", type=int, metavar="N", help="(64), or 0 for none")
    parser.add_argument(
        "--queue-delay", type=int, metavar="N", help="microseconds that a request may wait (2000)"
    )
    options = vars(parser.parse_args(arguments))
    try:
        print(export_triton(options.pop("folder"), options.pop("repository"), **options))
    except (ExportError, OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
