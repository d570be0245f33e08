"""What this project does on a GPU: is it right, how fast does it train and serve.

    python benchmarks/gpu.py [--folder DIR] [--multi30k DIR] [--quick] [--output FILE.json]
    python benchmarks/gpu.py --make DIR          # on a machine with TensorFlow: for --folder
    python benchmarks/gpu.py --device cpu --quick

Takes what is there: the layers run on whichever of TensorFlow, JAX and PyTorch sees the GPU beside
Keras (`KERAS_BACKEND` chooses one), serving needs onnxruntime-gpu alone. No network is used. Wheels
(*.whl) in `--folder` are unpacked into a temporary place and used; `--make` writes the models that
serving needs into such a folder. Parts that lack something are left out, and the report says why:

- correctness: every layer and model against the float64 NumPy reference of the tests, on fresh
  random inputs, in float32, tf32, bfloat16 and float16; error relative to the reference;
- training: tokens/s beside `torch.nn.Transformer`, compiled; see benchmarks/training.py. The rate
  is that of a large product of the same precision;
- serving: ONNX Runtime beside CTranslate2 and PyTorch, where they run here: same weights, same
  sentences, every hypothesis of forced length. Proves by a profile that the provider
  asked for did the work;
- replicas: one update on two replicas against the same update on one; two GPUs, or one that is cut
  in two logical ones;
- quality: Transformer-Tiny on Multi30k by examples/translate.py, minutes and BLEU; with --multi30k.

`--device cpu` does correctness and serving on the CPU, and others where `--parts` asks for them.
"""

import argparse
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

import common
import gpu_parts
import training
import workers
from workers import Missing, Worker, WorkerError

SCRIPT = Path(__file__).with_name("gpu_parts.py")
PARTS = ("correctness", "training", "serving", "replicas", "quality")
CPU_PARTS = ("correctness", "serving")
RIVALS = ("ctranslate2", "torch")
# Rows x tokens on either side, and steps a round.
TRAINING = {"base": (256, 64, 60), "big": (128, 64, 40)}
MINIATURE = dict(num_layers=2, d_model=32, num_heads=4, d_ff=64)
GOAL = 41.02  # BLEU on test.2016, the published text-only Transformer-Tiny


def call(args, part, backend=None, **task):
    """The facts that one part's process gives."""
    task |= dict(part=part, device=args.device, threads=args.threads, seed=args.seed)
    environment = workers.environment(args.device, args.threads, backend, args.packages)
    with Worker(SCRIPT, task, environment) as worker:
        return worker.facts


def correctness(args):
    """Rows of errors from every backend that can compute here."""
    rows, left_out = [], {}
    for backend in args.backends:
        try:
            found = call(args, "correctness", backend, quick=args.quick)
        except Missing as error:
            left_out[backend] = str(error)
            continue
        rows += [{"backend": backend, **row} for row in found["rows"]]
    if not rows:
        raise Missing(f"no backend computes on this device: {left_out}")
    wrong = [row for row in rows if "error" in row or not row["relative_error"] <= row["limit"]]
    return {"rows": rows, "left_out": left_out, "wrong": wrong}


def correctness_table(part):
    precisions = [p for p in workers.PRECISIONS if any(r["precision"] == p for r in part["rows"])]
    errors = {(r["backend"], r["layer"], r["precision"]): r for r in part["rows"]}
    lines = [
        [backend, layer, *(error_cell(errors.get((backend, layer, p))) for p in precisions)]
        for backend, layer in dict.fromkeys(key[:2] for key in errors)
    ]
    return workers.table(["backend", "layer", *precisions], lines)


def error_cell(row):
    if row is None:
        return None
    return row.get("error") or f"{row['relative_error']:.1e}"


def train(args):
    """Rows of training.compare for every size, precision and backend."""
    if args.device == "cpu" and not args.quick:
        raise Missing("on a CPU benchmarks/training.py does this, with other sizes")
    rows, left_out, wrong = [], {}, []
    sizes = {"miniature": (4, 16, 2)} if args.quick else TRAINING
    precisions = ("bfloat16", "tf32", "float32") if args.device == "gpu" else ("float32",)
    for size, (batch, length, steps) in sizes.items():
        task = dict(batch=batch, length=length, steps=steps, device=args.device, seed=args.seed)
        task |= dict(threads=args.threads, size=training.SIZES.get(size, MINIATURE))
        task["vocabulary"] = training.VOCABULARY.get(size, 61)
        task |= {"product_size": 256} if args.quick else {}
        for precision in precisions:
            for backend in args.backends:
                one = {**task, "precision": precision, "backend": backend}
                try:
                    found = beside_torch(one, args, left_out)
                except Missing as error:
                    left_out[backend] = str(error)
                    continue
                except WorkerError as error:  # out of memory, say; the other cells go on
                    wrong.append(f"{size}, {precision}, {backend}: {error}")
                    continue
                rows.append({"size": size, "backend": backend, **found})
                print(training_table({"rows": rows[-1:]}).split("\n")[-1], flush=True)
    if not rows and not wrong:
        raise Missing(f"no backend trains on this device: {left_out}")
    return {"rows": rows, "left_out": left_out, "wrong": wrong}


def beside_torch(task, args, left_out):
    """Ours beside PyTorch, or alone where that is missing."""
    try:
        return training.compare(task, ("ours", "torch"), args.rounds, args.packages)
    except Missing as error:
        found = training.compare(task, ("ours",), args.rounds, args.packages)
        left_out["torch"] = str(error)
        return found


def training_table(part):
    lines = [
        [row["backend"], row["precision"], f"{row['rate_gflops'] / 1e3:.3g}", *training.cells(row)]
        for row in part["rows"]
    ]
    return workers.table(["backend", "precision", "TFLOP/s", *training.HEADS], lines)


def serving(args):
    """Each artefact in turn with a rival of the same weights, for each batch size."""
    provider = gpu_parts.PROVIDERS[args.device]
    # float16 is for GPUs, and ONNX Runtime only emulates it on CPUs.
    precision = "float16" if args.device == "gpu" else "float32"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(args.folder or made)
        artefacts = served(folder, precision)
        if not artefacts and args.folder is None:
            make(args, folder, precisions=[precision])
            artefacts = served(folder, precision)
        if not artefacts:
            raise Missing(f"{folder} holds no {precision} artefact: gpu.py --make writes some")
        rows, left_out = [], {}
        for path, manifest in artefacts.items():
            rows += serve_one(args, path, manifest, provider, left_out)
    wrong = [row for row in rows if row["cpu_products"] or row["agreement"] not in (None, 1.0)]
    if precision != "float32":  # rounding decides between tokens that are almost as likely
        wrong = [row for row in wrong if row["cpu_products"]]
    return {"rows": rows, "left_out": left_out, "wrong": wrong, "precision": precision}


def served(folder, precision):
    """Artefacts of searches in a folder or just below: a dict from path to manifest."""
    found = {}
    for path in sorted([*folder.glob("artefact.json"), *folder.glob("*/artefact.json")]):
        manifest = json.loads(path.read_text("utf-8"))
        if manifest["precision"] == precision and manifest["task"] == "translate":
            found[path.parent] = manifest
    return found


def serve_one(args, path, manifest, provider, left_out):
    """Rows of one artefact, one a batch size."""
    beam = manifest["search"]["config"].get("beam_width", 1)
    shared = dict(part="serving", device=args.device, threads=args.threads, seed=args.seed)
    shared |= dict(beam=beam, precision=manifest["precision"], model=str(path.parent))
    shared |= dict(source_length=args.source_length, vocabulary=manifest["vocab_size"]["source"])
    # No backend: serving needs none, and what is not imported holds no memory.
    environment = workers.environment(args.device, args.threads, None, args.packages)
    opened, rows = {}, []
    try:
        task = {**shared, "engine": "onnx", "artefact": str(path), "provider": provider}
        opened["onnx"] = Worker(SCRIPT, task, environment)
        for rival in RIVALS:
            try:
                opened[rival] = Worker(SCRIPT, {**shared, "engine": rival}, environment)
            except (Missing, WorkerError) as error:  # its wheel does not run here: no fault of ours
                left_out[rival] = str(error)
        for batch in args.batches:
            ids = {
                name: worker.ask(batch=batch, ids=True)["ids"] for name, worker in opened.items()
            }
            answers = workers.in_turn(opened, args.rounds, batch=batch)
            cell = {"artefact": path.name, "beam": beam, "batch": batch, **opened["onnx"].facts}
            for rival in [name for name in opened if name != "onnx"] or [None]:
                rows.append(cell | serving_figures(answers, ids, rival))
                print(serving_table({"rows": rows[-1:]}).split("\n")[-1], flush=True)
    finally:
        for worker in opened.values():
            worker.close()
    return rows


def serving_figures(answers, ids, rival):
    """Medians of one cell, and how often both engines wrote the same token."""
    row = {"rival": rival, "agreement": None}
    for prefix, name in (("", "onnx"), ("rival_", rival)):
        if name is None:
            break
        found = answers[name]
        row |= {
            f"{prefix}milliseconds": 1e3 * statistics.median(each["seconds"] for each in found),
            f"{prefix}tokens_per_second": statistics.median(map(speed, found)),
            f"{prefix}peak_memory_mb": found[-1]["memory"] / 1e6,
        }
    if rival is not None:
        ratios = map(lambda a, b: speed(a) / speed(b), answers["onnx"], answers[rival])
        row["speedup"] = statistics.median(ratios)
        rows = zip(ids["onnx"], ids[rival], strict=True)
        same = [one == two for pair in rows for one, two in zip(*pair, strict=True)]
        row["agreement"] = statistics.mean(same)
    return row


def speed(answer):
    return answer["tokens"] / answer["seconds"]


def serving_table(part):
    heads = ["artefact", "provider", "beam", "batch", "ms", "tokens/s", "rival", "ms", "tokens/s"]
    names = ["artefact", "provider", "beam", "batch", "milliseconds", "tokens_per_second"]
    names += ["rival", "rival_milliseconds", "rival_tokens_per_second", "speedup", "agreement"]
    heads += ["ours / rival", "same tokens"]
    return workers.table(heads, [[row.get(name) for name in names] for row in part["rows"]])


def make(args, folder, precisions=("float32", "float16")):
    """Writes random models to serve, each in ONNX, for CTranslate2 and for PyTorch."""
    shape = MINIATURE if args.quick else training.SIZES["base"]
    task = dict(folder=str(folder), shape=shape, vocabulary=61 if args.quick else 32_000)
    task |= dict(length=args.target_length, precisions=list(precisions))
    return call(args, "make", "tensorflow", **task)


def replicas(args):
    return call(args, "replicas", "tensorflow", shape=MINIATURE, vocabulary=61)


def replicas_table(part):
    cells = [" + ".join(part["devices"]), f"{part['difference']:.1e}", f"{part['limit']:.0e}"]
    return workers.table(["devices", "largest relative difference", "limit"], [cells])


def quality(args):
    """Transformer-Tiny on Multi30k: minutes to its BLEU."""
    if args.multi30k is None:
        raise Missing("--multi30k names no folder with train.en, train.de, valid.*, test.2016.*")
    output = args.runs / "gpu-multi30k"
    command = [sys.executable, str(workers.ROOT / "examples" / "translate.py")]
    command += ["--data", str(args.multi30k), "--output", str(output), "--seed", "1"]
    bpe = any("bpe" in part for part in (args.multi30k.name, args.multi30k.parent.name))
    command += ["--preset", "tiny", *(["--undo-bpe", "--bleu-tokenize", "none"] if bpe else [])]
    start = time.perf_counter()
    environment = workers.environment(args.device, args.threads, "tensorflow", args.packages)
    result = subprocess.run(command, env={**os.environ, **environment}, check=False)
    if result.returncode:
        raise WorkerError(f"{' '.join(command[1:])} ended with status {result.returncode}")
    metrics = json.loads((output / "metrics.json").read_text("utf-8"))
    names = ("epochs", "minutes", "tokens_per_second", "chosen_on_validation", "versions")
    scores = {name: score["bleu"] for name, score in metrics["scores"].items()}
    found = {name: metrics[name] for name in names} | {"bleu": scores, "goal": GOAL}
    return found | {"minutes_with_choice": (time.perf_counter() - start) / 60}


def quality_table(part):
    heads = ["epochs", "minutes of training", "minutes in all", *part["bleu"]]
    cells = [part["epochs"], part["minutes"], part["minutes_with_choice"]]
    return workers.table(heads, [[*cells, *(f"{score:.2f}" for score in part["bleu"].values())]])


DO = dict(correctness=(correctness, correctness_table), training=(train, training_table),
          serving=(serving, serving_table), replicas=(replicas, replicas_table),
          quality=(quality, quality_table))  # fmt: skip


def do(args, name):
    """One part: its status, and what it found or why not."""
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
    """Installs a folder's wheels beside what is there; None where there are none."""
    found = sorted(map(str, folder.glob("*.whl"))) if folder else []
    if not found:
        return None
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", str(target), *found], check=True)
    return target


def device_name(device):
    """What the machine calls its GPU, and its driver; the processor's name without a GPU."""
    if device == "cpu":
        return common.processor()
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"there is no NVIDIA GPU ({error}): pass --device cpu") from error
    return "; ".join(found.strip().splitlines())


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="miniature sizes: shows that everything runs, not how fast",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="default: all; two on a CPU")
    parser.add_argument("--folder", type=Path, help="artefacts and wheels to use")
    parser.add_argument("--make", type=Path, metavar="DIR", help="write artefacts there and stop")
    parser.add_argument("--multi30k", type=Path, help="folder of Multi30k, for the part quality")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where training is kept")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, help="default: 7; 2 with --quick")
    parser.add_argument("--seed", type=int, help="of the random inputs; default: a fresh one")
    parser.add_argument(
        "--output", type=Path, help="default: benchmarks/results/gpu-NAME.json; none on a CPU"
    )
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
    """Those that are installed; on a CPU one is enough."""
    found = [name for name in workers.BACKENDS if importlib.util.find_spec(name)]
    if args.packages:
        found += [n for n in workers.BACKENDS if (args.packages / n).is_dir() and n not in found]
    chosen = os.environ.get("KERAS_BACKEND")
    if chosen:
        return [name for name in found if name == chosen]
    return found[:1] if args.device == "cpu" else found


def main(argv=None):
    args = parse_arguments(argv)
    with tempfile.TemporaryDirectory() as packages:
        args.packages = unpack_wheels(args.folder, Path(packages))
        if args.make:
            print(json.dumps(make(args, args.make), indent=1))
            return 0
        args.backends = backends(args)
        name = device_name(args.device)
        report = {"device": name, "quick": args.quick, **common.head(args), "seed": args.seed}
        if args.output is None and args.device == "gpu":
            slug = re.sub(r"[^a-z0-9]+", "-", name.split(",")[0].lower()).strip("-")
            args.output = common.RESULTS / f"gpu-{slug}.json"
        report |= {"rounds": args.rounds, "backends": args.backends, "parts": {}}
        for part in args.parts:
            print(f"\n## {part} on {name}\n", flush=True)
            found = report["parts"][part] = do(args, part)
            done = "reason" not in found
            print(DO[part][1](found) if done else f"{found['status']}: {found['reason']}")
            if args.output:  # after each part: what is done is safe
                common.write(report, args.output)
    failed = [part for part, found in report["parts"].items() if found["status"] == "failed"]
    print("\nfailed: " + ", ".join(failed) if failed else "\nnothing failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
