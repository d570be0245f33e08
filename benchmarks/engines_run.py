"""Engines of the table of engines: each opens the files of an export and runs them.

An engine is a function from the paths of one file, or of the two files of `layout="steps"`, to a
function from arrays to arrays, both by name. It runs in a separate process without frameworks,
because some engines never return. This module imports an engine when it opens a file.
"""

import base64
import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import workers

Arrays: TypeAlias = Mapping[str, np.ndarray]
Call: TypeAlias = Callable[[Arrays], dict[str, np.ndarray]]


def stepwise(first: Call, step: Call) -> Call:
    """Returns a function that runs the two files of `layout="steps"` as one search.

    `first` gives all tensors that `step` reads. `step` gives the tensors that change, with "next."
    before their names, and whether another step is needed.
    """
    from keras_transformer.export.runtime.steps_session import final_outputs

    def search(inputs: Arrays) -> dict[str, np.ndarray]:
        tensors = first(inputs)
        width, most = tensors["scores"].shape[1], tensors["history"].shape[2]
        steps, unfinished = 0, True
        while unfinished and steps < most:
            found = step(tensors)
            steps, unfinished = steps + 1, bool(found.pop("unfinished"))
            tensors |= {name.removeprefix("next."): array for name, array in found.items()}
        others = [name for name in ("token_scores", "alignments") if name in tensors]
        records = [tensors[name][:, -width:, -steps:] for name in ("history", *others)]
        start = tensors.get("start_length")
        found = final_outputs(records[0], tensors["scores"], start, *records[1:])
        return dict(zip(("token_ids", "scores", *others), found, strict=True))

    return search


def one_by_one(open_file: Callable[[Path], Call]) -> Callable[[Sequence[Path]], Call]:
    """Returns an engine from a function that opens one file."""

    def open_files(paths: Sequence[Path]) -> Call:
        calls = [open_file(path) for path in paths]
        return calls[0] if len(calls) == 1 else stepwise(*calls)

    return open_files


def onnxruntime_session(path: Path, **entries: str) -> Any:
    import onnxruntime

    from keras_transformer.export.runtime.session import session_options

    options = session_options(1, arena=True, spinning=False)
    if written := entries.pop("written", ""):
        options.optimized_model_filepath = written
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def open_onnxruntime(path: Path) -> Call:
    session = onnxruntime_session(path)
    read = {value.name for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]

    def run(inputs: Arrays) -> dict[str, np.ndarray]:
        inputs = {name: array for name, array in inputs.items() if name in read}
        return dict(zip(names, session.run(names, inputs), strict=True))

    return run


def rewritten(rewrite: Callable[[Path, Path], None], suffix: str = ".onnx") -> Any:
    """Returns a function that opens a file in ONNX Runtime after a tool has rewritten it."""

    def open_rewritten(path: Path) -> Call:
        new = Path(tempfile.mkdtemp(dir=path.parent), f"rewritten{suffix}")
        rewrite(path, new)
        return open_onnxruntime(new)

    return open_rewritten


def to_ort(path: Path, new: Path) -> None:
    """Writes a file in the format of ONNX Runtime for phones."""
    onnxruntime_session(path, written=str(new), **{"session.save_model_format": "ORT"})


def optimize(path: Path, new: Path) -> None:
    onnxruntime_session(path, written=str(new))


def slim(path: Path, new: Path) -> None:
    import onnxslim

    onnxslim.slim(str(path), str(new))


def quantize(path: Path, new: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(path, new)


def to_float16(path: Path, new: Path) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), new)


def open_openvino(path: Path) -> Call:
    import openvino

    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(path, "CPU", options)

    def run(inputs: Arrays) -> dict[str, np.ndarray]:
        # A port has several names, of which `get_any_name` may return an internal one.
        ports = {name: port for port in compiled.inputs for name in port.get_names()}
        found = compiled({ports[name]: array for name, array in inputs.items() if name in ports})
        # Copied: the next call writes into the same memory.
        return {
            name: np.array(found[value]) for value in compiled.outputs for name in value.get_names()
        }

    return run


def open_litert(path: Path) -> Call:
    from keras_transformer.export.artefact.options import default_inputs
    from keras_transformer.export.runtime.litert_session import LiteRTSession

    manifest = json.loads((path.parent / "artefact.json").read_text("utf-8"))
    session = LiteRTSession(path, 1, default_inputs(manifest))
    names = [value["name"] for value in manifest["outputs"]]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def open_tract(path: Path) -> Call:
    import onnx
    import tract

    model = tract.onnx().load(str(path))
    names = [model.input_name(i) for i in range(model.input_count())]
    outputs = [value.name for value in onnx.load(path).graph.output]  # tract renames some
    runnable = model.into_model().into_runnable()
    return lambda inputs: {
        name: value.to_numpy()
        for name, value in zip(outputs, runnable.run([inputs[n] for n in names]), strict=True)
    }


def open_browser(path: Path) -> Call:
    """Opens a file in the WebAssembly build of ONNX Runtime, in Node.js.

    The environment variable ENGINES_NODE names a folder with the package onnxruntime-web; without
    it the folder is `export/web`, after `npm ci`.
    """
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("ENGINES_NODE", root / "export" / "web"))
    if not (folder / "node_modules" / "onnxruntime-web").exists():
        raise workers.Missing(f"no onnxruntime-web in {folder}: run npm ci there")
    command = ["node", str(Path(__file__).with_name("engines_browser.js")), str(path)]
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def answer() -> Any:
        line = process.stdout.readline()
        reply = json.loads(line) if line else {"error": f"node ended with {process.wait()}"}
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    read = answer()["inputs"]

    def run(inputs: Arrays) -> dict[str, np.ndarray]:
        request = {
            name: {
                "dtype": array.dtype.name,
                "dims": array.shape,
                "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
            }
            for name, array in inputs.items()
            if name in read
        }
        print(json.dumps(request), file=process.stdin, flush=True)
        return {
            name: np.frombuffer(base64.b64decode(value["data"]), value["dtype"]).reshape(
                value["dims"]
            )
            for name, value in answer().items()
        }

    return run


OPENERS = {
    "ONNX Runtime": one_by_one(open_onnxruntime),
    "ORT format": one_by_one(rewritten(to_ort, ".ort")),
    "browser": one_by_one(open_browser),
    "OpenVINO": one_by_one(open_openvino),
    "LiteRT": one_by_one(open_litert),
    "tract": one_by_one(open_tract),
    "onnxslim": one_by_one(rewritten(slim)),
    "saved by ONNX Runtime": one_by_one(rewritten(optimize)),
    "quantize_dynamic": one_by_one(rewritten(quantize)),
    "convert_float_to_float16": one_by_one(rewritten(to_float16)),
}


def run(task: Mapping[str, Any]) -> Any:
    """Opens an engine for a `workers.Worker`, then runs all cases in one round.

    Args:
        task: {"opener", key of `OPENERS`, "paths", of the files, "cases": paths of .npz files,
            "limit": seconds of a processor, after which the process ends}. The outputs of
            "NAME.npz" are written to "NAME.outputs.npz".
    """
    resource.setrlimit(resource.RLIMIT_CPU, (task["limit"], task["limit"] + 5))
    call = OPENERS[task["opener"]](list(map(Path, task["paths"])))

    def run_all() -> dict[str, float]:
        start = time.perf_counter()
        for path in map(Path, task["cases"]):
            with np.load(path) as case:
                outputs = call(dict(case))
            np.savez(path.with_suffix(".outputs.npz"), **outputs)
        return {"seconds": round(time.perf_counter() - start, 3)}

    return {}, run_all
