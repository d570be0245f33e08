"""Cost of serving by batch size, source length, beam width and output length, as a plot.

    python benchmarks/growth.py --model FOLDER [--data DIR] [--threads 2] [--vary "output length"]

ONNX Runtime runs the trained tiny model as a float32 artefact. One of the three varies, the others
stay at batches of 32 sentences, 16 source tokens and beam 4. The sentences of test.2016 and
newstest2014 with the nearest length are used. The output length is forced, with beam 10. Every
point runs in a separate process, which shows its peak memory. tokens/s are medians over the rounds,
end tokens included.
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
    "output length": [25, 50, 100, 200],
}
FORCED_WIDTH = 10


def export(model, folder, width, length=None):
    """Exports a float32 artefact with this beam width; 1 is greedy search. May force the length."""
    import keras_transformer as kt
    from keras_transformer.export import export_onnx

    forced = {"min_length": length} if length else {}
    search = kt.BeamSearch(width, LENGTH_PENALTY, **forced) if width > 1 else kt.GreedySearch()
    export_onnx(model, folder, search=search, max_length=length, verbose=False)
    return folder


def artefact(model, parent, setting):
    """Exports what a setting needs, unless another one needed it; returns the folder."""
    width, length = setting["beam width"], setting.get("output length")
    folder = parent / f"{width}-{length}"
    return folder if folder.exists() else export(model, folder, width, length)


def point(folder, sources, setting, args):
    """Measures tokens per second and peak memory of one setting, with a new engine.

    Args:
        folder: folder of the setting's artefact.
        sources: ids of all sentences, from which the setting chooses by length.
        setting: dict with a value for each key of `BASE`, and an "output length" if it is forced.
    """
    batch = sorted(sources, key=lambda ids: abs(len(ids) - setting["source length"]))
    batch = batch[: setting["batch size"]]
    task = {"folder": str(folder), "threads": args.threads, "clock": "wall"}
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

    shape, size = (2, len(report["points"])), (1 + 3.3 * len(report["points"]), 5)
    figure, axes = pyplot.subplots(*shape, figsize=size, sharey="row", sharex="col", squeeze=False)
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
    parser.add_argument("--vary", nargs="+", choices=GROWTH, default=list(GROWTH))
    parser.set_defaults(output=bench.RESULTS / "growth.json")
    args = parser.parse_args()
    model, tokenizer = subjects.load_trained(args.model)
    lines, _ = subjects.multi30k(args.data)
    lines += [line.lower() for line in subjects.newstest(args.data)]
    sources = subjects.source_ids(tokenizer, lines)
    points = {name: [] for name in args.vary}
    with tempfile.TemporaryDirectory() as parent:
        for name in args.vary:
            for size in GROWTH[name]:
                setting = BASE | {name: size}
                if name == "output length":
                    setting["beam width"] = FORCED_WIDTH
                folder = artefact(model, Path(parent), setting)
                points[name].append(point(folder, sources, setting, args))
                print(points[name][-1], flush=True)
    report = bench.keep(args, {"rounds": args.rounds, "points": points})
    draw(report, args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
