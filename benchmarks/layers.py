"""Times of an encoder and a decoder block beside KerasHub's, and beside their bare products.

    python benchmarks/layers.py [--quick] [--threads 2] [--rounds 9] [--output FILE.json]

Backend, sizes, dtype, masks and inputs are the same. Engines take turns in each round; figures are
medians over the rounds. The bare products are the matrix multiplications of a block, with twice as
many in the backward pass. Their time is their number of floating-point operations, divided by the
rate of a 1024 x 1024 float32 product in the same rounds.

Compare the ratios: absolute times depend on the machine.
"""

import functools
import os
import statistics

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bench
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
    blocks = {
        ("encoder", "ours"): functools.partial(kt.EncoderBlock, heads, d_ff),
        ("decoder", "ours"): functools.partial(kt.DecoderBlock, heads, d_ff),
        ("encoder", "keras_hub"): functools.partial(
            keras_hub.layers.TransformerEncoder, d_ff, heads
        ),
        ("decoder", "keras_hub"): functools.partial(
            keras_hub.layers.TransformerDecoder, d_ff, heads
        ),
    }
    count = 1 if kind == "encoder" else 2  # the decoder's second input is the memory
    inputs = [keras.Input((None, d_model)) for _ in range(count)]
    outputs = blocks[kind, engine](dropout=DROPOUT, activation="relu")(*inputs)
    return keras.Model(inputs[0] if count == 1 else inputs, outputs)


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


def finished(function, *arguments):
    """Runs a function until its last result is computed. TensorFlow may return earlier."""
    return keras.tree.flatten(function(*arguments))[-1].numpy()


def measure(kind, shape, rounds):
    """Measures a row: median times of both engines, and of the products alone."""
    d_model, d_ff, heads, batch, length = shape
    generator = np.random.default_rng(0)
    x, memory, upstream, square = (
        tf.constant(generator.normal(size=size), tf.float32)
        for size in [(batch, length, d_model)] * 3 + [(1024, 1024)]
    )
    inputs = x if kind == "encoder" else [x, memory]
    runs = {"rate": (tf.function(tf.matmul), square, square)}
    for engine in ("ours", "keras_hub"):
        forward, backward = forward_and_backward(build(kind, engine, d_model, d_ff, heads))
        runs[engine, "forward"] = (forward, inputs)
        runs[engine, "backward"] = (backward, inputs, upstream)
    turns = {
        name: functools.partial(bench.timed, functools.partial(finished, *run))
        for name, run in runs.items()
    }
    found = bench.in_turn(turns, rounds, warm_up=3, pause=0)
    times = {name: [seconds for seconds, _ in answers] for name, answers in found.items()}
    medians = {name: statistics.median(values) for name, values in times.items()}
    rate = 2 * 1024**3 / medians["rate"]
    flops = block_flops(kind, d_model, d_ff, batch, length)
    row = {"kind": kind, "d_model": d_model, "d_ff": d_ff, "heads": heads, "batch": batch}
    row |= {"length": length, "rate_gflops": rate / 1e9}
    for name, factor in (("forward", 1), ("backward", 3)):
        # A product X W has two more products in its backward pass: the gradients of X and of W.
        row |= {
            f"{name}_ms": 1e3 * medians["ours", name],
            f"{name}_keras_hub_ms": 1e3 * medians["keras_hub", name],
            f"{name}_products_ms": 1e3 * factor * flops / rate,
            f"{name}_speedup": bench.ratio(times["keras_hub", name], times["ours", name]),
            f"{name}_share_of_rate": factor * flops / rate / medians["ours", name],
        }
    return row


def main():
    parser = bench.Parser(__doc__, "rounds", rounds=15)
    parser.add_argument("--quick", action="store_true", help="the three short shapes, 5 rounds")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    shapes, rounds = (SHAPES[::2], 5) if args.quick else (SHAPES, args.rounds)
    rows = [measure(kind, shape, rounds) for shape in shapes for kind in ("encoder", "decoder")]
    report = {"dtype": "float32", "dropout": DROPOUT, "rounds": rounds, "rows": rows}
    bench.finish(args, "layers", report, "keras-hub")


if __name__ == "__main__":
    main()
