"""Times of an encoder and a decoder block beside KerasHub's, and beside their bare products.

    python benchmarks/layers.py [--quick] [--threads 2] [--rounds 9] [--output FILE.json]

Backend, sizes, dtype, masks and inputs are the same. Engines take turns in each round; figures are
medians over the rounds. The bare products are the matrix multiplications of a block, with twice as
many in the backward pass. Their time is their number of floating-point operations, divided by the
rate of a 1024 x 1024 float32 product in the same rounds.

Compare the ratios: absolute times depend on the machine.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import common
import keras
import keras_hub
import numpy as np
import tensorflow as tf

import keras_transformer as kt

# d_model, d_ff, heads, batch, length: small, paper base and big; short and long sequences.
SHAPES = [
    (128, 256, 4, 128, 16),
    (128, 256, 4, 16, 128),
    (512, 2048, 8, 32, 32),
    (512, 2048, 8, 4, 256),
    (1024, 4096, 16, 8, 64),
    (1024, 4096, 16, 2, 256),
]
DROPOUT = 0.1


def block_flops(kind, d_model, d_ff, batch, length):
    """Counts the floating-point operations of the matrix products of one forward pass.

    A product (n, k) (k, m) counts 2 n k m: one multiplication and one addition each. Softmax, norms
    and dropout are not counted.
    """
    tokens = batch * length
    attentions = 1 if kind == "encoder" else 2
    projections = attentions * 4 * d_model * d_model + 2 * d_model * d_ff
    scores = attentions * 2 * length * d_model  # Q K^T and weights V, all heads
    return 2 * tokens * (projections + scores)


def build(kind, engine, d_model, d_ff, heads):
    """Builds a block as a functional model, because users run both engines this way.

    Args:
        kind: "encoder" or "decoder".
        engine: "ours" or "keras_hub".
    """
    inputs = keras.Input((None, d_model))
    options = dict(dropout=DROPOUT, activation="relu")
    if kind == "encoder":
        if engine == "ours":
            outputs = kt.EncoderBlock(heads, d_ff, **options)(inputs)
        else:
            outputs = keras_hub.layers.TransformerEncoder(d_ff, heads, **options)(inputs)
        return keras.Model(inputs, outputs)
    memory = keras.Input((None, d_model))
    if engine == "ours":
        outputs = kt.DecoderBlock(heads, d_ff, **options)(inputs, memory)
    else:
        outputs = keras_hub.layers.TransformerDecoder(d_ff, heads, **options)(inputs, memory)
    return keras.Model([inputs, memory], outputs)


def forward_and_backward(model):
    """Compiles two functions: inference, and a training pass with every gradient.

    Both run without XLA, which halves the speed of TensorFlow on CPUs.
    """

    @tf.function(jit_compile=False)
    def forward(inputs):
        return model(inputs, training=False)

    @tf.function(jit_compile=False)
    def backward(inputs, upstream):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = model(inputs, training=True)
        return tape.gradient(outputs, [model.trainable_variables, inputs], upstream)

    return forward, backward


def timed(function, *arguments):
    """Returns seconds until the last result is computed. TensorFlow may return earlier."""
    start = time.perf_counter()
    result = function(*arguments)
    keras.tree.flatten(result)[-1].numpy()
    return time.perf_counter() - start


def measure(kind, shape, rounds):
    """Measures a row: median times of both engines, and of the products alone.

    Engines take turns within each round, so that a slow moment of the machine affects all of them.
    A ratio is the median of the rounds' ratios.
    """
    d_model, d_ff, heads, batch, length = shape
    generator = np.random.default_rng(0)
    x, memory, upstream, square = (
        tf.constant(generator.normal(size=size), tf.float32)
        for size in [(batch, length, d_model)] * 3 + [(1024, 1024)]
    )
    inputs = x if kind == "encoder" else [x, memory]
    product = tf.function(tf.matmul)
    runs = {"rate": (product, square, square)}
    for engine in ("ours", "keras_hub"):
        forward, backward = forward_and_backward(build(kind, engine, d_model, d_ff, heads))
        runs[engine, "forward"] = (forward, inputs)
        runs[engine, "backward"] = (backward, inputs, upstream)
    for run in runs.values():
        for _ in range(3):
            timed(*run)
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(timed(*run))
    medians = {name: statistics.median(values) for name, values in times.items()}
    rate = 2 * 1024**3 / medians["rate"]
    flops = block_flops(kind, d_model, d_ff, batch, length)
    row = {"kind": kind, "d_model": d_model, "d_ff": d_ff, "heads": heads, "batch": batch}
    row |= {"length": length, "rate_gflops": rate / 1e9}
    for name, factor in (("forward", 1), ("backward", 3)):
        # A product X W has two more products in its backward pass: the gradients of X and of W.
        ratios = zip(times["keras_hub", name], times["ours", name], strict=True)
        row |= {
            f"{name}_ms": 1e3 * medians["ours", name],
            f"{name}_keras_hub_ms": 1e3 * medians["keras_hub", name],
            f"{name}_products_ms": 1e3 * factor * flops / rate,
            f"{name}_speedup": statistics.median(a / b for a, b in ratios),
            f"{name}_share_of_rate": factor * flops / rate / medians["ours", name],
        }
    return row


def table(rows):
    """Returns the rows as a Markdown table."""
    lines = [
        "| block | d_model | batch x length | pass | ours ms | KerasHub ms | products ms | "
        "times KerasHub | share of matrix rate |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        for name, label in (("forward", "forward"), ("backward", "forward + backward")):
            lines.append(
                f"| {row['kind']} | {row['d_model']} | {row['batch']} x {row['length']} | {label} "
                f"| {row[f'{name}_ms']:.1f} | {row[f'{name}_keras_hub_ms']:.1f} "
                f"| {row[f'{name}_products_ms']:.1f} | {row[f'{name}_speedup']:.2f} "
                f"| {row[f'{name}_share_of_rate']:.0%} |"
            )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the three short shapes, 5 rounds")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, help="write the figures here as JSON")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    shapes, rounds = (SHAPES[::2], 5) if args.quick else (SHAPES, args.rounds)
    rows = []
    for shape in shapes:
        for kind in ("encoder", "decoder"):
            rows.append(measure(kind, shape, rounds))
            print(table(rows[-1:]) if len(rows) == 1 else table(rows[-1:]).split("\n", 2)[2])
    report = common.head(args) | {
        "dtype": "float32",
        "dropout": DROPOUT,
        "rounds": rounds,
        "rows": rows,
    }
    report["versions"] = {m.__name__: m.__version__ for m in (tf, keras, keras_hub)}
    print(json.dumps({name: report[name] for name in ("date", "versions", "machine")}))
    if args.output:
        common.write(report, args.output)


if __name__ == "__main__":
    main()
