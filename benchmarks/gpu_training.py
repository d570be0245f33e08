"""Training on a GPU: tokens/s beside compiled `torch.nn.Transformer`, in several precisions."""

import engine_columns
import training
from bench import Missing, WorkerError
from markdown_tables import Table
from subjects import SIZES

# Rows, tokens on either side, and steps per round.
BATCHES = {"base": (256, 64, 60), "big": (128, 64, 40)}
MINIATURE = dict(num_layers=2, d_model=32, num_heads=4, d_ff=64)


def train(args):
    """Runs `training.compare` for every size, precision and backend.

    If a cell fails, the report has the reason, and the other cells still run.
    """
    if args.device == "cpu" and not args.quick:
        raise Missing("on a CPU benchmarks/training.py does this, with other sizes")
    rows, left_out, wrong = [], {}, []
    sizes = {"miniature": (4, 16, 2)} if args.quick else BATCHES
    precisions = ("bfloat16", "tf32", "float32") if args.device == "gpu" else ("float32",)
    for size, (batch, length, steps) in sizes.items():
        task = dict(batch=batch, length=length, steps=steps, device=args.device, seed=args.seed)
        task |= dict(threads=args.threads, size=SIZES.get(size, MINIATURE))
        task["vocabulary"] = training.VOCABULARY.get(size, 61)
        task |= {"product_size": 256} if args.quick else {}
        for precision in precisions:
            for backend in args.backends:
                one = {**task, "precision": precision, "backend": backend}
                try:
                    engines = ("ours", "torch")
                    found = training.compare(one, engines, args.rounds, left_out, args.packages)
                except Missing as error:
                    left_out[backend] = str(error)
                    continue
                except WorkerError as error:  # for example, out of memory
                    wrong.append(f"{size}, {precision}, {backend}: {error}")
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
