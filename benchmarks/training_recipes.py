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

import argparse
import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import common
import recipe_rows
import sacrebleu
from sacrebleu.significance import PairedTest

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Translator
from keras_transformer.text.corpora import read_parallel

SETS = ("valid", "test.2016", "test.2017")
PRECISIONS = ("float32", "int8", "int16x8")


def text(data, name):
    """Returns sources and references of a set: tokenized, lowercase, no BPE."""
    files = [data / "multi30k-bpe" / f"{name}.{language}.gz" for language in ("en", "de")]
    return read_parallel(*files, undo_bpe=True)


def metric():
    return sacrebleu.metrics.BLEU(tokenize="none", force=True)


def measured(args):
    """Returns the figures and the translations of the run in `args.model`."""
    model, tokenizer = common.load_trained(args)
    run = json.loads((args.model / "metrics.json").read_text("utf-8"))
    chosen = run["chosen_on_validation"]
    search = kt.BeamSearch(run["beam_width"], chosen["length_penalty"])
    names = "command seed epochs minutes device parameters versions".split()
    row = {name: run[name] for name in names}
    row |= {"average": chosen["epochs"], "length_penalty": chosen["length_penalty"]}
    row |= {"bleu": {}, "equal": {}, "texts": {}}
    for precision in PRECISIONS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "onnx"
            export.export_onnx(model, path, tokenizer, search, precision, verbose=False)
            translator = Translator(path, threads=args.threads)
            row["bleu"][precision] = {}
            for name in SETS:
                sources, references = text(args.data, name)
                found = translator.translate(sources)
                score = metric().corpus_score(found, [references]).score
                row["bleu"][precision][name] = round(score, 3)
                wanted = row["texts"].setdefault(name, found)  # float32 comes first
                equal = row["equal"].setdefault(precision, {})
                equal[name] = sum(map(str.__eq__, found, wanted))
    return row


def compared(args, runs):
    """Compares the recipes of each seed with the first one by the paired bootstrap."""
    recipes, rows = recipe_rows.by_seed(runs), []
    plain, *others = sorted(recipes, key=lambda name: name != "plain")
    for other in others:
        for seed in sorted(recipes[plain].keys() & recipes[other].keys()):
            names = recipes[plain][seed], recipes[other][seed]
            for part in SETS[1:]:
                systems = [(name, runs[name]["texts"][part]) for name in names]
                _, references = text(args.data, part)
                test = PairedTest(systems, {"BLEU": metric()}, [references], "bs", n_samples=1000)
                first, second = test()[1]["BLEU"]
                gain = second.score - first.score
                rows.append(
                    {"seed": seed, "recipes": [plain, other], "set": part, "gain": round(gain, 2)}
                    | {"p": second.p_value}
                )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.add_arguments(parser)
    parser.add_argument("--runs", type=Path, required=True, help="folder of finished runs")
    args = parser.parse_args()
    args.data = Path(args.data)
    runs = {}
    if args.output and args.output.exists():
        runs = json.loads(args.output.read_text("utf-8"))["runs"]
    for metrics in sorted(args.runs.glob("*-*/metrics.json")):
        args.model = metrics.parent
        if args.model.name not in runs:
            runs[args.model.name] = measured(args)
            scores = runs[args.model.name]["bleu"]
            print(args.model.name, scores, flush=True)
    report = {**common.head(args), "runs": runs, "compared": compared(args, runs)}
    print(recipe_rows.tables(report))
    if args.output:
        common.write(report, args.output)


if __name__ == "__main__":
    main()
