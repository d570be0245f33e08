"""Finds anomalies in series: steps that their neighbours do not explain.

    python examples/anomalies.py                              # made waves
    python examples/anomalies.py --data DIR --set ecg         # needs aeon
    python examples/anomalies.py --data DIR --set bleeding

The model trains on a series without anomalies. It reads a window with a hidden middle, and predicts
the middle from both sides. The anomaly score of a step is the mean squared error around it. The
real sets come with the package aeon, so DIR may be any folder. `--validate` measures on the
validation series; use it to choose settings. The baselines are a moving z-score, the distance to
the nearest training window, and aeon's KMeansAD.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
from keras import ops
from support.baselines import nearest_window_distances
from support.plots import plot_anomalies
from support.recipes import learning_rate
from support.scores.anomalies import anomaly_scores, moving_mean, moving_z_score
from support.sets.anomalies import made_anomalies, read_anomalies
from support.sets.labelled_series import aeon_module
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Predictor

PATCH, PATCHES, D_MODEL = 20, 9, 64  # steps per patch; patches per window, an odd number
SIDE = PATCHES // 2 * PATCH  # steps on each side of the hidden patch
# Widths in steps: mean of the errors; history of the z-score, mean of its scores; KMeansAD.
# The best on the validation series of "ecg".
MEAN, Z_BEFORE, Z_MEAN, K_WINDOW = 20, 20, 80, 80
# Steps of a window, for the nearest training window. The best on the validation series; "bleeding"
# has none, and uses the width of "made".
N_WINDOW = {"made": 20, "ecg": 120, "bleeding": 20}
DATA = {"made": "made waves", "ecg": "ecg-diff-count-3", "bleeding": "UCR 135, InternalBleeding16"}


def parse_arguments(argv):
    parser = make_parser("anomalies", __doc__, epochs=10)
    parser.add_argument("--set", choices=[*DATA][1:], help="set of aeon; needs --data")
    parser.add_argument("--validate", action="store_true", help="measure on the validation series")
    args = parse(parser, argv)
    if bool(args.data) != bool(args.set):
        parser.error("--data and --set go together")
    if args.validate and args.set == "bleeding":
        parser.error("--validate: this set has no validation series")
    return args


def windows_of(series):
    """Returns all windows of a series, (N, S, C), one per start step."""
    windows = np.lib.stride_tricks.sliding_window_view(series, PATCH * PATCHES, axis=0)
    return np.ascontiguousarray(windows.transpose(0, 2, 1))


def make_model(channels):
    """Makes a model from windows (B, S, C) to their hidden middle (B, PATCH, C)."""
    window = keras.Input((PATCH * PATCHES, channels), name="window")
    x = ops.reshape(window, (-1, PATCHES, PATCH * channels))
    shown = np.ones((PATCHES, 1), "float32")
    shown[PATCHES // 2] = 0
    x = keras.layers.Dense(D_MODEL)(x * shown)
    x = kt.LearnedPositionEncoding(PATCHES)(x)
    for _ in range(2):
        x = kt.EncoderBlock(num_heads=4, d_ff=2 * D_MODEL, dropout=0.1, norm_first=True)(x)
    x = keras.layers.LayerNormalization()(x[:, PATCHES // 2])
    x = keras.layers.Dense(PATCH * channels)(x)
    return kt.Model(window, ops.reshape(x, (-1, PATCH, channels)))


def train(args, run, series):
    cut = len(series) * 4 // 5  # the rest is for validation
    parts = [windows_of(part) for part in (series[:cut], series[cut:])]
    data, valid = ((windows, windows[:, SIDE : SIDE + PATCH]) for windows in parts)
    model = make_model(series.shape[1])
    updates = args.epochs * -(-len(parts[0]) // 64)
    rate = learning_rate(peak=2e-3, warmup_steps=updates // 10 + 1, anneal=True, updates=updates)
    model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), loss="mse")
    options = dict(batch_size=64, epochs=args.epochs, best="val_loss")
    run.fit(model, *data, validation_data=valid, **options)
    return model


def guess_errors(predictor, series):
    """Returns the squared error of each step (S,), the mean over its predictions and channels.

    Steps near the ends are never in the middle of a window. They get the median error.
    """
    windows = windows_of(series)
    results = predictor.predict(windows)
    guesses = np.stack([next(iter(result.arrays.values())) for result in results])
    found = np.square(guesses - windows[:, SIDE : SIDE + PATCH]).mean(axis=-1)  # (N, PATCH)
    sums, counts = np.zeros(len(series)), np.zeros(len(series))
    for i in range(PATCH):
        steps = slice(SIDE + i, SIDE + i + len(found))
        sums[steps] += found[:, i]
        counts[steps] += 1
    errors = sums / np.maximum(counts, 1)
    return np.where(counts > 0, errors, np.median(errors[counts > 0]))


def k_means(train, series, seed):
    """Returns the scores (S,) of aeon's KMeansAD: distances of windows to clusters of `train`."""
    module = aeon_module("anomaly_detection.series.distance_based")
    detector = module.KMeansAD(n_clusters=20, window_size=K_WINDOW, random_state=seed)
    detector.fit(train.astype(float), axis=0)
    return detector.predict(series.astype(float), axis=0)


def main(argv=None):
    args = parse_arguments(argv)
    with TaskRun(args) as run:
        sets = read_anomalies(args.set) if args.set else made_anomalies()
        model = train(args, run, sets.train[: args.limit])
        export.export_onnx(model, run.path / "onnx")

        # From here on, ONNX Runtime predicts.
        series, labels = sets.valid if args.validate else sets.test
        errors = guess_errors(Predictor(run.path / "onnx"), series)
        found = {
            "Transformer": moving_mean(errors, MEAN),
            "moving z-score": moving_mean(moving_z_score(series, Z_BEFORE), Z_MEAN),
            "nearest training window": nearest_window_distances(
                sets.train, series, N_WINDOW[args.set or "made"]
            ),
        }
        if args.set:
            found["KMeansAD of aeon"] = k_means(sets.train, series, args.seed)
        run.draw("anomalies.png", plot_anomalies(series, labels, found))
        score, *others = (anomaly_scores(one, labels) for one in found.values())
        baseline = {
            f"{name}, {measure}": value
            for name, measures in zip([*found][1:], others, strict=True)
            for measure, value in measures.items()
        }
        run.write_score(model, score, data=DATA[args.set or "made"], baseline=baseline)
        highest = int(np.argmax(found["Transformer"]))
        where = "in an anomaly" if labels[highest] else "not in an anomaly"
        print(f"  highest score: step {highest}, {where}")


if __name__ == "__main__":
    main()
