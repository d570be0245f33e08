"""The proof of an export: its files run in a second process, and Keras must give the same numbers.

Contents: `run_exported`, which starts the second process; `script`, which runs there; and
`comparison`, which compares its results with Keras' results. A new kind of file is one function
like `script.open_onnx` beside its exporter, which passes its name to `run_exported`. A new kind of
result is one function in `comparison`.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.export.staging import ExportError
from keras_transformer.types import Array, StrPath

TIMEOUT = 1800  # seconds; a file that takes longer is of no practical use


class Results(NamedTuple):
    """Results of exported files.

    Attributes:
        outputs: for each case a dict from output names to arrays.
        seconds: seconds of all timed runs, 0 without `timed`.
    """

    outputs: list[dict[str, Array]]
    seconds: float


def run_exported(
    models: Sequence[StrPath],
    cases: Sequence[Mapping[str, Array]],
    *,
    signatures: Sequence[str] | None = None,
    opener: str = "",
    extensions: bool = False,
    timed: bool = False,
) -> Results:
    """Runs exported files on `cases`, in a process without Keras.

    Args:
        models: path of one ONNX file, of the two files of a stepwise search, or of a SavedModel.
        cases: dicts from input names to arrays.
        signatures: the signature of each case, for a SavedModel. Defaults to `None`: ONNX files.
        opener: "module:function", a function like `script.open_onnx` in a module that needs no
            framework. Defaults to "": the files are ONNX files or a SavedModel.
        extensions: whether to load the operators of onnxruntime-extensions. Defaults to `False`.
        timed: whether to run each case a second time and measure it. Defaults to `False`.

    Returns:
        `Results`.

    Raises:
        ExportError: a check failed; the message names it.
    """
    script, saturates = pathlib.Path(__file__).with_name("script.py"), False
    if signatures is None and not opener:  # others need no ONNX Runtime
        from keras_transformer.export.runtime.session import products_saturate

        saturates = products_saturate()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = []
        for i, case in enumerate(cases):
            files.append({key: str(folder / f"{i}.{key}.npz") for key in ("inputs", "outputs")})
            arrays = {key: np.asarray(values) for key, values in case.items()}
            texts = {key: array.astype(str) for key, array in arrays.items() if array.dtype == "O"}
            np.savez(files[-1]["inputs"], **arrays | texts)
        job = {
            "models": list(map(str, models)),
            "signatures": signatures,
            "opener": opener,
            "extensions": extensions,
            "timed": timed,
            "saturates": saturates,
            "cases": files,
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-P", str(script), str(folder / "job.json")]
        limit = None if timed else TIMEOUT
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired as error:
            raise ExportError(
                f"The exported file did not finish {len(cases)} small runs within {TIMEOUT} s."
            ) from error
        if done.returncode:
            raise ExportError(
                f"The process that ran {', '.join(job['models'])} died with status "
                f"{done.returncode}: {done.stderr[-2000:]}"
            )
        report = json.loads(done.stdout.splitlines()[-1])
        if report["error"]:
            advice = "Try fuse=False or precision='float32'; if that works, please report it."
            raise ExportError(
                f"The exported file failed at {report['check']}: {report['error']}. "
                f"{'Please report it.' if opener else advice}"
            )
        outputs = []
        for entry in files:
            with np.load(entry["outputs"]) as arrays:
                outputs.append(dict(arrays))
    return Results(outputs, report["seconds"])
