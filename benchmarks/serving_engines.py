"""Engines that serve a translator, each in a separate process, as in a server.

An engine is a function from a task to a function that translates rows of source ids. It imports
only the framework that it needs. A new engine is a row in `ENGINES`. A task has:

- engine, folder, threads and precision
- device: "cpu" or "gpu". Defaults to "cpu".
- beam_width, length_penalty, forced_length: the search, for engines whose files do not hold it
- graphs: whether steps are recorded as CUDA graphs. Defaults to `False`.
- clock: "wall" or "cpu"
"""

import concurrent.futures
import contextlib
import json
import os
import sys
from pathlib import Path

import bench
import devices
import subjects

PROVIDERS = {"cpu": "CPUExecutionProvider", "gpu": "CUDAExecutionProvider"}
FRAMEWORKS = ("tensorflow", "keras", "torch", "jax", "onnx")
# Maximum of generated tokens beyond the source (section 6.1), if no length is forced.
EXTRA_LENGTH = 50


def ours(task):
    """Opens our artefact, in one file or in two, on the provider of the device only.

    With as many threads as cores, it uses them as `Translator` does: several threads for each
    operation, or for a small search one thread for each part of a batch.
    """
    import onnxruntime

    from keras_transformer.export.artefact.reader import read_artefact
    from keras_transformer.export.runtime.engine import CPU, is_small_search
    from keras_transformer.export.runtime.session import open_session
    from keras_transformer.padding import pad_rows

    use_sessions(task.get("spin"), task.get("exact"))
    provider = PROVIDERS[task.get("device", "cpu")]
    if provider not in onnxruntime.get_available_providers():
        raise bench.Missing(f"onnxruntime {onnxruntime.__version__} has no {provider}")
    if task.get("device") == "gpu":
        with contextlib.suppress(ModuleNotFoundError):
            import torch  # noqa: F401  # loads CUDA libraries if no other package does
    artefact = read_artefact(task["folder"])
    divides = task["threads"] == os.cpu_count() and provider == CPU
    divides &= is_small_search(artefact.manifest)
    workers, threads = (task["threads"], 1) if divides else (1, task["threads"])
    chosen = (provider, {"enable_cuda_graph": "1"}) if task.get("graphs") else provider
    session = open_session(artefact, [chosen], threads=threads)
    pool = concurrent.futures.ThreadPoolExecutor(workers)

    def translate_part(rows):
        token_ids, _ = session.run(None, {"source_ids": pad_rows(rows)})
        return [row[row > 0].tolist() for row in token_ids[:, 0]]

    def translate(rows):
        parts = min(workers, len(rows))
        if parts == 1:
            return translate_part(rows)
        found = [None] * len(rows)
        for i, part in enumerate(pool.map(translate_part, [rows[i::parts] for i in range(parts)])):
            found[i::parts] = part
        return found

    return translate


def use_sessions(spin=None, exact=None):
    """Sets the microseconds of waiting and the option for exact products in all sessions.

    Args:
        spin: int, -1 for ONNX Runtime's default. Defaults to `None`: the runtime's choice.
        exact: bool. Defaults to `None`: the runtime's choice.
    """
    from keras_transformer.export.runtime import session

    if spin is not None:
        session.SPIN_MICROSECONDS = spin
    if exact is not None:
        session.products_saturate = lambda: exact


def ctranslate2(task):
    """Opens CTranslate2 with the same search rules; its hypotheses are ranked by ours."""
    import ctranslate2

    folder, length, gpu = Path(task["folder"]), task["forced_length"], task.get("device") == "gpu"
    if gpu and not ctranslate2.get_cuda_device_count():
        raise bench.Missing(f"ctranslate2 {ctranslate2.__version__} sees no GPU")
    tokens = json.loads((folder / "shared_vocabulary.json").read_text("utf-8"))
    ids = {token: i for i, token in enumerate(tokens)}
    translator = ctranslate2.Translator(
        str(folder),
        device="cuda" if gpu else "cpu",
        compute_type=task["precision"],
        inter_threads=1,
        intra_threads=task["threads"],
    )

    def translate(rows):
        found = translator.translate_batch(
            [[tokens[i] for i in row[:-1]] for row in rows],  # CTranslate2 adds the end token
            beam_size=task["beam_width"],
            num_hypotheses=task["beam_width"],
            length_penalty=task["length_penalty"],
            min_decoding_length=length or 0,
            max_decoding_length=length or max(map(len, rows)) + EXTRA_LENGTH,
            return_end_token=True,
            return_scores=True,
        )
        ranked = [
            subjects.ranked(one.hypotheses, one.scores, task["length_penalty"])[0] for one in found
        ]
        return [[ids[token] for token in hypotheses[0]] for hypotheses in ranked]

    return translate


def pytorch(task):
    """Opens the same search written in PyTorch, for forced lengths only."""
    import numpy as np
    import torch
    from torch_search import TorchTranslator

    from keras_transformer.padding import pad_rows

    device = "cuda" if task.get("device") == "gpu" else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise bench.Missing(f"torch {torch.__version__} sees no GPU")
    torch.set_num_threads(task["threads"])
    folder = Path(task["folder"])
    config = json.loads((folder / "config.json").read_text("utf-8"))
    with np.load(folder / "weights.npz") as weights:
        translator = TorchTranslator(dict(weights), config, device, task["precision"])
    options = task["beam_width"], task["forced_length"], task["length_penalty"]
    return lambda rows: translator.search(pad_rows(rows), *options)[0][:, 0].tolist()


ENGINES = {
    "ours": ours,
    "two files": ours,
    "graphs": ours,
    "ctranslate2": ctranslate2,
    "torch": pytorch,
}


def serve(task):
    """Opens an engine for a `bench.Worker`; its name before a comma chooses from `ENGINES`.

    Returns:
        Memory after the engine was opened, and a function from "batches" of rows of ids to the
        seconds and translations of each, and memory.
    """
    name = task["engine"].partition(",")[0]
    wanted = {name} | ({"torch"} if task.get("device") == "gpu" else set())
    sys.modules.update(dict.fromkeys(set(FRAMEWORKS) - wanted))
    devices.use_checkout()
    translate, clock = ENGINES[name](task), bench.CLOCKS[task["clock"]]

    def run(batches):
        found = [bench.timed(lambda rows=rows: translate(rows), clock) for rows in batches]
        seconds, ids = [*zip(*found, strict=True)]
        return {"seconds": seconds, "ids": ids, **bench.memory()}

    return bench.memory(), run
