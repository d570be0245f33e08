"""Cells of the table of engines: an export of a model, run in an engine, compared with Keras."""

import dataclasses
import functools
import hashlib
import re
import signal
from pathlib import Path

import bench
import keras
import numpy as np
from kinds_checks import GENERATED, disturb, settle
from kinds_rows import QUICK_CASES, real_places

from keras_transformer import export
from keras_transformer.export.arguments import Arguments
from keras_transformer.export.artefact import signature
from keras_transformer.export.prepare import prepare
from keras_transformer.export.proof import comparison

# Seconds of a processor in which an engine must open a file and run all cases, and of a clock.
LIMIT, PATIENCE = 30, 600
# What follows an error of an engine or a proof, and is left out of its reason.
TRACE = re.compile(
    r"Traceback \(most|Stack backtrace:|Summary:|\S*\", line \d+, in |\S*n run call = | \^{3,}"
    r"| Please report it| These numbers are wrong| Pass a larger| Pass samples"
)
# Faults that a file of `faults/` reproduces: column, pattern of the row's name, file.
FAULTS = (
    ("OpenVINO, portable", "sampling", "openvino_int64"),
    ("OpenVINO", "sampling", "openvino_int64"),
    ("OpenVINO", "language model", "openvino_nested_loop"),
    ("OpenVINO", "recurrent decoder", "openvino_endless_loop"),
)


@dataclasses.dataclass(frozen=True)
class Engine:
    """A column of the table.

    Attributes:
        name: str, the head of the column.
        opener: key of `engines_run.OPENERS`.
        files: the export that it reads: "onnx", "portable" or "litert".
        precision: precision that the engine's tool adds; `None` for the precision of the row.
    """

    name: str
    opener: str
    files: str = "onnx"
    precision: str | None = None


ENGINES = (
    Engine("ONNX Runtime", "ONNX Runtime"),
    Engine("`.ort`", "ORT format"),
    Engine("browser", "browser"),
    Engine("OpenVINO", "OpenVINO"),
    Engine("OpenVINO, portable", "OpenVINO", "portable"),
    Engine("tract, portable", "tract", "portable"),
    Engine("LiteRT", "LiteRT", "litert"),
)
TOOLS = (
    Engine("onnxslim", "onnxslim"),
    Engine("saved by ONNX Runtime", "saved by ONNX Runtime"),
    Engine("quantize_dynamic", "quantize_dynamic", precision="int8"),
    Engine("convert_float_to_float16", "convert_float_to_float16", precision="float16"),
)


class Subject:
    """The model of a row with Keras' results, and its exports, each written when it is needed.

    Args:
        row: `engines_rows.Exported`.
        folder: where to write files.
    """

    def __init__(self, row, folder):
        keras.utils.set_random_seed(3)
        self.row, self._folder = row, Path(folder)
        self.model = row.build()
        disturb(self.model)
        settle(self.model, row.inputs(np.random.default_rng(2), real_places(16, 9, "right")))
        self.options = {"precision": row.precision}
        if row.search:
            self.options |= {"search": row.search(), "max_length": GENERATED}
        if row.shortlist:
            self.options["shortlist"] = row.shortlist()
        self._task = prepare(Arguments(self.model, **self.options))
        self._cases = row.cases(QUICK_CASES)
        samples = [dict(self._cases[0]), dict(self._cases[-1])]
        plain = row.search and set(samples[0]) == {signature.SOURCE_IDS}
        self.options["samples"] = [x[signature.SOURCE_IDS] for x in samples] if plain else samples
        if getattr(self._task, "random", False):
            for seed, case in enumerate(self._cases):
                case[signature.SEED] = np.array(seed, np.int32)
        self._expected = [self._task.expected(case) for case in self._cases]
        self._paths = [self._folder / f"{i}.npz" for i in range(len(self._cases))]
        for path, case in zip(self._paths, self._cases, strict=True):
            np.savez(path, **case)
        self.written = functools.cache(self._write)
        self._right = set()  # outputs that are as good as Keras' for a precision

    def _write(self, files):
        """Writes an export; returns the paths of its model files, or the reason of a refusal."""
        folder, options = self._folder / files, {"verbose": False, **self.options}
        if files == "portable":
            options |= {"fuse": False, "layout": "steps" if self.row.search else "loop"}
        write = export.export_litert if files == "litert" else export.export_onnx
        try:
            write(self.model, folder, **options)
        except Exception as error:  # the table shows any error
            return self._reason(error)
        return sorted(map(str, [*folder.glob("*.onnx"), *folder.glob("*.tflite")]))

    def cell(self, engine):
        """Returns the cell of an engine, a dict; `None` if the engine is not installed.

        "state" is "equal", "refused", "fault", or for tools that reduce the precision "differs", if
        they exceed the tolerance of ours. "reason" is the error of a refusal or of a fault.
        "reproduction" is the file of `faults/` that shows the fault alone.
        """
        paths = self.written(engine.files)
        if isinstance(paths, str):
            return {"state": "refused", "reason": paths}
        task = {"opener": engine.opener, "paths": paths, "cases": self._paths, "limit": LIMIT}
        opened = None
        try:
            opened = bench.Worker("engines_run:run", task, bench.SERVES, PATIENCE)
            opened()
            self._compare(engine)
        except bench.Missing:
            return None
        except Exception as error:  # of the engine, or because its results differ
            return self._failure(engine, self._reason(error), opened)
        finally:
            if opened:
                opened.close()
        return {"state": "equal"}

    def _compare(self, engine):
        found = []
        for path in self._paths:
            with np.load(path.with_suffix(".outputs.npz")) as outputs:
                found.append(dict(outputs))
        precision = engine.precision or self.row.precision
        parts = [array.tobytes() for outputs in found for array in outputs.values()]
        made = precision, hashlib.sha256(b"".join(parts)).digest()
        if made not in self._right:
            tolerance = comparison.TOLERANCES[precision]
            exact = precision == "float32"
            self._task.compare(self._cases, self._expected, found, tolerance, exact)
            self._right.add(made)

    def _failure(self, engine, reason, opened):
        if f"ended with -{signal.SIGXCPU}" in reason or f"ended with -{signal.SIGKILL}" in reason:
            reason = f"does not return within {LIMIT} seconds of a processor"
        elif opened is None and "ended with -" not in reason:
            return {"state": "refused", "reason": reason}
        if engine.precision and reason.startswith("ExportError"):
            return {"state": "differs", "reason": reason}
        cell = {"state": "fault", "reason": reason}
        for column, pattern, name in FAULTS:
            if column == engine.name and re.search(pattern, self.row.name):
                return cell | {"reproduction": name}
        return cell

    def _reason(self, error):
        """Returns an error in one line, without folders of this run and traces of calls."""
        text = str(error).removeprefix("engines_run:run: ")
        text = " ".join(text.split()).replace(f"{self._folder}/", "")
        text = TRACE.split(text)[0].split("with a message: ")[-1].strip()[:400]
        return text if isinstance(error, bench.WorkerError) else f"{type(error).__name__}: {text}"
