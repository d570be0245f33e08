"""Classifies pictures with a Vision Transformer: the tokens are patches and a class token.

    python examples/images.py               # drawn shapes: no files
    python examples/images.py --data DIR    # Fashion-MNIST in DIR/images

A picture is cut into 49 patches, and each becomes a vector. In the encoder blocks, all patches
attend to each other, as words do in a sentence (ViT, arXiv 2010.11929). A learned vector, the class
token, precedes the patches. Its vector after the last block gives the class.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
import tensorflow as tf
from support.plots import plot_confusion, plot_picture_attention
from support.recipes import learning_rate
from support.sets.pictures import fashion_mnist, made_pictures
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export, plots
from keras_transformer.export.runtime import Predictor

D_MODEL, GRID = 64, 7  # size of the vectors, patches in a row
PUBLISHED = {"MLP, accuracy": 0.8833, "2 convolutions with pooling, accuracy": 0.916}


def batches(pixels, classes, seed):
    """Makes shuffled batches of pictures, mirrored at random."""
    mirror = keras.layers.RandomFlip("horizontal", seed=seed)
    dataset = tf.data.Dataset.from_tensor_slices((pixels, classes))
    dataset = dataset.shuffle(len(pixels), seed=seed).batch(128)
    return dataset.map(lambda x, y: (mirror(x, training=True), y)).prefetch(2)


def make_model(classes, num_layers):
    """Makes a model from (B, 28, 28, 1) to (B, classes)."""
    pixels = keras.Input((28, 28, 1), name="pixels")
    # Convolutions learn edges sooner than patches of plain pixels do.
    x = keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(pixels)
    x = keras.layers.Conv2D(D_MODEL, 3, padding="same", activation="relu")(x)
    x = kt.PatchEmbedding(D_MODEL, patch_size=2)(x)  # of 4 x 4 pixels, (B, 49, D)
    x = keras.layers.LayerNormalization()(x)  # to the size of the positions
    x = kt.ClassToken()(x)  # (B, 50, D)
    x = kt.LearnedPositionEncoding(GRID**2 + 1)(x)
    for _ in range(num_layers):
        x = kt.EncoderBlock(num_heads=4, d_ff=2 * D_MODEL, dropout=0.1, norm_first=True)(x)
    x = keras.layers.LayerNormalization()(x[:, 0])  # only the class token
    return kt.Model(pixels, keras.layers.Dense(classes)(x))


def train(args, run, sets):
    model = make_model(len(sets.labels), args.layers)
    print(f"{model.count_params():,} parameters, {len(sets.train[0]):,} pictures to train on")
    data = batches(*sets.train, args.seed)
    updates = args.epochs * len(data)
    rate = learning_rate(peak=2e-3, warmup_steps=updates // 10 + 1, anneal=True, updates=updates)
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.05),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    options = {"validation_data": sets.valid, "validation_batch_size": 500, "shuffle": False}
    run.fit(model, data, epochs=args.epochs, best="val_accuracy", **options)
    return model


def draw_attention(run, model, pixels, captions):
    """Plots the attention of the class token in the last block."""
    weights = plots.block_attention(model, pixels)[-1]  # (B, heads, 50, 50)
    maps = weights[:, :, 0, 1:].reshape(len(pixels), -1, GRID, GRID)
    maps = np.concatenate([maps.mean(axis=1, keepdims=True), maps], axis=1)
    names = ["mean"] + [f"head {head}" for head in range(1, maps.shape[1])]
    run.draw("attention.png", plot_picture_attention(pixels, maps, captions, names))


def main(argv=None):
    parser = make_parser("images", __doc__, epochs=12)
    parser.add_argument("--layers", type=int, default=2, help="encoder blocks; default: 2")
    args = parse(parser, argv)
    with TaskRun(args) as run:
        if args.data:
            sets = fashion_mnist(args.data / "images", args.limit)
        else:
            sets = made_pictures(limit=args.limit)
        model = train(args, run, sets)
        head = export.Classification(sets.labels)
        export.export_onnx(model, run.path / "onnx", head=head)

        # From here on, ONNX Runtime predicts.
        pixels, classes = sets.test
        answers = Predictor(run.path / "onnx").predict(pixels)
        true = [sets.labels[number] for number in classes]
        found = [answer.label for answer in answers]
        right = np.equal(true, found)
        run.draw("confusion.png", plot_confusion(true, found, sets.labels))
        shown = np.unique(classes, return_index=True)[1]  # the first picture of each class
        captions = [f"{true[i]}\n-> {found[i]}" for i in shown]
        draw_attention(run, model, pixels[shown], captions)
        for i in shown[:5]:
            print(f"  a {true[i]} -> {answers[i].label} ({answers[i].probability:.0%})")
        facts = {"data": "Fashion-MNIST", "published": PUBLISHED} if args.data else {"data": "made"}
        run.write_score(model, {"accuracy": float(right.mean())}, **facts)


if __name__ == "__main__":
    main()
