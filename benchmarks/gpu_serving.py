"""Serving on a GPU: each artefact in turn with engines of the same weights, by batch size.

All hypotheses have the same forced length, so every engine does the same work. The script also
checks that the engines write the same tokens, and that no product ran on the CPU.
"""

import hashlib
import itertools
import json
import statistics
import tempfile
from pathlib import Path

import bench
import devices
import numpy as np
from bench import Missing
from gpu_training import MINIATURE
from markdown_tables import Table
from subjects import SIZES

RIVALS = ("ctranslate2", "torch")


def serving(args):
    """Measures each artefact in turn with rivals of the same weights, for each batch size."""
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
            rows += serve_one(args, path, manifest, left_out)
    wrong = [row for row in rows if row["cpu_products"] or row["agreement"] not in (None, 1.0)]
    if precision != "float32":  # rounding decides between almost equally likely tokens
        wrong = [row for row in wrong if row["cpu_products"]]
    for (beam, batch), cells in bench.grouped(rows, "beam", "batch").items():
        if len({row["tokens"] for row in cells}) > 1:
            wrong.append(f"loop, steps and graphs write other tokens: {beam=}, {batch=}")
    return {"rows": rows, "left_out": left_out, "wrong": wrong, "precision": precision}


def served(folder, precision):
    """Finds translators in a folder and its direct subfolders: dict from path to manifest."""
    found = {}
    for path in sorted([*folder.glob("artefact.json"), *folder.glob("*/artefact.json")]):
        manifest = json.loads(path.read_text("utf-8"))
        if manifest["precision"] == precision and manifest["task"] == "translate":
            found[path.parent] = manifest
    return found


def serve_one(args, path, manifest, left_out):
    """Measures one artefact: a row per batch size and rival.

    Args:
        path: folder of the artefact; the rivals' models are beside it.
        manifest: its `artefact.json`.
        left_out: dict; rivals that do not run here are added, with the reason.
    """
    beam = manifest["search"]["config"].get("beam_width", 1)
    task = dict(device=args.device, threads=args.threads, clock="wall", beam_width=beam)
    task |= dict(precision=manifest["precision"], length_penalty=0.6, folder=str(path))
    task |= dict(forced_length=manifest["limits"]["target_length"])
    name = "two files" if manifest.get("layout") == "steps" else "ours"
    tasks = {name: task}
    if name == "two files" and args.device == "gpu":
        tasks["graphs"] = task | {"graphs": True}
    tasks |= {rival: task | {"folder": str(path.parent / rival)} for rival in RIVALS}
    # No backend: serving needs none, and it would hold memory.
    environment = devices.environment(args.device, args.threads, None, args.packages)
    random = np.random.default_rng(args.seed)
    shape = max(args.batches), args.source_length
    sources = random.integers(4, manifest["vocab_size"]["source"], shape)
    sources[:, -1] = 3  # the end token
    facts = bench.call("gpu_engines:nodes_by_provider", task, environment | bench.SERVES)
    rows = []
    with bench.engines("serving_engines:serve", tasks, environment, left_out) as opened:
        for batch in args.batches:
            answers = bench.in_turn(opened, args.rounds, batches=[sources[:batch].tolist()])
            cell = {"artefact": path.name, "beam": beam, "batch": batch, **facts}
            rivals = [each for each in opened if each in RIVALS] or [None]
            for engine, rival in itertools.product(set(opened) - set(RIVALS), rivals):
                rows.append({**cell, "engine": engine, **serving_figures(answers, engine, rival)})
                print(rows[-1], flush=True)
    return rows


def serving_figures(answers, engine, rival):
    """Computes the medians of one cell, the share of equal tokens, and a hash of ours."""
    row, ids, speeds = {"rival": rival, "agreement": None}, {}, {}
    for prefix, name in (("", engine), ("rival_", rival)):
        if name is None:
            return row
        found = answers[name]
        seconds = [sum(each["seconds"]) for each in found]
        (ids[name],) = found[-1]["ids"]
        row.setdefault("tokens", hashlib.sha256(str(ids[engine]).encode()).hexdigest()[:16])
        speeds[name] = [sum(map(len, ids[name])) / one for one in seconds]
        row |= {
            f"{prefix}milliseconds": 1e3 * statistics.median(seconds),
            f"{prefix}tokens_per_second": statistics.median(speeds[name]),
            f"{prefix}peak_memory_mb": found[-1]["peak_mb"] * 2**20 / 1e6,
        }
    rows = zip(ids[engine], ids[rival], strict=True)
    same = [one == two for pair in rows for one, two in zip(*pair, strict=True)]
    row["speedup"] = bench.ratio(speeds[engine], speeds[rival])
    return row | {"agreement": statistics.mean(same)}


SERVING = Table(
    [
        ("artefact", "{artefact}"),
        ("engine", "{engine}"),
        ("provider", "{provider}"),
        ("beam", "{beam}"),
        ("batch", "{batch}"),
        ("ms", "{milliseconds}"),
        ("tokens/s", "{tokens_per_second}"),
        ("rival", "{rival}"),
        ("ms", "{rival_milliseconds}"),
        ("tokens/s", "{rival_tokens_per_second}"),
        ("ours / rival", "{speedup}"),
        ("same tokens", "{agreement}"),
    ]
)


def make(args, folder, precisions=("float32", "float16")):
    """Writes random models to serve, each in ONNX, for CTranslate2 and for PyTorch."""
    shape = MINIATURE if args.quick else SIZES["base"]
    task = dict(folder=str(folder), shape=shape, vocabulary=61 if args.quick else 32_000)
    task |= dict(length=args.target_length, precisions=list(precisions))
    return devices.call(args, "gpu_models:make", "tensorflow", **task)
