"""Runs an ONNX file on given inputs, in a process that imports neither TensorFlow nor Keras.

A script of its own, `python -P probe.py JOB.json`, started by `keras_transformer.export.verify`: a
model that only works beside TensorFlow is not exported, and libraries that cannot live in one
process (onnxruntime-extensions and TensorFlow) need not.

The job: `{"model": path, "checker": bool, "extensions": bool, "cases": [{"inputs": path.npz,
"outputs": path.npz}]}`. Prints one line of JSON, `{}` or `{"check": ..., "error": ...}`.
"""

import json
import sys
import warnings


def run(job):
    import numpy as np
    import onnxruntime

    if job["checker"]:
        import onnx

        yield "onnx.checker"
        onnx.checker.check_model(job["model"])
    yield "session creation"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if job["extensions"]:
        import onnxruntime_extensions

        options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    session = onnxruntime.InferenceSession(
        job["model"], options, providers=["CPUExecutionProvider"]
    )
    for case in job["cases"]:
        with np.load(case["inputs"]) as inputs:
            inputs = dict(inputs)
        shapes = {name: array.shape for name, array in inputs.items()}
        if job["extensions"]:  # strings travel as unicode arrays, without pickle
            inputs = {
                name: array.astype(object) if array.dtype.kind == "U" else array
                for name, array in inputs.items()
            }
        yield f"a run with inputs of shapes {shapes}"
        outputs = session.run(None, inputs)
        names = [value.name for value in session.get_outputs()]
        arrays = {
            name: np.array(array.tolist(), dtype=str) if array.dtype == object else array
            for name, array in zip(names, outputs, strict=True)
        }
        np.savez(case["outputs"], **arrays)


def main():
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
