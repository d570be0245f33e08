"""Forecasts the next days of time series, with one token for each past day.

    python examples/forecast.py                           # made series: no files
    python examples/forecast.py --data DIR                # ETTh1 in DIR/timeseries, 96 hours ahead
    python examples/forecast.py --data DIR --future 168   # a week ahead

Each series is cut into days, and a linear layer projects the 24 numbers of a day to a vector. In
the encoder blocks, the days attend to each other. One matrix maps all days to all hours of the
forecast. All series share the weights (PatchTST, arXiv 2211.14730). The baseline is a linear model,
which is hard to beat here (DLinear, arXiv 2205.13504).
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
from keras import ops
from support.plots import plot_forecast
from support.recipes import learning_rate
from support.sets.linear_forecast import LinearForecast
from support.sets.series import electricity_transformer, made_series
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Predictor

DAY, D_MODEL = 24, 32  # hours; size of the vectors
# Mean squared error on the standardised series of the test set.
PUBLISHED = {96: {"Transformer, mse": 0.499}, 168: {"Informer, mse": 0.878}}


def make_model(past, future, series, blocks):
    """Makes a model from (B, past, series) to (B, future, series)."""
    window = keras.Input((past, series), name="window")
    x = ops.transpose(window, (0, 2, 1))  # (B, series, past)
    # Levels change over the months, so the model predicts differences from the window's mean.
    level = ops.mean(x, axis=-1, keepdims=True)
    x = ops.reshape(x - level, (-1, past // DAY, DAY))  # each series is a row of days
    x = keras.layers.Dense(D_MODEL)(x)  # (B * series, days, D)
    options = dict(num_heads=4, d_ff=2 * D_MODEL, dropout=0.2, norm_first=True)
    # No norm follows the last block, so the residual path is linear. Rotary positions act inside
    # attention and add nothing to it.
    for _ in range(blocks):
        x = kt.EncoderBlock(**options, positions="rotary")(x)
    x = keras.layers.Dropout(0.2)(keras.layers.Flatten()(x))
    x = ops.reshape(keras.layers.Dense(future)(x), (-1, series, future))
    return kt.Model(window, ops.transpose(x + level, (0, 2, 1)))


def train(args, run, windows):
    before, after = windows["train"]
    model = make_model(args.past, args.future, before.shape[-1], args.layers)
    print(f"{model.count_params():,} parameters, {len(before):,} windows to train on")
    updates = args.epochs * -(-len(before) // 64)
    rate = learning_rate(peak=2e-3, warmup_steps=updates // 10 + 1, anneal=True, updates=updates)
    model.compile(keras.optimizers.Adam(rate), loss="mse")
    options = {"validation_data": windows["valid"], "validation_batch_size": 256}
    run.fit(model, before, after, batch_size=64, epochs=args.epochs, best="val_loss", **options)
    return model


def squared_error(forecasts, truth):
    return float(np.square(forecasts - truth).mean())


def main(argv=None):
    parser = make_parser("forecast", __doc__, epochs=8)
    parser.add_argument("--past", type=int, default=336, help="hours, multiple of 24; default: 336")
    parser.add_argument("--future", type=int, default=96, help="hours; default: 96")
    parser.add_argument("--layers", type=int, default=2, help="encoder blocks; default: 2")
    args = parse(parser, argv)
    if args.past % DAY:
        parser.error(f"--past must be a multiple of {DAY} hours, got {args.past}")
    with TaskRun(args) as run:
        sets = electricity_transformer(args.data / "timeseries") if args.data else made_series()
        windows = sets.windows(args.past, args.future, args.limit)
        model = train(args, run, windows)
        export.export_onnx(model, run.path / "onnx")

        # From here on, ONNX Runtime predicts.
        before, after = windows["test"]
        results = Predictor(run.path / "onnx").predict(np.ascontiguousarray(before))
        forecasts = np.stack([next(iter(result.arrays.values())) for result in results])
        linear = LinearForecast(*windows["train"])(before)
        score = {
            "mse": squared_error(forecasts, after),
            "mae": float(np.abs(forecasts - after).mean()),
        }
        days = -(-args.future // DAY)
        same_hour = np.tile(before[:, -DAY:], (1, days, 1))[:, : args.future]
        baseline = {
            "linear, mse": squared_error(linear, after),
            "the last day again, mse": squared_error(same_hour, after),
        }
        middle = len(after) // 2
        shown = {"Transformer": forecasts[middle], "linear": linear[middle]}
        axes = {"unit": "hour", "value": "standard deviations of the training part"}
        figure = plot_forecast(before[middle, -4 * DAY :], after[middle], shown, sets.names, **axes)
        run.draw("forecast.png", figure)
        name = sets.names[-1]
        print(f"  {name}, forecast: {np.round(forecasts[middle, :6, -1], 2)}")
        print(f"  {name}, truth:    {np.round(after[middle, :6, -1], 2)}")
        published = PUBLISHED.get(args.future, {}) if args.data else {}
        data = f"ETTh1, {args.future} hours" if args.data else "made"
        run.write_score(model, score, data=data, baseline=baseline, published=published)


if __name__ == "__main__":
    main()
