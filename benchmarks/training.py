"""Time of an optimizer step of the Transformer, beside KerasHub's blocks and torch.nn.Transformer.

    python benchmarks/training.py [--quick] [--threads 2] [--rounds 7] [--output FILE.json]

Ours runs in `model.fit`. KerasHub's encoder and decoder blocks run in `model.fit`, too, with our
embeddings and loss, on the same backend (`KERAS_BACKEND`, default tensorflow). PyTorch's run in a
plain loop. Sizes, parameters, tokens, label smoothing and optimizer (Adam) are the same. Rows are
full, with random ids. Embeddings and the output of each sublayer have dropout. KerasHub always
drops attention weights, too. Ours does the same beside KerasHub, but not beside PyTorch. At tiny
size, `fit` is also compared with a plain `tf.GradientTape` loop over the same model, with smoothed
one-hot labels times a log-softmax: in float32, and with `fit` in mixed_bfloat16, as the README's
translator was trained.

The two engines of a pair take turns in separate processes. Figures are medians over the rounds,
ratios are medians of the rounds' ratios. `share of rate` is the rate of floating-point operations
in the model's products, forward and backward (three times forward), relative to a large product.
Every engine times that product before each of its rounds; the fastest engine's median counts.
Memory is the process's peak, frameworks included. Compare the ratios: absolute times depend on the
machine.
"""

import argparse
import importlib.metadata
import importlib.util
import itertools
import os
import statistics
import sys
from pathlib import Path

import common
import workers
from training_task import DROPOUT
from workers import Missing, Worker, WorkerError

ENGINES = Path(__file__).with_name("training_engines.py")
SIZES = {
    "tiny": dict(num_layers=4, d_model=128, num_heads=4, d_ff=256),
    "base": dict(num_layers=6, d_model=512, num_heads=8, d_ff=2048),
    "big": dict(num_layers=6, d_model=1024, num_heads=16, d_ff=4096),
}
VOCABULARY = {"tiny": 10_000, "base": 32_000, "big": 32_000}
# Rows, tokens on either side, and steps per round.
BATCHES = {"tiny": (256, 16, 8), "base": (32, 32, 2), "big": (16, 64, 1)}
QUICK_BATCHES = {"tiny": (256, 16, 3), "base": (32, 32, 1), "big": (2, 64, 1)}
# Ours has the dropout of the rival that it is compared with.
PAIRS = (("ours", "torch"), ("ours_attention_dropout", "keras_hub"))
TINY_PAIRS = (("ours", "gradient_tape"), ("ours_bfloat16", "gradient_tape"))


def step_flops(size, vocabulary, batch, length):
    """Counts the floating-point operations of all matrix products of a training step.

    The backward pass has two products for each one of the forward pass: three times in all.

    Args:
        size: the model's sizes.
        vocabulary: number of ids, whose logits are one product.
        batch: number of rows.
        length: tokens of each row, on both sides.
    """
    d_model, d_ff, tokens = size["d_model"], size["d_ff"], batch * length
    attention = 4 * d_model**2 + 2 * length * d_model  # projections; Q K^T and weights V
    network = 2 * d_model * d_ff
    layer = (attention + network) + (2 * attention + network)  # encoder's and decoder's
    forward = 2 * tokens * (size["num_layers"] * layer + d_model * vocabulary)
    return 3 * forward


def compare(task, engines, rounds, packages=None):
    """Measures two engines in turn, or ours alone; returns a row of figures.

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
            opened[name] = Worker(ENGINES, {**task, "engine": name}, environment)
        sizes = {name: worker.facts["parameters"] for name, worker in opened.items()}
        if len(set(sizes.values())) > 1:
            raise WorkerError(f"these models are not the same: parameters {sizes}")
        answers = workers.in_turn(opened, rounds)
    finally:
        for worker in opened.values():
            worker.close()
    return figures(task, engines, answers) | {"parameters": sizes[engines[0]]}


def figures(task, engines, answers):
    """Computes the row of a table from the answers of all rounds.

    The share of the rate is relative to the fastest large product of any engine, so that slow
    products do not make an engine look good.
    """
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
    """Returns a row of figures as cells under `HEADS`."""
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
    args = parser.parse_args(argv)
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
