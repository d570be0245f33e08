"""One thread or all of them for a step of a search: beam search of models of several sizes.

    python benchmarks/threads.py --work FOLDER [--busy 0 1]

The models have random weights and generate 16 tokens for each sentence of 12 random tokens. Each
way to use the cores has a separate process, and all take turns. Figures are medians over rounds:

- `alone`: milliseconds of a sentence that is translated alone.
- `32 lines`: milliseconds of 32 sentences. With one thread, each core translates a part of them.
- `busy`: other cores that an endless loop keeps busy.

The folder keeps the exported models, and the output the rows of other sizes and precisions.
"""

import concurrent.futures
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bench
import subjects

LENGTH, TOKENS, SENTENCES, REPEATS = 16, 12, 32, 12
SIZES = {
    "tiny": subjects.SHAPES["tiny"],
    "little": dict(vocab_size=6000, num_layers=4, d_model=192, num_heads=4, d_ff=768),
    "small": dict(vocab_size=8000, num_layers=4, d_model=256, num_heads=4, d_ff=1024),
}
PRECISIONS = ("float32", "int8")


def open_engine(task):
    """Opens an artefact for a `bench.Worker` with `threads`; a batch has as many `parts`."""
    import numpy as np

    from keras_transformer.export.artefact.reader import read_artefact
    from keras_transformer.export.runtime.session import CPU, open_session

    session = open_session(read_artefact(task["folder"]), [CPU], threads=task["threads"])
    ids = np.random.default_rng(0).integers(4, task["vocab_size"], (SENTENCES, TOKENS), "int32")
    pool = concurrent.futures.ThreadPoolExecutor(task["parts"])

    def translate(rows):
        return session.run(None, {"source_ids": rows})

    def run(repeats):
        alone, _ = bench.timed(lambda: [translate(ids[i : i + 1]) for i in range(repeats)])
        parts = np.array_split(ids, task["parts"])
        together, _ = bench.timed(
            lambda: [list(pool.map(translate, parts)) for _ in range(repeats // 4)]
        )
        return {"alone_ms": 1e3 * alone / repeats, "batch_ms": 1e3 * together / (repeats // 4)}

    run(4)
    return bench.memory(), run


def export(size, precision, folder):
    """Writes the artefact of a size, unless the folder holds it."""
    if (folder / "artefact.json").exists():
        return
    import keras

    import keras_transformer as kt
    from keras_transformer.export import export_onnx

    keras.utils.set_random_seed(0)
    model, search = kt.Transformer(**SIZES[size]), kt.BeamSearch(4, min_length=LENGTH)
    options = {"precision": precision, "max_length": LENGTH, "verbose": False}
    export_onnx(model, folder, search=search, **options)


def compare(size, precision, folder, args):
    """Yields a row for each number of busy cores and of threads."""
    ways = {"every core": (args.threads, 1), "one thread a core": (1, args.threads)}
    shared = {"folder": folder, "vocab_size": SIZES[size]["vocab_size"]}
    tasks = {
        name: {**shared, "engine": name, "threads": threads, "parts": parts}
        for name, (threads, parts) in ways.items()
    }
    megabytes = bench.size(folder) / 2**20
    with bench.engines("threads:open_engine", tasks) as opened:
        for busy in args.busy:
            with bench.busy_cores(busy):
                found = bench.in_turn(opened, args.rounds, pause=0.05, repeats=REPEATS)
            first, *_ = (bench.medians(answers) for answers in found.values())
            for way, answers in found.items():
                row = {"size": size, "precision": precision, "megabytes": megabytes, "busy": busy}
                row |= {"threads": way, **bench.medians(answers)}
                for name in ("alone", "batch"):
                    row[f"{name}_speed"] = first[f"{name}_ms"] / row[f"{name}_ms"]
                yield row


def main():
    parser = bench.Parser(__doc__, "work", "rounds", "busy", rounds=7, busy=[0, 1])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    args = parser.parse_args()
    args.output = args.output or bench.RESULTS / "threads.json"
    rows = bench.earlier(args).get("rows", [])
    for size in args.sizes:
        for precision in args.precisions:
            folder = Path(args.work, f"{size}-{precision}")
            export(size, precision, folder)
            rows = [row for row in rows if (row["size"], row["precision"]) != (size, precision)]
            rows += compare(size, precision, folder, args)
            rows.sort(key=lambda row: row["megabytes"])
            bench.keep(args, {"rounds": args.rounds, "rows": rows})
    bench.finish(args, "threads", {"rounds": args.rounds, "rows": rows})


if __name__ == "__main__":
    main()
