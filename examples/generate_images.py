"""Generates pictures of a given class pixel by pixel, with a decoder.

    python examples/generate_images.py               # drawn shapes: no files
    python examples/generate_images.py --data DIR    # Fashion-MNIST in DIR/images

A picture of 14 x 14 pixels in 16 grey levels is a text of 196 hexadecimal digits, after a digit for
the class. A prompt is a class, or a class with the upper half of a picture. Positions are
two-dimensional: row and column. An epoch is 100 updates. The baselines are the frequencies of grey
levels and a PixelCNN. A classifier trained on real pictures judges the samples.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
import tensorflow as tf
from support import pixel_models
from support.plots import plot_picture_rows
from support.recipes import learning_rate
from support.sets.picture_texts import (
    DIGITS,
    FIRST,
    OnlyCharacters,
    as_pixels,
    as_text,
    digit_tokenizer,
    token_ids,
)
from support.sets.pictures import fashion_mnist, grey_levels, made_pictures
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Generator
from keras_transformer.special_ids import PAD_ID

SIDE, LEVELS = 14, 16  # pixels in a row, grey levels
PIXELS = SIDE**2
UPDATES, BATCH = 100, 32
SMALL = dict(num_layers=2, d_model=64, num_heads=2, d_ff=128)
LARGE = dict(num_layers=3, d_model=64, num_heads=2, d_ff=256)


def batches(ids, seed=None):
    """Makes batches of inputs and labels. The class is given, so the first labels are padding."""
    labels = ids[:, 1:].copy()
    labels[:, :FIRST] = PAD_ID
    dataset = tf.data.Dataset.from_tensor_slices((ids[:, :-1], labels))
    if seed is None:
        return dataset.batch(100)
    return dataset.shuffle(len(ids), seed=seed).repeat().batch(BATCH)


def train(args, run, tokenizer, train_ids, valid_ids):
    model = kt.CausalTransformer(
        tokenizer.vocab_size,
        **(LARGE if args.data else SMALL),
        dropout=0.0,
        norm_first=True,
        activation="gelu",
        # From the class on, each token has the position of the pixel that it predicts.
        positions=kt.GridPositionEncoding(SIDE, start=FIRST, base=100.0),
    )
    updates = args.epochs * UPDATES
    rate = learning_rate(peak=0.01, warmup_steps=UPDATES, anneal=True, updates=updates)
    model.compile(
        keras.optimizers.Muon(rate, adam_lr_ratio=0.2, global_clipnorm=1.0),
        loss=kt.SequenceCrossentropy(),
        jit_compile=True,  # all batches have one shape: XLA compiles once
    )
    options = dict(epochs=args.epochs, steps_per_epoch=UPDATES, best="val_loss", shuffle=False)
    run.fit(model, batches(train_ids, args.seed), validation_data=batches(valid_ids), **options)
    return model


def draw_pictures(generator, prompts, seeds):
    """Samples pictures (prompts, seeds, 14, 14) that start with the prompts."""
    rest = 1 + PIXELS - len(prompts[0])
    drawn = [generator.n_best(prompts, seed=seed, max_length=rest) for seed in seeds]
    pictures = [[as_pixels(found.full_text, SIDE) for found in some] for some in drawn]
    return np.array(pictures).swapaxes(0, 1)


def plot_completions(pixels, completed, labels):
    """Plots the given half of each picture, its completions, and the true picture."""
    given = pixels.astype(float)
    given[:, SIDE // 2 :] = np.nan
    rows = np.concatenate([given[:, None], completed, pixels[:, None]], axis=1)
    names = ["given", *["drawn"] * completed.shape[1], "true"]
    return plot_picture_rows(rows / (LEVELS - 1), labels, names)


def main(argv=None):
    parser = make_parser("generate_images", __doc__, epochs=None)
    parser.add_argument("--samples", type=int, default=20, help="samples per class; default: 20")
    args = parse(parser, argv)
    args.epochs = args.epochs or (7 if args.data else 3)
    with TaskRun(args) as run:
        sets = made_pictures(limit=args.limit)
        if args.data:
            sets = fashion_mnist(args.data / "images", args.limit)
        parts = [(grey_levels(x, SIDE, LEVELS), y) for x, y in sets[:3]]
        labels, (pixels, classes) = sets.labels, parts[2]
        tokenizer = digit_tokenizer()
        train_ids, valid_ids, test_ids = (token_ids(tokenizer, *part) for part in parts)
        model = train(args, run, tokenizer, train_ids, valid_ids[:500])
        search = kt.Sampling(constraints=[OnlyCharacters(tokenizer, DIGITS)])
        export.export_onnx(model, run.path / "onnx", tokenizer, search, max_length=PIXELS)
        bits = model.evaluate(batches(test_ids), verbose=0) / np.log(2)
        epochs = 3 if args.data else 20
        classify = pixel_models.trained_classifier(*parts[:2], LEVELS, epochs)
        seen = args.epochs * UPDATES * BATCH  # pictures, also for the PixelCNN
        cnn_bits = pixel_models.pixel_cnn_bits(*parts, LEVELS, seen, batch_size=64)

        # From here on, ONNX Runtime predicts.
        generator = Generator(run.path / "onnx")
        prompts = [as_text(label, []) for label in range(len(labels))]
        samples = draw_pictures(generator, prompts, range(args.samples))
        shown = np.unique(classes, return_index=True)[1]  # the first picture of each class
        upper = [as_text(classes[i], pixels[i, : SIDE // 2]) for i in shown]
        completed = draw_pictures(generator, upper, range(4))
        run.draw("samples.png", plot_picture_rows(samples[:, :10] / (LEVELS - 1), labels))
        names = [labels[classes[i]] for i in shown]
        run.draw("completions.png", plot_completions(pixels[shown], completed, names))
        found = classify(samples.reshape(-1, SIDE, SIDE)).reshape(len(labels), -1)
        right = found == np.arange(len(labels))[:, None]
        score = {"bits a pixel": float(bits), "samples recognised": float(right.mean())}
        baseline = {
            "frequencies, bits a pixel": pixel_models.frequency_bits(*parts[::2], LEVELS),
            "PixelCNN, bits a pixel": cnn_bits,
            "test pictures recognised": float(np.mean(classify(pixels) == classes)),
        }
        facts = dict(data="Fashion-MNIST" if args.data else "made shapes", baseline=baseline)
        run.write_score(model, score, **facts, samples=right.size)
        for label, some in zip(labels, right, strict=True):
            print(f"  {label}: {some.sum()} of {some.size} samples are recognised")


if __name__ == "__main__":
    main()
