"""Reads a clip of six frames: which garment moves, which stands still, how, and what comes next.

    python examples/video.py               # drawn shapes: no files
    python examples/video.py --data DIR    # Fashion-MNIST in DIR/images

Each frame of 32 x 32 pixels is cut into 16 patches. Two models have the same layers and differ in
what a patch attends to: its place in all frames and then the patches of its frame (TimeSformer,
arXiv 2102.05095, ViViT, arXiv 2103.15691), or all patches of all frames. Both predict the motion,
both garments and the next three frames. A patch of a next frame is a part of the last frame, moved
and scaled (arXiv 1506.02025), mixed with the patch itself, and corrected. Two more models read one
frame only. The other baselines copy or shift the last frame.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

from functools import partial

import keras
import numpy as np
from keras import layers, ops
from support.extrapolation import continued, errors
from support.next_frames import next_frames
from support.plots import plot_picture_rows
from support.recipes import learning_rate
from support.sets.captioned_scenes import Items
from support.sets.clips import GIVEN, MOTIONS, NEXT, SHARED, SIDE, draw_clips
from support.sets.pictures import fashion_mnist, made_pictures
from support.task_run import TaskRun, make_parser, parse
from support.timing import shortest

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Predictor

D_MODEL, PATCH = 64, 8  # size of the vectors, pixels of a patch's side
GRID = SIDE // PATCH  # patches in a row
UPDATES, BATCH = 100, 32  # updates per epoch, clips per update
CHOOSE, MEASURE = 500, 2000  # clips for validation and test
EVERY = slice(GIVEN)
# The frames that a model reads, and the attention of its four blocks.
MODELS = {
    "factorized attention": (EVERY, ("time", "space", "time", "space")),
    "joint attention": (EVERY, ("joint",) * 4),
    "frame 4 only": (slice(SHARED, SHARED + 1), ("space",) * 4),
    "frame 6 only": (slice(GIVEN - 1, GIVEN), ("space",) * 4),
}
OF_CLIPS = [*MODELS][:2]
LABELS = "motion", "moving", "still"
SHIFTED = {"shifted frame": False, "shifted part": True}  # whether only the moving part moves


def attend(x, kind):
    """Applies an encoder block to patches (B, F, P, D): to "space", "time" or both, "joint"."""
    if kind == "time":
        return ops.swapaxes(attend(ops.swapaxes(x, 1, 2), "space"), 1, 2)
    block = kt.EncoderBlock(4, 2 * D_MODEL, dropout=0.0, activation="gelu", norm_first=True)
    _, frames, patches, size = x.shape
    length = patches if kind == "space" else frames * patches
    x = block(ops.reshape(x, (-1, length, size)))
    return ops.reshape(x, (-1, frames, patches, size))


def make_model(count, kinds, classes):
    """Makes a model of clips (B, F, 32, 32): logits of motion and garments, and next frames."""
    frames = keras.Input((count, SIDE, SIDE), name="frames")
    x = kt.PatchEmbedding(D_MODEL, PATCH)(ops.reshape(frames, (-1, SIDE, SIDE, 1)))
    x = layers.LayerNormalization()(x)  # to the size of the positions
    x = ops.reshape(x, (-1, count * GRID**2, D_MODEL))
    x = kt.LearnedPositionEncoding(count * GRID**2)(x)
    x = ops.reshape(x, (-1, count, GRID**2, D_MODEL))
    for kind in kinds:
        x = attend(x, kind)
    x = layers.LayerNormalization()(x)
    mean = ops.mean(x, axis=(1, 2))
    sizes = len(MOTIONS), classes, classes
    found = {name: layers.Dense(n)(mean) for name, n in zip(LABELS, sizes, strict=True)}
    return kt.Model(frames, {**found, "next": next_frames(frames[:, -1], x[:, -1], NEXT)})


def pairs(clips, read):
    """Returns the frames to read, and what the model predicts."""
    labels = dict(zip(LABELS, clips[1:], strict=True))
    return clips.frames[:, read], {**labels, "next": clips.frames[:, GIVEN:]}


def batches(items, read, seed):
    random = np.random.default_rng(seed)
    while True:
        yield pairs(draw_clips(*items, BATCH, random), read)


def train(args, run, model, data, valid):
    """Trains a model; returns its least loss on the validation set."""
    updates = args.epochs * UPDATES
    rate = learning_rate(peak=0.01, warmup_steps=UPDATES, anneal=True, updates=updates)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Muon(rate, adam_lr_ratio=0.2, global_clipnorm=1.0),
        loss={**dict.fromkeys(LABELS, entropy), "next": "mse"},
        loss_weights={**dict.fromkeys(LABELS, 1.0), "next": 50.0},  # to the size of the others
        jit_compile=False,
    )
    options = dict(epochs=args.epochs, steps_per_epoch=UPDATES, shuffle=False, best="val_loss")
    history = run.fit(model, data, validation_data=valid, validation_batch_size=BATCH, **options)
    return min(history.history["val_loss"])


def served(folder, frames):
    """Returns what ONNX Runtime predicts, arrays by name."""
    found = [one.arrays for one in Predictor(folder).predict(frames)]
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def score(found, clips):
    """Returns shares of right labels, and the mean squared error of the next frames."""
    labels = zip(LABELS, clips[1:], strict=True)
    right = {name: float((found[name].argmax(axis=-1) == true).mean()) for name, true in labels}
    return {**right, "next frames, mse": float(errors(found["next"], clips).mean())}


def told(numbers, labels):
    motion, moving, still = numbers
    return f"{labels[moving]} {MOTIONS[motion]}, {labels[still]} still"


def show(run, test, found, simple, labels):
    """Draws every second given frame, the next frames, and two predictions of them."""
    shown = np.random.default_rng(run.args.seed).permutation(len(test.frames))[:8]
    parts = test.frames[:, 1:GIVEN:2], test.frames[:, GIVEN:], found["next"], simple
    rows = np.concatenate([part[shown] for part in parts], axis=1).clip(0, 1)
    true = np.stack(test[1:], axis=1)
    predicted = np.stack([found[name].argmax(axis=-1) for name in LABELS], axis=1)
    captions = ["\n-> ".join(told(some[n], labels) for some in (true, predicted)) for n in shown]
    after = range(GIVEN + 1, GIVEN + NEXT + 1)
    names = [
        *range(2, GIVEN + 1, 2),
        *(f"{n}{w}" for w in ("", "\nmodel", "\nshift") for n in after),
    ]
    run.draw("clips.png", plot_picture_rows(rows, captions, names))


def main(argv=None):
    args = parse(make_parser("video", __doc__, epochs=None), argv)
    args.epochs = args.epochs or (8 if args.data else 3)
    with TaskRun(args) as run:
        if args.data:
            sets, darkest = fashion_mnist(args.data / "images", args.limit), 0.1
        else:
            sets, darkest = made_pictures(limit=args.limit), 0.5  # above the noise
        items = [Items(*part, darkest) for part in sets[:3]]
        items = [(some.pixels[-1], some.classes) for some in items]
        valid = draw_clips(*items[1], CHOOSE, np.random.default_rng(1))
        test = draw_clips(*items[2], MEASURE, np.random.default_rng(2))
        models, losses = {}, {}
        for name, (read, kinds) in MODELS.items():
            model = make_model(pairs(valid, read)[0].shape[1], kinds, len(sets.labels))
            data = batches(items[0], read, args.seed)
            losses[name] = train(args, run, model, data, pairs(valid, read))
            models[name] = model
        best = min(OF_CLIPS, key=losses.get)
        run.save(models[best])
        folders = {name: run.path / ("onnx" if name == best else "other") for name in OF_CLIPS}
        for name, folder in folders.items():
            export.export_onnx(models[name], folder)

        # From here on, ONNX Runtime predicts, except for the models of one frame.
        inputs = test.frames[:, EVERY].copy()
        found = {name: served(folder, inputs) for name, folder in folders.items()}
        for name in [*MODELS][2:]:
            found[name] = models[name].predict(pairs(test, MODELS[name][0])[0], verbose=0)
        scores = {name: score(some, test) for name, some in found.items()}
        simple = {name: continued(valid, test, parts) for name, parts in SHIFTED.items()}
        simple = {"last frame again": test.frames[:, GIVEN - 1 : GIVEN], **simple}
        show(run, test, found[best], simple["shifted part"], sets.labels)
        batch = next(batches(items[0], EVERY, args.seed))
        updates = {name: partial(models[name].train_on_batch, *batch) for name in OF_CLIPS}
        calls = {name: partial(Predictor(folders[name]).predict, inputs[:256]) for name in OF_CLIPS}
        speeds = {name: 1000 * len(inputs[:256]) / spent for name, spent in shortest(calls).items()}
        frames = (best, found[best]["next"]), *simple.items()
        failed = {name: errors(some, test) for name, some in frames}
        by_motion = {
            f"mse of {name}": {
                kind: float(some[test.motions == n].mean()) for n, kind in enumerate(MOTIONS)
            }
            for name, some in failed.items()
        }
        usual = {name: np.bincount(getattr(valid, name)).argmax() for name in ("motions", "moving")}
        times = {
            "milliseconds of an update": shortest(updates),
            "clips per second, ONNX Runtime": speeds,
        }
        baseline = {
            f"most frequent class, {name}": float((getattr(test, name) == one).mean())
            for name, one in usual.items()
        }
        run.write_score(
            models[best],
            scores.pop(best),
            {**scores, "loss on the validation set": losses, **by_motion, **times},
            data="clips of Fashion-MNIST" if args.data else "clips of drawn shapes",
            baseline=baseline | {f"{name}, mse": float(failed[name].mean()) for name in simple},
            chosen=best,
        )


if __name__ == "__main__":
    main()
