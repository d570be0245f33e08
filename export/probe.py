"""Runs what was exported on given inputs, in a process that imports neither Keras nor this package.

A script of its own, `python -P probe.py JOB.json`, started by `keras_transformer.export.verify`: an
ONNX file that only works beside TensorFlow is not exported, and libraries that cannot live in one
process (onnxruntime-extensions and TensorFlow) need not. Of this package only the loop of a search
in two files is imported, which is part of what is proven.

The job: `{"models": [path], "extensions": bool, "signatures": null or a SavedModel's, one a case,
"cases": [{"inputs": path.npz, "outputs": path.npz}]}`. Prints one line of JSON at the end, `{}` or
`{"check": ..., "error": ...}`.
"""

import json
import sys
import warnings
from functools import partial

import numpy as np

FRAMEWORKS = ("tensorflow", "tensorflow_text", "keras", "jax", "torch")


def run(job):
    """Does the job; yields the name of each check before it begins."""
    calls = yield from (open_saved_model if job["signatures"] else open_onnx)(job)
    for case, call in zip(job["cases"], calls, strict=True):
        with np.load(case["inputs"]) as file:
            inputs = dict(file)
        shapes = {name: array.shape for name, array in inputs.items()}
        yield f"a run with inputs of shapes {shapes}"
        outputs = call(inputs)
        np.savez(case["outputs"], **{name: _text(array) for name, array in outputs.items()})


def open_onnx(job):
    """Checks and opens ONNX files; returns a function from inputs to outputs for each case."""
    import onnx
    import onnxruntime

    yield "onnx.checker"
    for path in job["models"]:
        onnx.checker.check_model(path)
    yield "session creation"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what is wrong comes as an exception
    if job["extensions"]:
        import onnxruntime_extensions

        options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    if len(job["models"]) > 1:  # threads of two sessions that spin are in each other's way
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    sessions = [
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        for path in job["models"]
    ]
    session = sessions[-1]
    if len(sessions) > 1:
        sys.modules.update(dict.fromkeys(FRAMEWORKS))  # not to be had from here on
        from keras_transformer.export.runtime.steps_session import StepsSession

        session = StepsSession(*sessions)
    names = [value.name for value in session.get_outputs()]

    def call(inputs):
        # ONNX Runtime takes strings as objects, and they travel as NumPy's own (`_text`).
        inputs = {
            name: array.astype(object) if array.dtype.kind == "U" else array
            for name, array in inputs.items()
        }
        return dict(zip(names, session.run(None, inputs), strict=True))

    return [call] * len(job["cases"])


def open_saved_model(job):
    """Loads a SavedModel; returns its signature for each case, as a function of arrays."""
    import tensorflow as tf

    try:
        import tensorflow_text  # noqa: F401, registers its operators; ids need none of them
    except ImportError:
        pass
    yield "loading the SavedModel"
    loaded = tf.saved_model.load(job["models"][0])

    def call(function, inputs):
        outputs = function(**{name: tf.constant(array) for name, array in inputs.items()})
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    calls = [partial(call, loaded.signatures[name]) for name in job["signatures"]]
    call.loaded = loaded  # the functions do not keep its variables alive
    return calls


def _text(array):
    """Strings as a unicode array, which travels without pickle."""
    if array.dtype != object:
        return array
    flat = [item.decode() if isinstance(item, bytes) else item for item in array.flat]
    return np.array(flat, dtype=str).reshape(array.shape)


def main():
    """Runs the job that the command line names; the last line printed is the report.

    Libraries may print before it. An error is no exit status, so that a crash can be told from it.
    """
    warnings.simplefilter("ignore")
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    check = "imports"
    try:
        for check in run(job):  # noqa: B007, the last one is told
            pass
    except Exception as error:
        print(json.dumps({"check": check, "error": f"{type(error).__name__}: {error}"}))
    else:
        print("{}")


if __name__ == "__main__":
    main()
