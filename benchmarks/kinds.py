"""Saved and exported models beside Keras: a row per kind of task, a column per format.

    python benchmarks/kinds.py --output benchmarks/results/kinds.json   # all rows
    python benchmarks/kinds.py --quick --rows classes tags              # some, with few inputs

Each row is a small model with random weights, of this package, keras.applications or KerasHub. A
cell is the largest difference from Keras, as the exporters' proof measures and limits it. Batch
sizes are 1 to 32 and lengths 1 to 40. Rows are padded on either side; some contain only padding.
Failures are listed with their reason. The last column is the change of ONNX's outputs when a row is
padded.
"""

import os
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bench

TIMEOUT = 1800  # seconds for a row


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
    cases = kinds_rows.QUICK_CASES if quick else kinds_rows.CASES
    with tempfile.TemporaryDirectory() as folder:
        try:
            kind = kinds_checks.Kind(row, cases, folder)
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


def measure_by_name(task):
    """Measures the row "name" of a task; for a process, whose crash loses only that row."""
    return measure(all_rows()[task["name"]], task["quick"])


def in_processes(function, names, args, **task):
    """Measures rows in a process each, and adds them to the rows of `--output`.

    Args:
        function: "module:function", from a task with "name" to a row.
        names: names of all rows, in the order of the table.
        args: with "rows", names to measure or `None` for all, and "output".
        **task: further values of each task.

    Returns:
        Rows of the report. A row that crashed has its reason in "fails".
    """
    unknown = set(args.rows or ()) - set(names)
    if unknown:
        raise SystemExit(f"no rows {sorted(unknown)}; there are {sorted(names)}")
    rows = {}
    if args.rows:
        rows = {row["name"]: row for row in bench.earlier(args).get("rows", ())}
    for name in args.rows or names:
        try:
            rows[name] = bench.call(function, {"name": name, **task}, timeout=TIMEOUT)
        except bench.WorkerError as error:
            rows[name] = {"name": name, "fails": reason(error)}
        print(rows[name], flush=True)
    return [rows[name] for name in names if name in rows]


def main():
    parser = bench.Parser(__doc__)
    parser.add_argument(
        "--rows", nargs="+", help="names of rows; default: all. Other rows of --output stay"
    )
    parser.add_argument("--quick", action="store_true", help="few inputs per row")
    args = parser.parse_args()
    rows = in_processes("kinds:measure_by_name", all_rows(), args, quick=args.quick)
    bench.finish(args, "kinds", {"rows": rows})


if __name__ == "__main__":
    main()
