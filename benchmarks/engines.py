"""The engines that run an export: a row per model, a column per engine.

    python benchmarks/engines.py --output benchmarks/results/engines.json   # all rows
    python benchmarks/engines.py --rows tags "text to text, greedy"         # some

Each row is a small model with random weights, exported by `export_onnx`, by `export_onnx` in its
portable form and by `export_litert`. Each engine runs the file in a separate process, and its
results are compared with Keras as the exporters' proof does it. An engine that is not installed
leaves its column empty: `pip install openvino onnxslim tract`, and `npm ci` in `export/web`.
"""

import os
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bench
from kinds import in_processes, reason

PACKAGES = ("openvino", "ai-edge-litert", "onnxslim", "tract")


def all_rows():
    """Returns {name: row}. The import is here, because making a table needs no framework."""
    import engines_rows

    return {row.name: row for row in engines_rows.ROWS}


def measure(row, engines=None):
    """Measures a row of the report: for each engine its cell."""
    import engines_checks

    started = time.perf_counter()
    engines = engines or [*engines_checks.ENGINES, *engines_checks.TOOLS]
    with tempfile.TemporaryDirectory() as folder:
        try:
            subject = engines_checks.Subject(row, folder)
        except Exception as error:  # the table shows any error
            return {"name": row.name, "fails": reason(error)}
        cells = {engine.name: subject.cell(engine) for engine in engines}
    return {
        "name": row.name,
        "cells": {name: cell for name, cell in cells.items() if cell},
        "seconds": round(time.perf_counter() - started, 1),
    }


def measure_by_name(task):
    """Measures the row "name" of a task; for a process, whose crash loses only that row."""
    return measure(all_rows()[task["name"]])


def main():
    parser = bench.Parser(__doc__, threads=1)
    parser.add_argument(
        "--rows", nargs="+", help="names of rows; default: all. Other rows of --output stay"
    )
    args = parser.parse_args()
    rows = in_processes("engines:measure_by_name", all_rows(), args)
    bench.finish(args, "engines", {"rows": rows}, *PACKAGES)


if __name__ == "__main__":
    main()
