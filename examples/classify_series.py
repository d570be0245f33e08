"""Classifies series of any length: speakers of a vowel, gestures of a hand, or motions.

    python examples/classify_series.py                                      # made gestures
    python examples/classify_series.py --data DIR --set JapaneseVowels      # needs aeon
    python examples/classify_series.py --data DIR --set BasicMotions

Each step of a series is a token. Convolutions combine it with its neighbours, and a class token
attends to all steps. Short series are padded with steps of zeros, which are masked out. The real
sets come with the package aeon, so DIR may be any folder. The model trains on the whole training
set for a fixed number of epochs. `--validate` holds out a fifth of it and measures on that part;
use it to choose settings. ROCKET (Dempster et al. 2020, arXiv 1910.13051) is the baseline.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
from support.baselines import series_classes
from support.plots import plot_confusion, plot_series_attention
from support.recipes import learning_rate
from support.sets.labelled_series import LabelledSeries, aeon_module, folds, made_gestures, read_uea
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export, plots
from keras_transformer.export.runtime import Predictor

# Width of the first convolution, its strides, dropout, epochs.
SETS = {"made": (5, 1, 0.1, 30), "JapaneseVowels": (3, 1, 0.3, 60), "BasicMotions": (7, 2, 0.3, 60)}
D_MODEL = 64


def parse_arguments(argv):
    parser = make_parser("classify_series", __doc__, epochs=None)
    parser.add_argument("--set", choices=[*SETS][1:], help="set of aeon; needs --data")
    parser.add_argument("--validate", action="store_true", help="measure on a held-out part")
    args = parse(parser, argv)
    if bool(args.data) != bool(args.set):
        parser.error("--data and --set go together")
    *settings, epochs = SETS[args.set or "made"]
    args.epochs = args.epochs or epochs
    return args, settings


def held_out(some):
    """Splits a set into four fifths and one fifth of its series."""
    out = folds(some.labels, 5) == 0
    pairs = list(zip(*some, strict=True))
    parts = [[pair for pair, o in zip(pairs, out, strict=True) if o == one] for one in (0, 1)]
    return [LabelledSeries(*map(list, zip(*part, strict=True))) for part in parts]


def make_model(channels, classes, width, strides, dropout):
    """Makes a model from series (B, S, C) to class logits."""
    frames = keras.Input((None, channels), name="series")
    x = keras.layers.Masking()(frames)  # steps of zeros are padding
    x = keras.layers.GaussianNoise(0.1)(x)
    x = kt.MaskedConv1D(D_MODEL, width, strides=strides, activation="gelu")(x)
    x = keras.layers.LayerNormalization()(kt.MaskedConv1D(D_MODEL, 3, activation="gelu")(x))
    x = keras.layers.Dropout(dropout)(x)
    x = kt.SinusoidalPositionEncoding()(kt.ClassToken()(x))  # (B, S + 1, D)
    for _ in range(2):
        x = kt.EncoderBlock(4, 2 * D_MODEL, dropout)(x)
    x = keras.layers.Dropout(dropout)(x[:, 0])
    return kt.Model(frames, keras.layers.Dense(classes)(x))


def train(args, run, some, labels, settings):
    batches = kt.feature_batches(
        *some, tokens_per_batch=1024, label_names=labels, max_length=512, seed=args.seed
    )
    print(f"training: {batches.batches.report}")
    model = make_model(some.series[0].shape[1], len(labels), *settings)
    updates = args.epochs * len(batches)
    rate = learning_rate(peak=1e-3, warmup_steps=updates // 10 + 1, anneal=True, updates=updates)
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0),
        loss=kt.SequenceCrossentropy(label_smoothing=0.1, pad_id=-1),
        metrics=[kt.TokenAccuracy(pad_id=-1, name="accuracy")],
    )
    run.fit(model, batches, epochs=args.epochs)
    return model


def rocket(train, test, seed):
    """Returns the accuracy of ROCKET. It needs equal lengths, so zeros pad short series."""
    classifier = aeon_module("classification.convolution_based").RocketClassifier(random_state=seed)
    longest = max(len(one) for some in (train, test) for one in some.series)
    first, second = (
        np.stack([np.pad(one, [(0, longest - len(one)), (0, 0)]).T for one in some.series])
        for some in (train, test)
    )
    found = classifier.fit(first, np.array(train.labels)).predict(second)
    return float(np.mean(found == np.array(test.labels)))


def draw_attention(run, model, test, found, strides):
    """Plots the attention of the class token in the last block, averaged over heads."""
    shown = [test.labels.index(label) for label in dict.fromkeys(test.labels)][:6]
    series, weights = [test.series[i] for i in shown], []
    for one in series:
        maps = plots.block_attention(model, one[None])[-1]  # (1, H, S + 1, S + 1)
        weights.append(np.repeat(maps[0, :, 0, 1:].mean(axis=0), strides)[: len(one)])
    labels = [f"{test.labels[i]} -> {found[i]}" for i in shown]
    run.draw("series.png", plot_series_attention(series, weights, labels))


def main(argv=None):
    args, settings = parse_arguments(argv)
    with TaskRun(args) as run:
        training, test = read_uea(args.set, args.limit) if args.set else made_gestures(args.limit)
        if args.validate:
            training, test = held_out(training)
        labels = sorted({*training.labels, *test.labels})
        model = train(args, run, training, labels, settings)
        export.export_onnx(model, run.path / "onnx", head=export.Classification(labels))

        answers = Predictor(run.path / "onnx").predict(test.series)
        found = [answer.label for answer in answers]
        linear = series_classes(training.series, training.labels, test.series)
        accuracy, baseline = (
            float(np.mean([a == b for a, b in zip(some, test.labels, strict=True)]))
            for some in (found, linear)
        )
        usual = max(labels, key=training.labels.count)
        baseline = {
            f"always {usual!r}": test.labels.count(usual) / len(found),
            "logistic regression on statistics": baseline,
        }
        if args.set:
            baseline["ROCKET of aeon"] = rocket(training, test, args.seed)
        run.draw("confusion.png", plot_confusion(test.labels, found, labels))
        draw_attention(run, model, test, found, settings[1])
        data = args.set or "made gestures"
        run.write_score(model, {"accuracy": accuracy}, data=data, baseline=baseline)
        for true, answer in zip(test.labels[:5], answers, strict=False):
            print(f"  {answer.label} ({answer.probability:.2f}), true class: {true}")


if __name__ == "__main__":
    main()
