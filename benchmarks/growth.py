"""Cost of serving by batch size, source length and beam width, as a plot.

    python benchmarks/growth.py --model FOLDER [--data DIR] [--threads 2]

ONNX Runtime runs the trained tiny model as a float32 artefact. One of the three varies, the others
stay at batches of 32 sentences, 16 source tokens and beam 4. The sentences of test.2016 and
newstest2014 with the nearest length are used. Every point runs in a separate process, which shows
its peak memory. tokens/s are medians over the rounds, end tokens included.
"""

import os
import statistics
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bench
import subjects
from serving_models import LENGTH_PENALTY

BASE = {"batch size": 32, "source length": 16, "beam width": 4}
GROWTH = {
    "batch size": [1, 2, 4, 8, 16, 32, 64, 128],
    "source length": [8, 16, 32, 64, 128],
    "beam width": [1, 2, 4, 8, 16],
}


def export(model, width, folder):
    """Exports a float32 artefact with this beam width; 1 is greedy search."""
    import keras_transformer as kt
    from keras_transformer.export import export_onnx

    search = kt.GreedySearch() if width == 1 else kt.BeamSearch(width, LENGTH_PENALTY)
    export_onnx(model, folder, search=search, verbose=False)
    return folder


def point(artefact, sources, setting, args):
    """Measures tokens per second and peak memory of one setting, with a new engine.

    Args:
        artefact: folder of the artefact with the setting's beam width.
        sources: ids of all sentences, from which the setting chooses by length.
        setting: dict with a value for each key of `BASE`.
    """
    batch = sorted(sources, key=lambda ids: abs(len(ids) - setting["source length"]))
    batch = batch[: setting["batch size"]]
    task = {"folder": str(artefact), "threads": args.threads, "clock": "wall"}
    with bench.engines("serving_engines:serve", {"ours": task}) as opened:
        found = bench.in_turn(opened, args.rounds, batches=[batch])["ours"]
    rates = [sum(map(len, each["ids"][0])) / sum(each["seconds"]) for each in found]
    return {
        **setting,
        "tokens_per_second": statistics.median(rates),
        "peak_mb": found[-1]["peak_mb"],
    }


def draw(report, path):
    """Plots speed above memory, in a column for each quantity that varies."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(GROWTH), figsize=(11, 5), sharey="row", sharex="col")
    for column, (name, points) in zip(axes.T, report["points"].items(), strict=True):
        sizes = [each[name] for each in points]
        for axis, key in zip(column, ("tokens_per_second", "peak_mb"), strict=True):
            axis.plot(sizes, [each[key] for each in points], marker="o")
            axis.set_xscale("log", base=2)
            axis.set_xticks(sizes, map(str, sizes))
            axis.grid(alpha=0.3)
        axis.set_xlabel(name)
    for axis, label in zip(axes[:, 0], ("tokens/s", "peak memory, MB"), strict=True):
        axis.set_ylabel(label)
    for axis in axes[:, 0]:  # after plotting, because this also fixes the upper end
        axis.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main():
    parser = bench.Parser(__doc__, "data", "model", "rounds", rounds=5)
    parser.set_defaults(output=bench.RESULTS / "growth.json")
    args = parser.parse_args()
    model, tokenizer = subjects.load_trained(args.model)
    lines, _ = subjects.multi30k(args.data)
    lines += [line.lower() for line in subjects.newstest(args.data)]
    sources = subjects.source_ids(tokenizer, lines)
    points = {name: [] for name in GROWTH}
    with tempfile.TemporaryDirectory() as folder:
        artefacts = {w: export(model, w, Path(folder) / str(w)) for w in GROWTH["beam width"]}
        for name, sizes in GROWTH.items():
            for size in sizes:
                setting = BASE | {name: size}
                points[name].append(point(artefacts[setting["beam width"]], sources, setting, args))
                print(points[name][-1], flush=True)
    report = bench.keep(args, {"rounds": args.rounds, "points": points})
    draw(report, args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
