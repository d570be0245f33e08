"""Training recipes on Multi30k: BLEU in float32 and int8, and whether two recipes differ.

    python examples/translate.py --data multi30k-bpe --undo-bpe --bleu-tokenize none \
        --dtype mixed_bfloat16 --seed 1 --output RUNS/plain-1
    python benchmarks/training_recipes.py --data DATA --runs RUNS \
        --output benchmarks/results/recipes.json

RUNS has a folder RECIPE-SEED for each finished run. Its model translates the validation set and
both test sets with ONNX Runtime, in float32, int8 and int16x8, with the search that the run chose
on the validation set. Two recipes of one seed are compared by sacreBLEU's paired bootstrap (1,000
samples).

Results that the output file has already stay there. So runs of several machines can share a file.
"""

import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bench
import sacrebleu
import subjects
from columns import by_seed
from sacrebleu.significance import PairedTest

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Translator

SETS = ("valid", "test.2016", "test.2017")
PRECISIONS = ("float32", "int8", "int16x8")


def metric():
    return sacrebleu.metrics.BLEU(tokenize="none", force=True)


def measured(args, folder):
    """Returns the figures and the translations of the run in a folder."""
    model, tokenizer = subjects.load_trained(folder)
    run = json.loads((folder / "metrics.json").read_text("utf-8"))
    chosen = run["chosen_on_validation"]
    search = kt.BeamSearch(run["beam_width"], chosen["length_penalty"])
    names = "command seed epochs minutes device parameters versions".split()
    row = {name: run[name] for name in names}
    row |= {"average": chosen["epochs"], "length_penalty": chosen["length_penalty"]}
    row |= {"bleu": {}, "equal": {}, "texts": {}}
    for precision in PRECISIONS:
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "onnx"
            export.export_onnx(model, path, tokenizer, search, precision, verbose=False)
            translator = Translator(path, threads=args.threads)
            row["bleu"][precision] = {}
            for name in SETS:
                sources, references = subjects.multi30k(args.data, name)
                found = translator.translate(sources)
                score = metric().corpus_score(found, [references]).score
                row["bleu"][precision][name] = round(score, 3)
                wanted = row["texts"].setdefault(name, found)  # float32 comes first
                equal = row["equal"].setdefault(precision, {})
                equal[name] = subjects.equal(found, wanted)
    return row


def compared(args, runs):
    """Compares the recipes of each seed with the first one by the paired bootstrap."""
    recipes, rows = by_seed(runs), []
    plain, *others = sorted(recipes, key=lambda name: name != "plain")
    for other in others:
        for seed in sorted(recipes[plain].keys() & recipes[other].keys()):
            names = recipes[plain][seed], recipes[other][seed]
            for part in SETS[1:]:
                systems = [(name, runs[name]["texts"][part]) for name in names]
                _, references = subjects.multi30k(args.data, part)
                test = PairedTest(systems, {"BLEU": metric()}, [references], "bs", n_samples=1000)
                first, second = test()[1]["BLEU"]
                gain = second.score - first.score
                rows.append(
                    {"seed": seed, "recipes": [plain, other], "set": part, "gain": round(gain, 2)}
                    | {"p": second.p_value}
                )
    return rows


def main():
    parser = bench.Parser(__doc__, "data")
    parser.add_argument("--runs", type=Path, required=True, help="folder of finished runs")
    args = parser.parse_args()
    runs = bench.earlier(args).get("runs", {})
    for metrics in sorted(args.runs.glob("*-*/metrics.json")):
        name = metrics.parent.name
        if name not in runs:
            runs[name] = measured(args, metrics.parent)
            print(name, runs[name]["bleu"], flush=True)
    bench.finish(args, "recipes", {"runs": runs, "compared": compared(args, runs)})


if __name__ == "__main__":
    main()
