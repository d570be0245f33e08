"""Speed of ONNX files beside plain tf2onnx files of the same model, for each kind of task.

    python benchmarks/kinds_speed.py --output benchmarks/results/kinds_speed.json

The models are the rows of `kinds.py` without a search. Both files take turns in one process on one
thread. A ratio is our median processor time over the plain file's. Sequences have 32 positions.

ONNX Runtime computes some plain files wrongly: it merges a Pad of zeros into the next MaxPool,
which pads with -inf. Such files run without that optimizer.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import common

LENGTH, BATCHES = 32, (1, 32)


def measure(name, rounds):
    """Measures a row: the nodes of both files, and the ratio of seconds for each batch size."""
    import keras
    import kinds
    import kinds_checks
    import kinds_rows
    import numpy as np
    import onnx
    import plain

    from keras_transformer import export

    row = kinds.all_rows()[name]
    report = {"name": name, "own": row.own, "nodes": {}, "ratios": {}}
    keras.utils.set_random_seed(3)
    model = row.build()
    kinds_checks.disturb(model)
    sample = row.inputs(np.random.default_rng(2), kinds_rows.real_places(16, 9, "right"))
    kinds_checks.settle(model, sample)
    with tempfile.TemporaryDirectory() as folder:
        files = {"plain": Path(folder) / "plain.onnx", "ours": Path(folder) / "ours" / "model.onnx"}
        try:
            # kinds.py proves the exports: here one sample is enough.
            rng = np.random.default_rng(4)
            samples = [row.inputs(rng, kinds_rows.real_places(3, 7, "right"))]
            export.export_onnx(model, folder + "/ours", samples=samples, verbose=False)
            plain.plain_file(model, files["plain"])
            for kind, path in files.items():
                report["nodes"][kind] = len(onnx.load(path).graph.node)
            for batch in BATCHES:
                real = kinds_rows.real_places(batch, LENGTH, "right")
                inputs = row.inputs(np.random.default_rng(5), real)
                expected = [*map(np.asarray, keras.tree.flatten(model(inputs)))]
                disabled = without_what_is_wrong(files["plain"], inputs, expected)
                report["plain without"] = disabled
                seconds = plain.in_turn(
                    files, inputs, rounds, clock=time.thread_time, disabled={"plain": disabled}
                )
                report["ratios"][str(batch)] = seconds["ours"] / seconds["plain"]
        except Exception as error:  # the table shows any error
            report["fails"] = kinds.reason(error).replace(folder + "/", "")
    return report


def without_what_is_wrong(path, inputs, expected):
    """Returns the optimizers to disable so that ONNX Runtime computes a file correctly."""
    import plain

    for disabled in ([], ["Pad_Fusion"]):
        if plain.is_right(path, inputs, expected, disabled):
            return disabled
    raise ValueError("ONNX Runtime gives other answers for the plain file than Keras.")


def table(rows):
    """Returns the report as a table, then the failures."""
    import workers

    cells = []
    for row in rows:
        nodes, ratios = row.get("nodes", {}), row.get("ratios", {})
        found = [f"{ratios[str(batch)]:.2f}" if str(batch) in ratios else "" for batch in BATCHES]
        name = f"{row['name']} *" if row.get("plain without") else row["name"]
        cells.append([name, nodes.get("plain", ""), nodes.get("ours", ""), *found])
    heads = ["kind of task", "nodes, plain", "nodes, ours", *(f"batch of {b}" for b in BATCHES)]
    failures = [f"- {row['name']}: {row['fails']}" for row in rows if "fails" in row]
    text = workers.table(heads, cells)
    return text + ("\n\nNot compared:\n\n" + "\n".join(failures) if failures else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", help="default: all without a search; other rows stay")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure(args.worker, args.rounds)), flush=True)
        return
    import kinds

    known, rows = [name for name, row in kinds.all_rows().items() if row.search is None], {}
    if args.rows and args.output and args.output.exists():
        rows = {row["name"]: row for row in json.loads(args.output.read_text("utf-8"))["rows"]}
    for name in args.rows or known:  # a process each, because some models crash ONNX Runtime
        command = [sys.executable, __file__, "--worker", name, "--rounds", str(args.rounds)]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = done.stdout.splitlines()
        ended = {"name": name, "fails": f"the process ended with {done.returncode}"}
        rows[name] = json.loads(lines[-1]) if lines and done.returncode == 0 else ended
        print(json.dumps(rows[name]), flush=True)
    rows = [rows[name] for name in known if name in rows]
    report = common.head(args) | {"rounds": args.rounds, "rows": rows}
    if args.output:
        common.write(report, args.output)
    print(table(rows))


if __name__ == "__main__":
    main()
