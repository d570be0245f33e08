"""Searches over encoders that read no text: the same tokens in Keras, SavedModel and ONNX.

Two models train for a few minutes to spell the name of their input: a spoken digit (sound, strided
convolutions) and a piece of clothing (patches of an image). Then greedy search, beam search and
sampling run on 300 inputs of the test sets, in batches and in all three forms. ONNX also runs with
more padding, and with single inputs.

    python benchmarks/own_encoders.py --data DATA --output benchmarks/results/own_encoders.json

Shapes: B batch, S frames, W hypotheses, T letters.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import common
import keras
import numpy as np
import onnxruntime
import tensorflow as tf
from support.sets.idx import read_idx
from support.sets.sound import log_bands
from support.sets.spoken_digits import WORDS, spoken_digits

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID, END_ID

CLOTHES = (
    "tshirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
)
LETTERS = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz", 4)}
SIZES = {"d_model": 64, "num_heads": 4, "d_ff": 128, "dropout": 0.1}
BANDS = 24  # per frame of sound
SEARCHES = {
    "greedy": kt.GreedySearch(),
    "beam": kt.BeamSearch(beam_width=4),
    "sampling": kt.Sampling(temperature=0.8, num_samples=2, seed=7),
}
MAX_LENGTH, BATCH, PADDING, TESTED = 12, 50, 17, 300


def speech(data):
    """Reads spoken digits: (frames, digit) of training and test recordings."""
    sets = spoken_digits(data / "speech")
    parts = {"train": sets.train + sets.valid, "test": sets.test}
    return {
        name: [(log_bands(one.samples, BANDS), WORDS.index(one.word)) for one in part]
        for name, part in parts.items()
    }


def pictures(data):
    """Reads images of clothes: (pixels, class) for training and test."""

    def read(part):
        pixels = read_idx(data / "images" / f"{part}-images-idx3-ubyte.gz")[..., None] / 255
        labels = read_idx(data / "images" / f"{part}-labels-idx1-ubyte.gz")
        return list(zip(pixels.astype("float32"), labels.tolist(), strict=True))

    return {"train": read("train")[:12000], "test": read("t10k")}


def sound_model():
    """Frames -> two strided convolutions -> blocks -> letters."""
    frames = keras.Input((None, BANDS), name="frames")
    x = keras.layers.Masking()(frames)
    for _ in range(2):
        x = kt.MaskedConv1D(64, 3, strides=2, activation="gelu")(x)
    x = kt.SinusoidalPositionEncoding()(x)
    for _ in range(2):
        x = kt.EncoderBlock(4, 128)(x)
    return kt.Transformer(30, 1, **SIZES, encoder=keras.Model(frames, x))


def picture_model():
    """Patches -> blocks -> letters."""
    image = keras.Input((28, 28, 1), name="image")
    x = kt.LearnedPositionEncoding(49)(kt.PatchEmbedding(64, 4)(image))
    for _ in range(2):
        x = kt.EncoderBlock(4, 128)(x)
    return kt.Transformer(30, 1, **SIZES, encoder=keras.Model(image, x))


def padded(sources, more=0):
    """Stacks sounds to (B, S, 24), with `more` further frames of zeros; or stacks images."""
    if sources[0].shape == (28, 28, 1):
        return np.stack(sources)
    length = max(map(len, sources)) + more
    return np.stack([np.pad(one, [(0, length - len(one)), (0, 0)]) for one in sources])


def train(model, name, examples, words, epochs):
    """Trains with `fit` on pairs of source and spelled word."""
    spelled = [[LETTERS[letter] for letter in words[label]] for _, label in examples]
    labels = pad_rows([[*row, END_ID] for row in spelled])
    starts = pad_rows([[BEGIN_ID, *row] for row in spelled])
    sources = padded([source for source, _ in examples])
    model.compile(
        keras.optimizers.Adam(1e-3), kt.SequenceCrossentropy(), metrics=[kt.TokenAccuracy()]
    )
    model.fit({name: sources, "target_ids": starts}, labels, 64, epochs, verbose=2)


def compare(model, name, search, tests, folder):
    """Runs a search in three forms; counts differing sources and correctly spelled words."""
    options = {"search": search, "max_length": MAX_LENGTH, "verbose": False}
    export.export_onnx(model, folder / "onnx", **options)
    export.export_saved_model(model, folder / "saved", **options)
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
    loaded = tf.saved_model.load(str(folder / "saved"))
    seed = {"seed": np.array(search.seed, "int32")} if isinstance(search, kt.Sampling) else {}

    def by_onnx(sources):
        return session.run(["token_ids"], {name: sources, **seed})[0]

    def by_saved_model(sources):
        tensors = {key: tf.constant(value) for key, value in {name: sources, **seed}.items()}
        return loaded.signatures["search"](**tensors)["token_ids"].numpy()

    def by_keras(sources):
        return search(model, sources, MAX_LENGTH).ids.numpy()

    differing, right = dict.fromkeys(("saved_model", "onnx", "padding", "alone"), 0), 0
    for start in range(0, len(tests), BATCH):
        part = tests[start : start + BATCH]
        sources = [source for source, _ in part]
        expected = rows_of(by_keras(padded(sources)))
        right += sum(row[0] == spelled for row, (_, spelled) in zip(expected, part, strict=True))
        found = {
            "saved_model": rows_of(by_saved_model(padded(sources))),
            "onnx": rows_of(by_onnx(padded(sources))),
            "padding": rows_of(by_onnx(padded(sources, PADDING))),
            "alone": [rows_of(by_onnx(padded([source])))[0] for source in sources],
        }
        for form, rows in found.items():
            differing[form] += sum(a != b for a, b in zip(rows, expected, strict=True))
    return {"sources": len(tests), "differing": differing, "spelled_right": right / len(tests)}


def rows_of(token_ids):
    """Converts (B, W, T) to nested lists without padding."""
    return [[one[one > 0].tolist() for one in row] for row in token_ids]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("KERAS_TRANSFORMER_DATA"))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, help="where to write the figures as JSON")
    args = parser.parse_args()
    if args.data is None or not Path(args.data).is_dir():
        parser.error("no data folder: pass --data or set KERAS_TRANSFORMER_DATA")
    keras.utils.set_random_seed(1)
    report = common.head(args)
    tasks = {
        "sound to text": (speech, sound_model, "frames", WORDS),
        "picture to text": (pictures, picture_model, "image", CLOTHES),
    }
    for task, (read, make, name, words) in tasks.items():
        parts, model = read(Path(args.data)), make()
        train(model, name, parts["train"], words, args.epochs)
        tests = [
            (source, [LETTERS[letter] for letter in words[label]] + [END_ID])
            for source, label in parts["test"][:TESTED]
        ]
        for kind, search in SEARCHES.items():
            with tempfile.TemporaryDirectory() as folder:
                found = compare(model, name, search, tests, Path(folder))
            report.setdefault(task, {})[kind] = found
            print(task, kind, json.dumps(found), flush=True)
    if args.output:
        args.output.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
