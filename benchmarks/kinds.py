"""Saved and exported models beside Keras: a row per kind of task, a column per format.

    python benchmarks/kinds.py --output benchmarks/results/kinds.json   # all rows
    python benchmarks/kinds.py --quick --rows classes tags              # some, with few inputs

Each row is a small model with random weights, of this package, keras.applications or KerasHub. A
cell is the largest difference from Keras, as the exporters' proof measures and limits it. Batch
sizes are 1 to 32 and lengths 1 to 40. Rows are padded on either side; some contain only padding.
Failures are listed with their reason. The last column is the change of ONNX's outputs when a row is
padded.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import common

TOGETHER = 6  # rows per process, which limits its memory
TIMEOUT = 1800  # seconds per process


def all_rows():
    """Returns {name: Row}. The imports are here, because making a table needs no framework."""
    import kinds_models
    import kinds_others

    return {row.name: row for row in [*kinds_models.ROWS, *kinds_others.ROWS]}


def measure(row, quick, columns=None):
    """Measures a row of the report: for each column the largest error, or why it fails."""
    import kinds_checks
    import kinds_rows

    started = time.perf_counter()
    report = {"name": row.name, "own": row.own, "columns": {}}
    columns = columns or kinds_checks.COLUMNS
    if not row.sides:
        columns = [column for column in columns if column != "padding"]
    try:
        kind = kinds_checks.Kind(row, kinds_rows.QUICK_CASES if quick else kinds_rows.CASES)
    except Exception as error:  # the table shows any error
        return report | {"fails": reason(error)}
    report["parameters"] = kind.model.count_params()
    for column in columns:
        try:
            report["columns"][column] = {"error": kind.check(column)}
        except Exception as error:  # as above
            report["columns"][column] = {"fails": reason(error)}
    return report | {"seconds": round(time.perf_counter() - started, 1)}


def reason(error):
    """Returns an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def in_processes(names, quick):
    """Runs `measure` for several rows; yields each result immediately.

    A process measures `TOGETHER` rows. If it crashes or hangs, its current row is lost.
    """
    names = list(names)
    while names:
        some = names[:TOGETHER]
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", *some]
        command += ["--quick"] * quick
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            alarm = threading.Timer(TIMEOUT, process.kill)
            alarm.start()
            for line in process.stdout:
                yield json.loads(line)
                names.remove(some.pop(0))
            status = process.wait()
            alarm.cancel()
            if some:
                errors.seek(0)
                said = " ".join(errors.read().split())[-300:]
                yield {"name": names.pop(0), "fails": f"the process ended with {status}: {said}"}


def table(rows):
    """Returns the report as a table, then the failures."""
    import workers

    columns = list(dict.fromkeys(column for row in rows for column in row.get("columns", ())))
    cells, failures = [], []
    for row in rows:
        found = row.get("columns", {})
        cells.append([row["name"], *(cell(found.get(column), row) for column in columns)])
        said = {"all": row["fails"]} if "fails" in row else {}
        said |= {column: at["fails"] for column, at in found.items() if "fails" in at}
        for why in dict.fromkeys(said.values()):  # one line for columns with one reason
            where = ", ".join(column for column in said if said[column] == why)
            failures.append(f"- {row['name']}, {where}: {why}")
    text = workers.table(["kind of task", *columns], cells)
    return text + ("\n\nWhat fails:\n\n" + "\n".join(failures) if failures else "")


def cell(found, row):
    if "fails" in row or found and "fails" in found:
        return "fails"
    return "" if found is None else f"{found['error']:.0e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", nargs="+", help="names of rows; default: all. Other rows of --output stay"
    )
    parser.add_argument("--quick", action="store_true", help="few inputs per row")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    known = all_rows()
    if args.worker:
        for name in args.worker:
            print(json.dumps(measure(known[name], args.quick)), flush=True)
        return
    unknown = set(args.rows or ()) - set(known)
    if unknown:
        parser.error(f"no rows {sorted(unknown)}; there are {sorted(known)}")
    rows = {}
    if args.rows and args.output and args.output.exists():
        rows = {row["name"]: row for row in json.loads(args.output.read_text("utf-8"))["rows"]}
    for row in in_processes(args.rows or known, args.quick):
        rows[row["name"]] = row
        print(json.dumps(row), flush=True)
    report = common.head(args) | {"rows": [rows[name] for name in known if name in rows]}
    if args.output:
        common.write(report, args.output)
    print(table(report["rows"]))


if __name__ == "__main__":
    main()
