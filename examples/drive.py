"""Drives on a motorway: a policy whose attention reads the other vehicles as a set.

    python examples/drive.py    # highway-env; no files

The driver model of highway-env drives, and now and then a random action brings it into a new
situation. A Transformer learns its advice. Each vehicle is a token; without positions, their order
has no effect. Then ONNX Runtime drives on roads of new seeds. The baselines are an MLP of the same
size, constant actions, random actions, and the driver model. The attention of the own vehicle to
the others follows Leurent and Mercat (2019, arXiv 1911.12250). Needs highway-env.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
from support.plots import plot_roads
from support.recipes import learning_rate
from support.sets.roads import ACTIONS, DISTANCE, LANE, Road, demonstrations, with_mirrored
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export, plots
from keras_transformer.export.runtime import Predictor

D_MODEL = 64  # size of the vectors
FIRST_DRIVE = 10**9  # seeds that no demonstration has


def make_model(vehicles, features):
    """Makes a model from views (B, vehicles, features) to action logits (B, 5)."""
    view = keras.Input((vehicles, features), name="view")
    x = keras.layers.Masking()(view)  # rows of zeros are absent vehicles
    x = keras.layers.Dense(D_MODEL, activation="gelu")(x)
    x = keras.layers.Dense(D_MODEL)(x)
    for _ in range(2):
        x = kt.EncoderBlock(num_heads=4, d_ff=2 * D_MODEL, dropout=0.05, norm_first=True)(x)
    x = keras.layers.LayerNormalization()(x[:, 0])  # only the own vehicle
    return kt.Model(view, keras.layers.Dense(len(ACTIONS))(x))


def make_mlp(vehicles, features, parameters):
    """Makes an MLP of about as many parameters. It reads the vehicles sorted by distance."""
    both = vehicles * features + len(ACTIONS) + 2
    hidden = round((np.sqrt(both**2 + 4 * parameters) - both) / 2)
    view = keras.Input((vehicles, features), name="view")
    x = keras.layers.Flatten()(view)
    for _ in range(2):
        x = keras.layers.Dropout(0.05)(keras.layers.Dense(hidden, activation="gelu")(x))
    return kt.Model(view, keras.layers.Dense(len(ACTIONS))(x))


def train(args, run, model, views, advice):
    """Trains on nine tenths of the steps; the first tenth chooses the epoch."""
    held = len(views) // 10
    data = with_mirrored(views[held:], advice[held:])
    updates = args.epochs * -(-len(data[0]) // 128)
    rate = learning_rate(peak=2e-3, warmup_steps=updates // 10 + 1, anneal=True, updates=updates)
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    options = dict(batch_size=128, epochs=args.epochs, best="val_loss")
    run.fit(model, *data, validation_data=(views[:held], advice[:held]), **options)
    return max(model.history.history["val_accuracy"])


def drive(choose, drives, first=FIRST_DRIVE):
    """Drives side by side, so that ONNX Runtime processes one batch per step.

    Args:
        choose: function (views (B, V, F), B roads) -> B indices of `ACTIONS`.
        drives: int, number of drives.
        first: int, the seed of the first drive; the next ones follow.

    Returns:
        Dict of scores, and all views (T, V, F).
    """
    roads = {number: Road() for number in range(drives)}
    views = {number: road.start(first + number) for number, road in roads.items()}
    crashes, speeds, seen = 0, [], []
    while roads:
        batch = np.stack([views[number] for number in roads])
        seen.append(batch)
        actions = choose(batch, list(roads.values()))
        for (number, road), action in zip(list(roads.items()), actions, strict=True):
            views[number], ended, crashed, speed = road.step(action)
            crashes, speeds = crashes + crashed, [*speeds, speed]
            if ended:
                del roads[number]
    scores = {"crashes in 100 drives": 100 * crashes / drives, "mean m/s": float(np.mean(speeds))}
    return scores, np.concatenate(seen)


def served(folder):
    """Returns the policy of an export, for `drive`."""
    predictor = Predictor(folder)

    def choose(views, roads):
        results = predictor.predict(views)
        return [int(np.argmax(next(iter(result.arrays.values())))) for result in results]

    return choose


def draw_attention(run, model, choose, views):
    """Plots the attention of the own vehicle in the last block, for a scene of each action."""
    views = views[views[:, :, 0].sum(axis=1) >= 6]  # with five other vehicles or more
    actions = np.array(choose(views, None))
    shown = [np.flatnonzero(actions == number)[:1] for number in (0, 2, 3, 4)]
    shown = np.concatenate(shown)
    weights = plots.block_attention(model, views[shown])[-1].mean(axis=1)[:, 0]  # (B, vehicles)
    present = views[shown, :, 0] > 0
    places = views[shown, :, 2:4] * [DISTANCE, LANE]
    places[:, 1:, 1] += places[:, :1, 1]
    places[:, :, 1] += LANE  # from the middle lane to the left one
    titles = [ACTIONS[number] for number in actions[shown]]
    places, weights = (
        [one[here] for one, here in zip(some, present, strict=True)] for some in (places, weights)
    )
    run.draw("attention.png", plot_roads(places, weights, titles))


def main(argv=None):
    parser = make_parser("drive", __doc__, epochs=20, data=False)
    add = parser.add_argument
    add("--demonstrations", type=int, default=300, help="drives to learn from; default: 300")
    add("--drives", type=int, default=200, help="drives to measure; default: 200")
    args = parse(parser, argv)
    with TaskRun(args) as run:
        views, advice = demonstrations(args.limit or args.demonstrations, seed=args.seed)
        print(f"{len(views):,} steps: {dict(zip(ACTIONS, np.bincount(advice), strict=False))}")
        shape = views.shape[1:]
        model = make_model(*shape)
        mlp = make_mlp(*shape, model.count_params())
        agreed = {"MLP": train(args, run, mlp, views, advice)}
        export.export_onnx(mlp, run.path / "mlp")
        agreed["Transformer"] = train(args, run, model, views, advice)
        export.export_onnx(model, run.path / "onnx")

        # From here on, ONNX Runtime drives.
        policy, draw = served(run.path / "onnx"), np.random.default_rng(args.seed)
        score, seen = drive(policy, args.drives)
        draw_attention(run, model, policy, seen)
        others = {
            "MLP of the same size": served(run.path / "mlp"),
            "always keep": lambda views, roads: [1] * len(roads),
            "always slower": lambda views, roads: [4] * len(roads),
            "random": lambda views, roads: draw.integers(len(ACTIONS), size=len(roads)),
            "the driver model": lambda views, roads: [road.advice() for road in roads],
        }
        baseline = {}
        for name, choose in others.items():
            found, _ = drive(choose, args.drives)
            baseline |= {f"{name}, {measure}": value for measure, value in found.items()}
        facts = dict(data="highway-env", baseline=baseline, drives=args.drives)
        run.write_score(model, score, {"agreement with the driver model": agreed}, **facts)


if __name__ == "__main__":
    main()
