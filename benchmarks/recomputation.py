"""Memory and time of an optimizer step with `kt.recompute`, beside plain training.

    python benchmarks/recomputation.py [--threads 2] [--rounds 3] [--output FILE.json]

Both engines train the same model in `model.fit`, as in `training.py`, in separate processes that
take turns. Memory is the peak of a process, frameworks, weights and the two moments of Adam
included. The last
column is the median over the rounds of the ratio of seconds.
"""

import bench
from subjects import SIZES
from training import compare

VOCABULARY = 8_000
BATCHES = {"base": (32, 64), "big": (8, 64)}  # rows, tokens on either side


def main():
    parser = bench.Parser(__doc__, "rounds")
    parser.add_argument("--sizes", nargs="+", choices=BATCHES, default=list(BATCHES))
    args = parser.parse_args()
    rows = []
    for size in args.sizes:
        batch, length = BATCHES[size]
        task = dict(size=SIZES[size], vocabulary=VOCABULARY, batch=batch, length=length, steps=1)
        task |= dict(precision="float32", device="cpu", threads=args.threads, seed=1)
        row = {"size": size, **compare(task, ("ours_recomputed", "ours"), args.rounds, {})}
        row["memory_ratio"] = row["peak_memory_mb"] / row["rival_peak_memory_mb"]
        print(row, flush=True)
        rows.append(row)
    report = {"rounds": args.rounds, "vocabulary": VOCABULARY, "rows": rows}
    bench.finish(args, "recomputation", report)


if __name__ == "__main__":
    main()
