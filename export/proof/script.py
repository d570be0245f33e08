"""Runs exported files on given inputs, in a process without Keras and without this package.

`proof.run_exported` starts this script by its path: `python -P script.py JOB.json`. An ONNX file
that works only beside TensorFlow therefore fails its proof, and onnxruntime-extensions, which
crashes beside TensorFlow, can run. If a search has two files, the script imports the loop around
them from this package, because that loop is part of the proof.

The job is a dict of `models` (paths), `signatures` (names, or null), `opener` ("module:function",
or ""), `extensions`, `timed` and `saturates` (booleans) and `cases`
(`{"inputs": path.npz, "outputs": path.npz}`). A SavedModel has one signature for each case. The
last line printed is the report, `{"check", "error", "seconds"}`: the last check that began, its
error or null, and the seconds of all timed runs.
"""

import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

FRAMEWORKS = ("tensorflow", "tensorflow_text", "keras", "jax", "torch")

Call: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


def run(job: dict[str, Any], report: dict[str, Any]) -> None:
    """Runs the cases of a job, and keeps `report` up to date."""
    calls = opener(job)(job, report)
    for case, call in zip(job["cases"], calls, strict=True):
        with np.load(case["inputs"]) as file:
            inputs = dict(file)
        shapes = {name: array.shape for name, array in inputs.items()}
        report["check"] = f"a run with inputs of shapes {shapes}"
        outputs = call(inputs)
        np.savez(case["outputs"], **{name: _text(array) for name, array in outputs.items()})
        if job["timed"]:  # the first run was the warm-up
            start = time.perf_counter()
            call(inputs)
            report["seconds"] += time.perf_counter() - start


def opener(job: dict[str, Any]) -> Callable[[dict[str, Any], dict[str, Any]], list[Call]]:
    """Returns the function that opens the files of a job, such as `open_onnx`."""
    if job["opener"]:
        sys.modules.update(dict.fromkeys(FRAMEWORKS))
        module, _, name = job["opener"].partition(":")
        return getattr(importlib.import_module(module), name)
    return open_saved_model if job["signatures"] else open_onnx


def open_onnx(job: dict[str, Any], report: dict[str, Any]) -> list[Call]:
    """Checks and opens ONNX files; returns a function from inputs to outputs for each case."""
    sys.modules.update(dict.fromkeys(FRAMEWORKS))  # `import tensorflow` fails from here on
    import onnx
    import onnxruntime

    report["check"] = "onnx.checker"
    for path in job["models"]:
        onnx.checker.check_model(path)
    report["check"] = "session creation"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # problems are raised as exceptions
    exact = str(int(job["saturates"]))  # as in the runtime
    options.add_session_config_entry("session.x64quantprecision", exact)
    if job["extensions"]:
        import onnxruntime_extensions

        options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    if len(job["models"]) > 1:  # spinning threads of two sessions would slow each other down
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    sessions = [
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        for path in job["models"]
    ]
    session = sessions[-1]
    if len(sessions) > 1:
        from keras_transformer.export.runtime.steps_session import StepsSession

        session = StepsSession(*sessions)
    names = [value.name for value in session.get_outputs()]

    def call(inputs: dict[str, Any]) -> dict[str, Any]:
        # ONNX Runtime takes strings as objects. Files hold them as NumPy strings, see `_text`.
        inputs = {
            name: array.astype(object) if array.dtype.kind == "U" else array
            for name, array in inputs.items()
        }
        return dict(zip(names, session.run(None, inputs), strict=True))

    return [call] * len(job["cases"])


def open_saved_model(job: dict[str, Any], report: dict[str, Any]) -> list[Call]:
    """Loads a SavedModel; returns the signature of each case as a function of arrays."""
    import tensorflow as tf

    try:
        import tensorflow_text  # noqa: F401, registers its operators; only strings need them
    except ImportError:
        pass
    report["check"] = "loading the SavedModel"
    loaded = tf.saved_model.load(job["models"][0])

    def call(loaded: Any, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
        tensors = {key: tf.constant(array) for key, array in inputs.items()}
        outputs = loaded.signatures[name](**tensors)
        return {key: tensor.numpy() for key, tensor in outputs.items()}

    return [partial(call, loaded, name) for name in job["signatures"]]


def _text(array: Any) -> Any:
    """Returns strings as a unicode array, which `np.savez` can write without pickle."""
    if array.dtype != object:
        return array
    flat = [item.decode() if isinstance(item, bytes) else item for item in array.flat]
    return np.array(flat, dtype=str).reshape(array.shape)


def main() -> None:
    """Runs the job that the command line names, and prints the report.

    Libraries may print before it. An error is part of the report; the exit status shows crashes.
    """
    warnings.simplefilter("ignore")
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    report: dict[str, Any] = {"check": "imports", "error": None, "seconds": 0.0}
    try:
        run(job, report)
    except Exception as error:  # of any kind: the first process raises it with its text
        report["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(report))


if __name__ == "__main__":
    main()
