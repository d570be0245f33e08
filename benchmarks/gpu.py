"""Correctness, training and serving on a GPU, in parts of a few minutes.

    python benchmarks/gpu.py --parts PART... [--folder DIR] [--multi30k DIR] [--output FILE.json]
    python benchmarks/gpu.py --make DIR          # on a machine with TensorFlow: for --folder
    python benchmarks/gpu.py --device cpu --quick --parts correctness serving training strategy

Run one part after another with the same `--output`, by default `results/gpu-NAME.json` with the
name of the GPU. Each part is written when it is done, and a later call skips it, so a stopped run
goes on where it stopped; `--again` measures it anew. Minutes are predicted for an H100:

- correctness (3 minutes): every layer and model against the float64 NumPy reference of the tests,
  on new random inputs, in float32, tf32, bfloat16 and float16. Errors are relative to the
  reference.
- serving (5): loop, steps, and steps as CUDA graphs, greedy and beam 4, beside CTranslate2 and
  PyTorch with the same weights, sentences and forced lengths. A profile proves that the requested
  provider did the work.
- training (3): tokens/s of `fit` beside compiled `torch.nn.Transformer`; see
  benchmarks/training.py. The rate is measured with a large product of the same precision.
- strategy (3): tokens/s of `fit` under a `MirroredStrategy` of one and of two devices, beside `fit`
  without one. A single GPU is split in two.
- replicas (1): one update on two replicas against the same update on one.
- quality (10 for each of `--seeds`): Transformer-Tiny on Multi30k by examples/translate.py, minutes
  and BLEU; with --multi30k.

Layers run on each of TensorFlow, JAX and PyTorch that sees the GPU (`KERAS_BACKEND` chooses one).
Serving requires only onnxruntime-gpu. No network is used. Wheels (*.whl) in `--folder` are unpacked
into a temporary folder and used. `--make` writes the models for serving into such a folder. Parts
with a missing requirement are skipped, and the report gives the reason. `--device cpu` runs
correctness and serving on the CPU, and other parts if `--parts` names them.
"""

import importlib.util
import json
import os
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bench
import devices
from bench import Missing, WorkerError
from gpu_serving import SERVING, make, serving
from gpu_training import BATCHES, MINIATURE, TRAINED, TRAINING, strategy, train
from markdown_tables import Table, table

PARTS = ("correctness", "serving", "training", "strategy", "replicas", "quality")
CPU_PARTS = ("correctness", "serving")
GOAL = 41.02  # BLEU on test.2016, the published text-only Transformer-Tiny


def correctness(args):
    """Computes errors on every backend that runs here."""
    rows, left_out = [], {}
    for backend in args.backends:
        try:
            found = devices.call(args, "gpu_correctness:correctness", backend, quick=args.quick)
        except Missing as error:
            left_out[backend] = str(error)
            continue
        rows += [{"backend": backend, **row} for row in found["rows"]]
    if not rows:
        raise Missing(f"no backend computes on this device: {left_out}")
    wrong = [row for row in rows if "error" in row or not row["relative_error"] <= row["limit"]]
    return {"rows": rows, "left_out": left_out, "wrong": wrong}


def correctness_table(part):
    """Makes a row per backend and layer: the relative error, or the exception, by precision."""
    precisions = [p for p in devices.PRECISIONS if any(r["precision"] == p for r in part["rows"])]
    lines = []
    for key, rows in bench.grouped(part["rows"], "backend", "layer").items():
        found = {row["precision"]: row for row in rows}
        shown = {
            name: row.get("error") or f"{row['relative_error']:.1e}" for name, row in found.items()
        }
        lines.append([*key, *(shown.get(precision) for precision in precisions)])
    return table(["backend", "layer", *precisions], lines)


def replicas(args):
    """Compares one and two replicas in TensorFlow, which has the distribution strategies."""
    return devices.call(args, "gpu_replicas:replicas", "tensorflow", shape=MINIATURE, vocabulary=61)


REPLICAS = Table(
    [
        ("devices", lambda row: " + ".join(row["devices"])),
        ("largest relative difference", "{difference:.1e}"),
        ("limit", "{limit:.0e}"),
    ],
    lambda part: [part],
)


def quality(args):
    """Trains Transformer-Tiny on Multi30k once for each seed; returns minutes and BLEU."""
    if args.multi30k is None:
        raise Missing("--multi30k names no folder with train.en, train.de, valid.*, test.2016.*")
    rows = [trained(args, seed) for seed in args.seeds]
    names = rows[0]["bleu"]
    mean = {name: statistics.mean(row["bleu"][name] for row in rows) for name in names}
    return {"rows": rows, "mean_bleu": mean, "goal": GOAL}


def trained(args, seed):
    """Runs examples/translate.py with one seed; returns minutes and BLEU."""
    output = args.runs / f"gpu-multi30k-{seed}"
    command = [sys.executable, str(bench.ROOT / "examples" / "translate.py")]
    command += ["--data", str(args.multi30k), "--output", str(output), "--seed", str(seed)]
    bpe = any("bpe" in part for part in (args.multi30k.name, args.multi30k.parent.name))
    command += ["--preset", "tiny", *(["--undo-bpe", "--bleu-tokenize", "none"] if bpe else [])]
    start = time.perf_counter()
    environment = devices.environment(args.device, args.threads, "tensorflow", args.packages)
    result = subprocess.run(command, env={**os.environ, **environment}, check=False)
    if result.returncode:
        raise WorkerError(f"{' '.join(command[1:])} ended with status {result.returncode}")
    metrics = json.loads((output / "metrics.json").read_text("utf-8"))
    names = ("epochs", "minutes", "tokens_per_second", "chosen_on_validation", "versions")
    scores = {name: score["bleu"] for name, score in metrics["scores"].items()}
    found = {"seed": seed, **{name: metrics[name] for name in names}, "bleu": scores}
    return found | {"minutes_with_choice": (time.perf_counter() - start) / 60}


def quality_table(part):
    heads = ["seed", "epochs", "minutes of training", "minutes in all", *part["mean_bleu"]]
    lines = [
        [row["seed"], row["epochs"], row["minutes"], row["minutes_with_choice"]]
        + [f"{score:.2f}" for score in row["bleu"].values()]
        for row in part["rows"]
    ]
    mean = [f"{score:.2f}" for score in part["mean_bleu"].values()]
    return table(heads, [*lines, ["mean", None, None, None, *mean]])


DO = dict(
    correctness=(correctness, correctness_table),
    training=(train, TRAINING),
    serving=(serving, SERVING),
    strategy=(strategy, TRAINING),
    replicas=(replicas, REPLICAS),
    quality=(quality, quality_table),
)


def do(args, name):
    """Runs one part; reports missing requirements and failures instead of raising.

    Returns:
        Dict with "status" ("done", "failed" or "left out"), "seconds", and the part's results or
        the "reason" why there are none.
    """
    start = time.perf_counter()
    try:
        found = DO[name][0](args)
        status = {"status": "failed" if found.get("wrong") else "done", **found}
    except Missing as error:
        status = {"status": "left out", "reason": str(error)}
    except WorkerError as error:
        status = {"status": "failed", "reason": str(error)}
    return status | {"seconds": time.perf_counter() - start}


def unpack_wheels(folder, target):
    """Installs a folder's wheels into `target`; returns `None` if there are none."""
    found = sorted(map(str, folder.glob("*.whl"))) if folder else []
    if not found:
        return None
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", str(target), *found], check=True)
    return target


def device_name(device):
    """Returns name, driver and memory of the GPUs; for "cpu", the processor's name."""
    if device == "cpu":
        return bench.processor()
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"no NVIDIA GPU ({error}): pass --device cpu") from error
    return "; ".join(found.strip().splitlines())


def parse_arguments(argv):
    parser = bench.Parser(__doc__, "rounds", rounds=None)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="miniature sizes: checks that everything runs, without useful times",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="default: all; two on a CPU")
    parser.add_argument("--again", action="store_true", help="measure parts of --output anew")
    parser.add_argument("--sizes", nargs="+", choices=BATCHES, default=["base"])
    parser.add_argument("--precisions", nargs="+", choices=TRAINED, default=["bfloat16"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of quality")
    parser.add_argument("--folder", type=Path, help="folder with artefacts and wheels")
    parser.add_argument("--make", type=Path, metavar="DIR", help="write artefacts to DIR and stop")
    parser.add_argument("--multi30k", type=Path, help="folder of Multi30k, for the part quality")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder for training runs")
    parser.add_argument("--seed", type=int, help="seed of random inputs; default: a new one")
    args = parser.parse_args(argv)
    args.parts = args.parts or (PARTS if args.device == "gpu" else CPU_PARTS)
    args.rounds = args.rounds or (2 if args.quick else 7)
    args.seed = secrets.randbelow(2**31) if args.seed is None else args.seed
    args.batches = (1, 5) if args.quick else (1, 32, 128)
    args.source_length, args.target_length = (7, 11) if args.quick else (32, 64)
    if args.folder is not None and not args.folder.is_dir():
        parser.error(f"--folder {args.folder}: no such folder")
    return args


def backends(args):
    """Returns the installed or chosen backends; on a CPU, one is enough."""
    found = [name for name in devices.BACKENDS if importlib.util.find_spec(name)]
    if args.packages:
        found += [n for n in devices.BACKENDS if (args.packages / n).is_dir() and n not in found]
    chosen = os.environ.get("KERAS_BACKEND")
    if chosen:
        return [name for name in found if name == chosen]
    return found[:1] if args.device == "cpu" else found


def parts_done(output, report):
    """Returns the finished parts of an earlier report of the same device and size."""
    if not output or not output.exists():
        return {}
    earlier = json.loads(output.read_text("utf-8"))
    if any(earlier.get(name) != report[name] for name in ("device", "quick")):
        raise SystemExit(f"{output} is of {earlier.get('device')}: name another --output")
    return {name: one for name, one in earlier["parts"].items() if one["status"] == "done"}


def main(argv=None):
    args = parse_arguments(argv)
    with tempfile.TemporaryDirectory() as packages:
        args.packages = unpack_wheels(args.folder, Path(packages))
        if args.make:
            print(json.dumps(make(args, args.make), indent=1))
            return 0
        args.backends = backends(args)
        name = device_name(args.device)
        report = {"device": name, "quick": args.quick, **bench.head(args), "seed": args.seed}
        if args.output is None and args.device == "gpu":
            slug = re.sub(r"[^a-z0-9]+", "-", name.split(",")[0].lower()).strip("-")
            args.output = bench.RESULTS / f"gpu-{slug}.json"
        report |= {"rounds": args.rounds, "backends": args.backends, "parts": {}}
        report["parts"] = {} if args.again else parts_done(args.output, report)
        for part in [one for one in args.parts if one not in report["parts"]]:
            print(f"\n## {part} on {name}\n", flush=True)
            found = report["parts"][part] = do(args, part)
            done = "reason" not in found
            print(DO[part][1](found) if done else f"{found['status']}: {found['reason']}")
            if args.output:  # after each part, in case a later part crashes
                bench.write(report, args.output)
    failed = [part for part, found in report["parts"].items() if found["status"] == "failed"]
    print("\nfailed: " + ", ".join(failed) if failed else "\nnothing failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
