"""Speed of ONNX files beside plain tf2onnx files of the same model, for each kind of task.

    python benchmarks/kinds_speed.py --output benchmarks/results/kinds_speed.json

The models are the rows of `kinds.py` without a search. Both files take turns in one process on one
thread. A ratio is our median processor time over the plain file's. Sequences have 32 positions.

ONNX Runtime computes some plain files wrongly: it merges a Pad of zeros into the next MaxPool,
which pads with -inf. Such files run without that optimizer.
"""

import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bench
import kinds

LENGTH, BATCHES = 32, (1, 32)


def measure(task):
    """Measures a row: the nodes of both files, and the ratio of seconds for each batch size."""
    import keras
    import kinds_checks
    import kinds_rows
    import numpy as np
    import onnx
    import plain

    from keras_transformer import export

    row = kinds.all_rows()[task["name"]]
    report = {"name": row.name, "own": row.own, "nodes": {}, "ratios": {}}
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
                    files,
                    inputs,
                    task["rounds"],
                    clock=time.thread_time,
                    disabled={"plain": disabled},
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


def main():
    parser = bench.Parser(__doc__, "rounds", rounds=21, threads=1)
    parser.add_argument("--rows", nargs="+", help="default: all without a search; other rows stay")
    args = parser.parse_args()
    names = [name for name, row in kinds.all_rows().items() if row.search is None]
    # Some models crash ONNX Runtime, so each has a process.
    rows = kinds.in_processes("kinds_speed:measure", names, args, rounds=args.rounds)
    bench.finish(args, "kinds-speed", {"rounds": args.rounds, "rows": rows})


if __name__ == "__main__":
    main()
