"""Measures Table 1 and section 3.2.1 of the paper (why self-attention) on one page of plots.

    python examples/why_self_attention.py

The plots show the cost of each kind of layer by the length n of its input, the distance over which
a model of such layers learns to relate two tokens, and the effect of the scale 1 / sqrt(d_k).
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
from keras import layers, ops
from support import task_run
from support.plots import Panel, plot_panels
from support.sets.recall import recall_rows
from support.timing import milliseconds

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Predictor

NEIGHBOURS, WIDTH = 16, 5  # r and k of Table 1
LAYERS, LENGTH, VALUES = 3, 128, 16  # of the trained models, and of their data
DISTANCES = [2**i - 1 for i in range(8)]  # 0, 1, 3, ... 127


class RestrictedSelfAttention(layers.Layer):
    """Self-attention in blocks of r positions, each to its own and the previous block."""

    def __init__(self, num_heads, key_dim):
        super().__init__()
        self.attention = kt.MultiHeadAttention(num_heads, key_dim)

    def call(self, x):
        length, size = x.shape[1:]
        blocks = ops.reshape(x, (-1, length // NEIGHBOURS, NEIGHBOURS, size))
        before = ops.concatenate([blocks[:, :1], blocks[:, :-1]], axis=1)
        seen = ops.concatenate([before, blocks], axis=2)  # (B, n / r, 2 r, D)
        blocks, seen = (ops.reshape(part, (-1, *part.shape[2:])) for part in (blocks, seen))
        return ops.reshape(self.attention(blocks, seen), (-1, length, size))


def on_itself(attention):
    return lambda x: attention(x, x)


def convolution(d, dilation):
    return layers.Conv1D(d, WIDTH, padding="causal", dilation_rate=dilation)


KINDS = {  # functions of the size d and the index i of the layer in its model
    "restricted self-attention": lambda d, i: RestrictedSelfAttention(4, d // 4),
    "LSTM": lambda d, i: layers.LSTM(d, return_sequences=True),
    "convolution": lambda d, i: convolution(d, 1),
    "dilated convolution": lambda d, i: convolution(d, WIDTH**i),
    "self-attention": lambda d, i: on_itself(kt.MultiHeadAttention(4, d // 4)),
}


def recall_model(kind, d=32):
    """Makes the encoder of the paper, with another kind of layer instead of self-attention."""
    ids = keras.Input((LENGTH,), dtype="int32", name="ids")
    x = kt.SinusoidalPositionEncoding()(layers.Embedding(2 * VALUES + 1, d)(ids))
    for number in range(LAYERS):
        x = layers.LayerNormalization()(x + KINDS[kind](d, number)(x))
        x = layers.LayerNormalization()(x + kt.FeedForward(2 * d)(x))
    model = kt.Model(ids, layers.Dense(VALUES)(x[:, -1]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.002), loss, metrics=["accuracy"])
    return model


def learn_recall(args, run, train, valid, test):
    """Returns {kind: share of right answers by distance}, and the model of the last kind."""
    ids, labels, distances = test
    found = {}
    for kind in KINDS:
        print(f"training for recall up to {LENGTH - 1} tokens: {kind}", flush=True)
        model = recall_model(kind)
        run.fit(
            model,
            *train[:2],
            validation_data=valid[:2],
            epochs=args.epochs,
            batch_size=64,
            best="val_accuracy",
        )
        right = model.predict(ids, verbose=0).argmax(-1) == labels
        found[kind] = [float(right[distances == distance].mean()) for distance in DISTANCES]
    return found, model


def slopes(rng, sizes, rows=16, n=32):
    """Returns the sensitivity of softmax over keys to scores: mean norm of diag(p) - p p^T."""
    norms = {"scaled dot product": [], "dot product, no scale": [], "additive": []}
    for d_k in sizes:
        q, k = rng.normal(size=(2, rows, n, d_k)).astype("float32")
        weights = (
            kt.scaled_dot_product_attention(q, k, k)[1],
            kt.scaled_dot_product_attention(q * d_k**0.5, k, k)[1],
            kt.AdditiveAttention(d_k)(q, np.tile(np.eye(n), (rows, 1, 1)), k),  # returns weights
        )
        for norm, p in zip(norms.values(), map(ops.convert_to_numpy, weights), strict=True):
            jacobian = np.eye(n) * p[..., None] - p[..., None] * p[..., None, :]
            norm.append(float(np.linalg.norm(jacobian, axis=(-2, -1)).mean()))
    return norms


def main(argv=None):
    parser = task_run.make_parser("why_self_attention", __doc__, epochs=4, data=False)
    parser.add_argument("--longest", type=int, default=2048, help="largest n to time")
    parser.add_argument("--rows", type=int, default=6000, help="training examples")
    args = task_run.parse(parser, argv)
    with task_run.TaskRun(args) as run:
        rng = np.random.default_rng(args.seed)
        sets = (
            recall_rows(rng, rows, LENGTH, DISTANCES, VALUES) for rows in (args.rows, 500, 2000)
        )
        train, valid, test = sets
        recall, model = learn_recall(args, run, train, valid, test)

        lengths = [n for n in (64, 128, 256, 512, 1024, 2048) if n <= args.longest]
        costs = milliseconds({kind: make(128, 0) for kind, make in KINDS.items()}, lengths, 128)
        ways = {
            "scaled dot product": kt.MultiHeadAttention(1, 128),
            "additive": kt.AdditiveAttention(128),
        }
        attentions = milliseconds({way: on_itself(ways[way]) for way in ways}, lengths, 128)
        norms = slopes(rng, sizes := [2**i for i in range(11)])
        n, ms = "sequence length n", "forward pass, ms"
        far, right = [distance + 1 for distance in DISTANCES], "share of right answers"
        run.draw(
            "why_self_attention.png",
            plot_panels(
                [
                    Panel("Cost of a layer, d = 128", n, ms, lengths, costs, True, True),
                    Panel(
                        f"Recall, {LAYERS} layers",
                        "distance + 1, in tokens",
                        right,
                        far,
                        recall,
                        True,
                    ),
                    Panel(
                        "Two kinds of attention, d_k = 128", n, ms, lengths, attentions, True, True
                    ),
                    Panel(
                        "Gradient of the softmax",
                        "d_k",
                        "mean norm of the Jacobian",
                        sizes,
                        norms,
                        True,
                        True,
                    ),
                ]
            ),
        )

        head = export.Classification([str(value) for value in range(VALUES)])
        export.export_onnx(model, run.path / "onnx", head=head)
        found = Predictor(run.path / "onnx").predict(test[0][:5])
        for result, label, distance in zip(found, *test[1:], strict=False):
            print(f"{label} was marked {distance} tokens before the end; predicted: {result.label}")
        score = {
            f"recall over {DISTANCES[-1]}, {kind}": share[-1] for kind, share in recall.items()
        }
        facts = dict(recall=recall, milliseconds=costs, attentions=attentions, slopes=norms)
        run.write_score(model, score, data=f"rows of {LENGTH}", lengths=lengths, **facts)


if __name__ == "__main__":
    main()
