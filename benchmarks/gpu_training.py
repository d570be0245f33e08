"""Training on a GPU: tokens/s beside compiled `torch.nn.Transformer`, and under a strategy."""

import itertools

import engine_columns
import training
from bench import Missing, WorkerError
from markdown_tables import Table
from subjects import SIZES

# Rows, tokens on either side, and steps per round.
BATCHES = {"base": (256, 64, 60), "big": (128, 64, 40)}
TRAINED = ("bfloat16", "tf32", "float32")  # precisions
MINIATURE = dict(num_layers=2, d_model=32, num_heads=4, d_ff=64)


def train(args):
    """Compares `fit` with PyTorch for every size, precision and backend."""
    return cells(args, args.backends, [("ours", "torch")])


def strategy(args):
    """Compares `fit` under a `MirroredStrategy` with `fit` without one, on TensorFlow."""
    if "tensorflow" not in args.backends:
        raise Missing("tensorflow is not installed or not chosen, and it has the strategies")
    return cells(args, ["tensorflow"], [("one replica", "ours"), ("two replicas", "ours")])


def cells(args, backends, pairs):
    """Runs `training.compare` for every cell.

    If a cell fails, the report has the reason, and the other cells still run.
    """
    if args.device == "cpu" and not args.quick:
        raise Missing("on a CPU benchmarks/training.py does this, with other sizes")
    rows, left_out, wrong = [], {}, []
    sizes = {"miniature": (4, 16, 2)}
    if not args.quick:
        sizes = {size: BATCHES[size] for size in args.sizes}
    precisions = args.precisions if args.device == "gpu" else ("float32",)
    for size, precision, backend, pair in itertools.product(sizes, precisions, backends, pairs):
        batch, length, steps = sizes[size]
        task = dict(batch=batch, length=length, steps=steps, device=args.device, seed=args.seed)
        task |= dict(threads=args.threads, size=SIZES.get(size, MINIATURE), backend=backend)
        task |= dict(vocabulary=training.VOCABULARY.get(size, 61), precision=precision)
        task |= {"product_size": 256} if args.quick else {}
        try:
            found = training.compare(task, pair, args.rounds, left_out, args.packages)
        except Missing as error:
            left_out[f"{backend}, {pair[0]}"] = str(error)
            continue
        except WorkerError as error:  # for example, out of memory
            wrong.append(f"{size}, {precision}, {backend}, {pair[0]}: {error}")
            continue
        rows.append({"size": size, "backend": backend, **found})
        print(rows[-1], flush=True)
    if not rows and not wrong:
        raise Missing(f"no backend trains on this device: {left_out}")
    return {"rows": rows, "left_out": left_out, "wrong": wrong}


TRAINING = Table(
    [
        ("backend", "{backend}"),
        ("precision", "{precision}"),
        ("TFLOP/s", lambda row: row["rate_gflops"] / 1e3),
        *engine_columns.TRAINING.columns,
    ]
)
