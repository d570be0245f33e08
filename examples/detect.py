"""Detects objects: predicts the class and the box of each item in a scene.

    python examples/detect.py                 # scenes of drawn shapes
    python examples/detect.py --data DIR      # scenes of Fashion-MNIST, DIR/images

The model is a small DETR (Carion et al. 2020, arXiv 2005.12872). Convolutions compute a vector for
each patch of the scene, and an encoder reads the vectors. In a decoder, object queries attend to
them and to each other, and each query predicts one object or nothing. During training, the
Hungarian algorithm matches queries to objects. The baseline has the same convolutions and predicts
an object for each patch. Needs SciPy.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
from keras import layers, ops
from support.plots import plot_boxes
from support.recipes import learning_rate
from support.scores.detections import detections, mean_average_precision
from support.set_loss import SetLoss, cheapest_match, match_by_cell
from support.sets import scenes
from support.sets.pictures import fashion_mnist, made_pictures
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Predictor

UPDATES = 100  # per epoch
GRID = 8  # patches per row; each has one query
CHOOSE, MEASURE = 500, 1000  # scenes for validation and test
# Size of the vectors, blocks of encoder and decoder, scenes per batch.
SMALL, LARGE = (64, 1, 2, 16), (96, 2, 2, 32)


def predictions(classes):
    """Returns a function from vectors of patches (B, 64, D) to predictions (B, 64, C + 5).

    A prediction has logits of the classes and of "nothing", and a box. The model predicts the
    difference of the box from a square around the patch.
    """
    y, x = (np.mgrid[:GRID, :GRID].reshape(2, -1) + 0.5) / GRID
    cells = np.stack([x, y, np.full(GRID**2, 0.3), np.full(GRID**2, 0.3)], axis=1)
    cells = np.log(cells / (1 - cells)).astype("float32")  # the inverse of the sigmoid
    norm, hidden = layers.LayerNormalization(), layers.Dense(64, "relu")
    logits, shift = layers.Dense(classes + 1), layers.Dense(4, kernel_initializer="zeros")

    def predict(x):
        x = norm(x)
        return ops.concatenate([logits(x), ops.sigmoid(shift(hidden(x)) + cells)], axis=-1)

    return predict


def patches(d_model):
    """Returns an input of scenes (B, 64, 64, 1), and a vector per 8 x 8 pixels, (B, 64, D)."""
    pixels = x = keras.Input((scenes.SIDE, scenes.SIDE, 1), name="pixels")
    for part, strides in ((4, 2), (2, 2), (1, 2), (1, 1), (1, 1)):
        x = layers.Conv2D(d_model // part, 3, strides, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return pixels, layers.Reshape((GRID**2, d_model))(x)


def make_detr(classes, d_model, encoder_blocks, decoder_blocks):
    """Makes two models of scenes (B, 64, 64, 1) with shared layers, for training and inference.

    The first returns predictions of each decoder block (B, L, 64, C + 5), the second only the last.
    """
    options = dict(num_heads=4, d_ff=2 * d_model, dropout=0.0, norm_first=True)
    pixels, x = patches(d_model)
    x = kt.LearnedPositionEncoding(GRID**2)(x)
    for _ in range(encoder_blocks):
        x = kt.EncoderBlock(**options)(x)
    memory = layers.LayerNormalization()(x)
    queries = kt.LearnedPositionEncoding(GRID**2)(memory)  # a learned vector plus the patch's
    predict, found = predictions(classes), []
    for _ in range(decoder_blocks):
        queries = kt.DecoderBlock(**options)(queries, memory, use_causal_mask=False)
        found.append(predict(queries))
    return kt.Model(pixels, ops.stack(found, axis=1)), kt.Model(pixels, found[-1])


def make_baseline(classes, d_model):
    """Makes a model from scenes (B, 64, 64, 1) to a prediction per patch, (B, 64, C + 5)."""
    pixels, x = patches(d_model)
    return kt.Model(pixels, predictions(classes)(x))


def train(args, run, model, match, items, size):
    updates = args.epochs * UPDATES
    rate = learning_rate(peak=1e-3, warmup_steps=updates // 20 + 1, anneal=True, updates=updates)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=1e-4, global_clipnorm=1.0)
    model.compile(optimizer, loss=SetLoss(match), jit_compile=False)  # XLA cannot run SciPy
    valid = scenes.draw_scenes(items["valid"], CHOOSE, np.random.default_rng(1))
    options = dict(epochs=args.epochs, steps_per_epoch=UPDATES, shuffle=False, best="val_loss")
    batches = scenes.batches(items["train"], size, args.seed)
    run.fit(model, batches, validation_data=tuple(valid), validation_batch_size=size, **options)


def find(folder, pixels, overlap=None):
    """Returns ONNX Runtime's detections in each scene."""
    results = Predictor(folder).predict(pixels)
    return [detections(next(iter(one.arrays.values())), overlap=overlap) for one in results]


def main(argv=None):
    args = parse(make_parser("detect", __doc__, epochs=None), argv)
    args.epochs = args.epochs or (30 if args.data else 8)
    *sizes, batch = LARGE if args.data else SMALL
    with TaskRun(args) as run:
        if args.data:
            sets, darkest = fashion_mnist(args.data / "images", args.limit), 0.1
        else:
            sets, darkest = made_pictures(limit=args.limit), 0.5  # above the noise
        parts = {"train": sets.train, "valid": sets.valid, "test": sets.test}
        items = {name: scenes.make_items(*part, darkest) for name, part in parts.items()}
        baseline = make_baseline(len(sets.labels), sizes[0])
        train(args, run, baseline, match_by_cell, items, batch)
        trained, model = make_detr(len(sets.labels), *sizes)
        train(args, run, trained, cheapest_match, items, batch)
        export.export_onnx(baseline, run.path / "baseline")
        export.export_onnx(model, run.path / "onnx")

        # From here on, ONNX Runtime predicts.
        name, scores = "mean average precision at 0.5", {}
        for part, count, seed in (("valid", CHOOSE, 1), ("test", MEASURE, 2)):
            pixels, objects = scenes.draw_scenes(items[part], count, np.random.default_rng(seed))
            found = find(run.path / "onnx", pixels)
            others = find(run.path / "baseline", pixels, overlap=0.5)
            scores[part] = [mean_average_precision(some, objects) for some in (found, others)]
        shown = [[one for one in some if one.score >= 0.5] for some in found[:8]]
        run.draw("boxes.png", plot_boxes(pixels[:8], shown, objects[:8], sets.labels))
        run.write_score(
            model,
            {name: scores["test"][0]},
            {"validation": {name: scores["valid"][0], "convolutions": scores["valid"][1]}},
            data="scenes of Fashion-MNIST" if args.data else "scenes of drawn shapes",
            baseline={f"convolutions, {name}": scores["test"][1]},
        )
        for one in shown[0]:
            print(f"  {sets.labels[one.label]} ({one.score:.0%}) at {np.rint(64 * one.box)}")


if __name__ == "__main__":
    main()
