"""Serving on a GPU: each artefact in turn with engines of the same weights, by batch size.

All hypotheses have the same forced length, so every engine does the same work. The script also
checks that the engines write the same tokens, and that no product ran on the CPU.
"""

import json
import statistics
import tempfile
from pathlib import Path

import training
import workers
from gpu_engines import PROVIDERS
from gpu_parts import SCRIPT, call
from gpu_training import MINIATURE
from workers import Missing, Worker, WorkerError

RIVALS = ("ctranslate2", "torch")


def serving(args):
    """Measures each artefact in turn with rivals of the same weights, for each batch size."""
    provider = PROVIDERS[args.device]
    # ONNX Runtime emulates float16 on CPUs.
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
    if precision != "float32":  # rounding decides between almost equally likely tokens
        wrong = [row for row in wrong if row["cpu_products"]]
    return {"rows": rows, "left_out": left_out, "wrong": wrong, "precision": precision}


def served(folder, precision):
    """Finds translators in a folder and its direct subfolders: dict from path to manifest."""
    found = {}
    for path in sorted([*folder.glob("artefact.json"), *folder.glob("*/artefact.json")]):
        manifest = json.loads(path.read_text("utf-8"))
        if manifest["precision"] == precision and manifest["task"] == "translate":
            found[path.parent] = manifest
    return found


def serve_one(args, path, manifest, provider, left_out):
    """Measures one artefact: a row per batch size and rival.

    Args:
        path: folder of the artefact; the rivals' models are beside it.
        manifest: its `artefact.json`.
        provider: execution provider that ONNX Runtime must use.
        left_out: dict; rivals that do not run here are added, with the reason.
    """
    beam = manifest["search"]["config"].get("beam_width", 1)
    shared = dict(part="serving", device=args.device, threads=args.threads, seed=args.seed)
    shared |= dict(beam=beam, precision=manifest["precision"], model=str(path.parent))
    shared |= dict(source_length=args.source_length, vocabulary=manifest["vocab_size"]["source"])
    # No backend: serving needs none, and it would hold memory.
    environment = workers.environment(args.device, args.threads, None, args.packages)
    opened, rows = {}, []
    try:
        task = {**shared, "engine": "onnx", "artefact": str(path), "provider": provider}
        opened["onnx"] = Worker(SCRIPT, task, environment)
        for rival in RIVALS:
            try:
                opened[rival] = Worker(SCRIPT, {**shared, "engine": rival}, environment)
            except (Missing, WorkerError) as error:  # such as a wheel that does not run here
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
    """Computes the medians of one cell, and the share of equal tokens."""
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
    """Returns the tokens per second of one round."""
    return answer["tokens"] / answer["seconds"]


def serving_table(part):
    """Makes a row per artefact, batch size and rival."""
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
