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

import itertools
import os

import bench
import devices
from bench import WorkerError
from subjects import SIZES
from training_engines import DROPOUT

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


def compare(task, engines, rounds, left_out, packages=None):
    """Measures two engines in turn, or ours alone; returns a row of figures.

    Args:
        task: dict with size, vocabulary, batch, length, steps, precision, device, threads, seed.
        engines: names; the first is ours.
        rounds: number of rounds, after one to warm up.
        left_out: dict; a rival that does not run here is added, and ours is measured alone.
        packages: see `devices.environment`.

    Raises:
        Missing, WorkerError: see `bench.Worker`.
    """
    backend = task.get("backend") or os.environ.get("KERAS_BACKEND", "tensorflow")
    environment = devices.environment(task["device"], task["threads"], backend, packages)
    tasks = dict.fromkeys(engines, task)
    with bench.engines("training_engines:set_up", tasks, environment, left_out) as opened:
        sizes = {name: worker.facts["parameters"] for name, worker in opened.items()}
        if len(set(sizes.values())) > 1:
            raise WorkerError(f"these models are not the same: parameters {sizes}")
        answers = bench.in_turn(opened, rounds)
    return figures(task, list(answers), answers) | {"parameters": sizes[engines[0]]}


def figures(task, engines, answers):
    """Computes the row of a table from the answers of all rounds.

    The share of the rate is relative to the fastest large product of any engine, so that slow
    products do not make an engine look good.
    """
    medians = {name: bench.medians(found) for name, found in answers.items()}
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
        row["speedup"] = bench.ratio(row["rival_round_seconds"], row["round_seconds"])
    return row


def main():
    parser = bench.Parser(__doc__, "rounds", rounds=7)
    parser.add_argument("--quick", action="store_true", help="3 rounds of fewer, smaller steps")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    args = parser.parse_args()
    rounds, batches = (3, QUICK_BATCHES) if args.quick else (args.rounds, BATCHES)
    rows, left_out = [], {}
    pairs = [*itertools.product(args.sizes, PAIRS)]
    pairs += [("tiny", engines) for engines in TINY_PAIRS if "tiny" in args.sizes]
    for size, engines in pairs:
        batch, length, steps = batches[size]
        task = dict(size=SIZES[size], vocabulary=VOCABULARY[size], batch=batch, length=length)
        task |= dict(steps=steps, precision="float32", device="cpu", threads=args.threads, seed=1)
        rows.append({"size": size, **compare(task, engines, rounds, left_out)})
        print(rows[-1], flush=True)
    report = {
        "backend": os.environ.get("KERAS_BACKEND", "tensorflow"),
        "precision": "float32",
        "dropout": DROPOUT,
        "rounds": rounds,
        "quick": args.quick,
        "sizes": {name: {**SIZES[name], "vocabulary": VOCABULARY[name]} for name in args.sizes},
        "left_out": left_out,
        "rows": rows,
    }
    bench.finish(args, "training", report, "keras-hub")


if __name__ == "__main__":
    main()
