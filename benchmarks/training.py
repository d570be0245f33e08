"""One optimiser step of the Transformer, timed beside KerasHub's blocks and torch.nn.Transformer.

    python benchmarks/training.py [--quick] [--threads 2] [--rounds 7] [--output FILE.json]

Ours runs in `model.fit`; KerasHub's encoder and decoder blocks run in `model.fit`, too, with our
embeddings and loss, on the same backend (`KERAS_BACKEND`, default tensorflow); PyTorch's run in a
plain loop. Same sizes, parameters, tokens, label smoothing and optimiser (Adam), full rows of
random ids; dropout on embeddings and on each sublayer's output. KerasHub drops attention weights,
too, and cannot be told otherwise: ours does the same where it is compared with KerasHub, and nobody
does where it is compared with PyTorch. At tiny size `fit` is also held against a plain
`tf.GradientTape` loop over the same model, with smoothed one-hot labels times a log-softmax: in
float32, and with `fit` in mixed_bfloat16, which is how the README's translator was trained.

The two engines of a pair are processes of their own that take turns; figures are medians over the
rounds, ratios those of one round. `share of rate` is the floating-point operations of the model's
products, forward and backward (three times forward), a second, over those of a large product alone,
which every engine times before each of its rounds (the fastest engine's median counts). Memory is
the process's peak, frameworks included. Ratios are what to quote: absolute times hold for one
machine in one state.
"""

import argparse
import importlib.metadata
import importlib.util
import itertools
import os
import statistics
import sys
import time
from pathlib import Path

import common
import workers
from workers import Missing, Worker, WorkerError

SIZES = {
    "tiny": dict(num_layers=4, d_model=128, num_heads=4, d_ff=256),
    "base": dict(num_layers=6, d_model=512, num_heads=8, d_ff=2048),
    "big": dict(num_layers=6, d_model=1024, num_heads=16, d_ff=4096),
}
VOCABULARY = {"tiny": 10_000, "base": 32_000, "big": 32_000}
# Rows x tokens on either side, and steps a round.
BATCHES = {"tiny": (256, 16, 8), "base": (32, 32, 2), "big": (16, 64, 1)}
QUICK_BATCHES = {"tiny": (256, 16, 3), "base": (32, 32, 1), "big": (2, 64, 1)}
# Ours is compared with each rival under the rival's rules of dropout.
PAIRS = (("ours", "torch"), ("ours_attention_dropout", "keras_hub"))
TINY_PAIRS = (("ours", "gradient_tape"), ("ours_bfloat16", "gradient_tape"))
DROPOUT = 0.1
SMOOTHING = 0.1
RATE = 1e-4
PRODUCT_SIZE = {"cpu": 2048, "gpu": 8192}
PRODUCTS = 4


def step_flops(size, vocabulary, batch, length):
    """Floating-point operations of all products of a training step, both sides `length` long."""
    d_model, d_ff, tokens = size["d_model"], size["d_ff"], batch * length
    attention = 4 * d_model**2 + 2 * length * d_model  # projections; Q K^T and weights V
    network = 2 * d_model * d_ff
    layer = (attention + network) + (2 * attention + network)  # encoder's and decoder's
    forward = 2 * tokens * (size["num_layers"] * layer + d_model * vocabulary)
    return 3 * forward


def random_batch(task, steps):
    """Source ids, target ids and labels of all steps of a round, (steps B, T) each."""
    import numpy as np

    generator = np.random.default_rng(task["seed"])
    shape = (3, steps * task["batch"], task["length"])
    return generator.integers(4, task["vocabulary"], shape).astype("int32")


# --- engines: each a function of the task that gives facts and a round ---


def set_up(task):
    """What a `Worker` of this script does: an engine, ready to train."""
    with_keras = task["engine"] != "torch"
    if with_keras:
        workers.use_checkout()
        import keras

        framework = keras.backend.backend()
    else:
        framework = "torch"
    workers.set_precision(framework, task["precision"])
    if task["device"] == "gpu" and not workers.gpus(framework):
        raise Missing(f"{framework} sees no GPU")
    parameters, train = (keras_engine if with_keras else torch_engine)(task)
    product = keras_product(task) if with_keras else torch_product(task)

    def run():
        product()
        start = time.perf_counter()
        product()
        middle = time.perf_counter()
        train_seconds = train()
        on_gpu = task["device"] == "gpu"
        return {
            "flops_per_second": 2 * PRODUCTS * product_size(task) ** 3 / (middle - start),
            "seconds": train_seconds / task["steps"],
            "memory": workers.gpu_memory(framework) if on_gpu else workers.peak_memory(),
        }

    return {"parameters": parameters, "framework": framework}, run


def product_size(task):
    return task.get("product_size") or PRODUCT_SIZE[task["device"]]


def keras_engine(task):
    import keras

    import keras_transformer as kt

    keras.utils.set_random_seed(task["seed"])
    if task["engine"] == "keras_hub":
        model = keras_hub_model(task)
    else:
        attention_dropout = DROPOUT if task["engine"] == "ours_attention_dropout" else 0.0
        model = kt.Transformer(
            task["vocabulary"],
            **task["size"],
            dropout=DROPOUT,
            attention_dropout=attention_dropout,
            use_bias=True,  # as the others have them
            dtype=workers.dtype_policy(
                "bfloat16" if task["engine"] == "ours_bfloat16" else task["precision"]
            ),
        )
    if task["engine"] == "gradient_tape":
        return model.count_params(), plain_loop(model, task)
    # XLA halves the speed of TensorFlow on CPUs; JAX has nothing else.
    xla = task["device"] == "gpu" and keras.backend.backend() == "tensorflow"
    compiled = keras.backend.backend() == "jax" or xla
    model.compile(
        keras.optimizers.Adam(RATE, 0.9, 0.98, 1e-9),
        loss=kt.SequenceCrossentropy(label_smoothing=SMOOTHING),
        jit_compile=compiled,
    )
    source, target, labels = random_batch(task, task["steps"])
    x, clock = {"source_ids": source, "target_ids": target}, []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: clock.append(time.perf_counter()),
        on_epoch_end=lambda epoch, logs: clock.append(time.perf_counter()),
    )

    def train():
        # The logs are numbers at the end of an epoch: every step is done by then.
        clock.clear()
        model.fit(x, labels, task["batch"], epochs=1, shuffle=False, verbose=0, callbacks=[note])
        return clock[1] - clock[0]

    return model.count_params(), train


def plain_loop(model, task):
    """What one writes without `fit` and without our loss."""
    import keras
    import tensorflow as tf

    optimizer = keras.optimizers.Adam(RATE, 0.9, 0.98, 1e-9)
    optimizer.build(model.trainable_variables)
    batches = tf.data.Dataset.from_tensor_slices(tuple(random_batch(task, task["steps"])))
    batches = batches.batch(task["batch"]).prefetch(2)

    @tf.function
    def step(source, target, labels):
        vocabulary = task["vocabulary"]
        with tf.GradientTape() as tape:
            logits = model({"source_ids": source, "target_ids": target}, training=True)
            smoothed = tf.one_hot(labels, vocabulary) * (1 - SMOOTHING) + SMOOTHING / vocabulary
            losses = -tf.reduce_sum(smoothed * tf.nn.log_softmax(logits), axis=-1)  # (B, T)
            real = tf.cast(labels != 0, tf.float32)
            loss = tf.reduce_sum(losses * real) / tf.reduce_sum(real)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    def train():
        start = time.perf_counter()
        for batch in batches:
            loss = step(*batch)
        float(loss)  # waits
        return time.perf_counter() - start

    return train


def keras_hub_model(task):
    """KerasHub's blocks with our embeddings: positions, masks and logits are the same as ours."""
    import keras
    import keras_hub

    import keras_transformer as kt

    size, dtype = task["size"], workers.dtype_policy(task["precision"])
    block = dict(intermediate_dim=size["d_ff"], num_heads=size["num_heads"], dropout=DROPOUT)
    block["dtype"] = dtype
    ids = {name: keras.Input((None,), dtype="int32", name=name)
           for name in ("source_ids", "target_ids")}  # fmt: skip
    embedding = kt.TokenEmbedding(task["vocabulary"], size["d_model"], dtype=dtype)

    def embed(ids):
        x = kt.SinusoidalPositionEncoding(dtype=dtype)(embedding(ids))
        return keras.layers.Dropout(DROPOUT, dtype=dtype)(x), kt.padding_mask(ids)

    memory, source_mask = embed(ids["source_ids"])
    for _ in range(size["num_layers"]):
        memory = keras_hub.layers.TransformerEncoder(**block)(memory, padding_mask=source_mask)
    x, target_mask = embed(ids["target_ids"])
    for _ in range(size["num_layers"]):
        x = keras_hub.layers.TransformerDecoder(**block)(
            x, memory, decoder_padding_mask=target_mask, encoder_padding_mask=source_mask
        )
    return keras.Model(ids, embedding.logits(x))


def keras_product(task):
    import keras
    import numpy as np

    size, low = product_size(task), task["precision"] in ("bfloat16", "float16")
    # Variance 1 / size: products of products stay of size 1.
    matrix = np.random.default_rng(0).normal(size=(size, size)) / size**0.5
    dtype = task["precision"] if low else "float32"
    matrix = keras.ops.cast(keras.ops.convert_to_tensor(matrix.astype("float32")), dtype)

    def product():
        x = matrix
        for _ in range(PRODUCTS):
            x = keras.ops.matmul(x, matrix)
        return float(keras.ops.cast(x[0, 0], "float32"))  # waits

    return product


def torch_engine(task):
    import torch
    from torch import nn

    torch.manual_seed(task["seed"])
    torch.set_num_threads(task["threads"])
    device = "cuda" if task["device"] == "gpu" else "cpu"
    size = task["size"]
    model = torch_model(task["vocabulary"], task["length"], **size).to(device)
    step = torch.compile(model) if task["device"] == "gpu" else model
    optimizer = torch.optim.Adam(model.parameters(), RATE, (0.9, 0.98), 1e-9, fused=True)
    batches = torch.from_numpy(random_batch(task, task["steps"])).long()
    low = task["precision"] in ("bfloat16", "float16")

    def train():
        start = time.perf_counter()
        for batch in batches.split(task["batch"], dim=1):
            source, target, labels = batch.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=low):
                logits = step(source, target)
            loss = nn.functional.cross_entropy(
                logits.float().flatten(0, 1),
                labels.flatten(),
                ignore_index=0,
                label_smoothing=SMOOTHING,
            )
            loss.backward()
            optimizer.step()
        loss.item()  # waits
        return time.perf_counter() - start

    return sum(weight.numel() for weight in model.parameters()), train


def torch_model(vocabulary, length, num_layers, d_model, num_heads, d_ff):
    """`torch.nn.Transformer` between tied embeddings, with the paper's places of dropout."""
    import torch
    from torch import nn

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, d_model)
            nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
            options = dict(dim_feedforward=d_ff, dropout=DROPOUT, batch_first=True)
            self.blocks = nn.Transformer(d_model, num_heads, num_layers, num_layers, **options)
            # A post-norm stack ends with a norm already. Dropout is on sublayers' outputs alone.
            self.blocks.encoder.norm = self.blocks.decoder.norm = None
            for layer in [*self.blocks.encoder.layers, *self.blocks.decoder.layers]:
                layer.dropout = nn.Identity()
                layer.self_attn.dropout = 0.0
                if hasattr(layer, "multihead_attn"):
                    layer.multihead_attn.dropout = 0.0
            self.dropout = nn.Dropout(DROPOUT)
            angles = torch.arange(length)[:, None] / 10000 ** (
                torch.arange(0, d_model, 2) / d_model
            )
            table = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)  # (T, D)
            self.register_buffer("positions", table)
            future = torch.ones(length, length, dtype=torch.bool).triu(1)
            self.register_buffer("future", future)  # True = may not attend

        def embed(self, ids):
            return self.dropout(self.embedding(ids) * d_model**0.5 + self.positions)

        def forward(self, source, target):
            x = self.blocks(
                self.embed(source),
                self.embed(target),
                tgt_mask=self.future,
                src_key_padding_mask=source == 0,
                tgt_key_padding_mask=target == 0,
                memory_key_padding_mask=source == 0,
                tgt_is_causal=True,
            )
            return x @ self.embedding.weight.T

    return Translator()


def torch_product(task):
    import torch

    size, low = product_size(task), task["precision"] in ("bfloat16", "float16")
    device = "cuda" if task["device"] == "gpu" else "cpu"
    matrix = torch.randn(size, size, device=device) / size**0.5
    matrix = matrix.to(getattr(torch, task["precision"])) if low else matrix

    def product():
        x = matrix
        for _ in range(PRODUCTS):
            x = x @ matrix
        return float(x[0, 0])  # waits

    return product


# --- the comparison ---


def compare(task, engines, rounds, packages=None):
    """Two engines, or ours alone, in turn: a row of figures.

    Args:
        task: dict with size, vocabulary, batch, length, steps, precision, device, threads, seed.
        engines: names; the first is ours.
        rounds: number of rounds, after one to warm up.
        packages: see `workers.environment`.

    Raises:
        Missing, WorkerError: see `Worker`.
    """
    backend = task.get("backend") or os.environ.get("KERAS_BACKEND", "tensorflow")
    environment = workers.environment(task["device"], task["threads"], backend, packages)
    opened = {}
    try:
        for name in engines:
            opened[name] = Worker(__file__, {**task, "engine": name}, environment)
        sizes = {name: worker.facts["parameters"] for name, worker in opened.items()}
        if len(set(sizes.values())) > 1:
            raise WorkerError(f"these models are not the same: parameters {sizes}")
        answers = workers.in_turn(opened, rounds)
    finally:
        for worker in opened.values():
            worker.close()
    return figures(task, engines, answers) | {"parameters": sizes[engines[0]]}


def figures(task, engines, answers):
    """The row of a table from the answers of all rounds."""
    medians = {
        name: {key: statistics.median(each[key] for each in found) for key in found[0]}
        for name, found in answers.items()
    }
    rate = max(each["flops_per_second"] for each in medians.values())
    flops = step_flops(task["size"], task["vocabulary"], task["batch"], task["length"])
    tokens = task["batch"] * task["length"]
    row = {name: task[name] for name in ("batch", "length", "precision")}
    row |= {"engine": engines[0], "rival": (*engines, None)[1], "rate_gflops": rate / 1e9}
    for prefix, name in zip(("", "rival_"), engines, strict=False):
        seconds = medians[name]["seconds"]
        row |= {
            f"{prefix}step_seconds": seconds,
            f"{prefix}tokens_per_second": tokens / seconds,
            f"{prefix}share_of_rate": flops / seconds / rate,
            f"{prefix}peak_memory_mb": answers[name][-1]["memory"] / 1e6,
            f"{prefix}round_seconds": [each["seconds"] for each in answers[name]],
        }
    if len(engines) == 2:
        ours, rival = (row[f"{prefix}round_seconds"] for prefix in ("", "rival_"))
        row["speedup"] = statistics.median(b / a for a, b in zip(ours, rival, strict=True))
    return row


HEADS = ["size", "batch x length", "engine", "tokens/s", "share of rate", "MB", "rival"]
HEADS += ["tokens/s", "share of rate", "MB", "ours / rival"]


def cells(row):
    """A row of figures as cells under `HEADS`."""
    shown = [row["size"], f"{row['batch']} x {row['length']}"]
    for prefix, name in (("", "engine"), ("rival_", "rival")):
        share = row.get(f"{prefix}share_of_rate")
        shown += [
            row[name],
            row.get(f"{prefix}tokens_per_second"),
            None if share is None else f"{share:.0%}",
            row.get(f"{prefix}peak_memory_mb"),
        ]
    return [*shown, row.get("speedup")]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 rounds of fewer, smaller steps")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--output", type=Path, help="write the figures here as JSON")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        return workers.answer(set_up, args.worker)
    rounds, batches = (3, QUICK_BATCHES) if args.quick else (args.rounds, BATCHES)
    rows, left_out = [], {}
    pairs = [*itertools.product(args.sizes, PAIRS)]
    pairs += [("tiny", engines) for engines in TINY_PAIRS if "tiny" in args.sizes]
    for size, engines in pairs:
        batch, length, steps = batches[size]
        task = dict(size=SIZES[size], vocabulary=VOCABULARY[size], batch=batch, length=length)
        task |= dict(steps=steps, precision="float32", device="cpu", threads=args.threads, seed=1)
        try:
            rows.append({"size": size, **compare(task, engines, rounds)})
        except Missing as error:
            left_out[engines[1]] = str(error)
            print(f"left out: {engines[1]}: {error}", file=sys.stderr)
        else:
            print(workers.table(HEADS, [cells(rows[-1])]), flush=True)
    report = {
        **common.head(args),
        "backend": os.environ.get("KERAS_BACKEND", "tensorflow"),
        "precision": "float32",
        "dropout": DROPOUT,
        "rounds": rounds,
        "quick": args.quick,
        "sizes": {name: {**SIZES[name], "vocabulary": VOCABULARY[name]} for name in args.sizes},
        "left_out": left_out,
        "rows": rows,
    }
    if importlib.util.find_spec("keras_hub"):
        report["versions"]["keras-hub"] = importlib.metadata.version("keras-hub")
    print(workers.table(HEADS, map(cells, rows)))
    if args.output:
        common.write(report, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
