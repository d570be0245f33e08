"""Engines that serve a model on a device: ONNX Runtime, CTranslate2, PyTorch.

Each engine translates batches of random sentences, and reports time, memory and best hypotheses.
From a profile, ONNX Runtime's engine also reports the execution provider of each operator.

Shapes: B sentences, W hypotheses of each, T tokens.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import workers
from workers import Missing, WorkerError

PROVIDERS = {"cpu": "CPUExecutionProvider", "gpu": "CUDAExecutionProvider"}
# Operators that belong on the GPU. Lengths, shapes and loop conditions may stay on the CPU.
PRODUCTS = ("MatMul", "Gemm", "Attention", "LayerNorm", "Softmax", "TopK", "Gelu", "Quant")


def serving(task):
    """Sets up an engine; returns its facts and a function that translates a random batch."""
    engine = {"onnx": onnx_engine, "ctranslate2": ctranslate2_engine, "torch": torch_engine}
    facts, translate = engine[task["engine"]](task)

    def run(batch, ids=False):
        generator = np.random.default_rng(task["seed"])
        sources = generator.integers(4, task["vocabulary"], (batch, task["source_length"]))
        sources = sources.astype("int32")
        sources[:, -1] = 3  # the end token
        start = time.perf_counter()
        found = translate(sources)  # the best hypotheses, lists of ids
        seconds = time.perf_counter() - start
        memory = workers.peak_memory()
        if ids:
            return {"ids": [list(map(int, row)) for row in found]}
        return {"seconds": seconds, "tokens": sum(map(len, found)), "memory": memory}

    run(1)  # an engine that does not run here fails before the comparison
    return facts, run


def onnx_engine(task):
    """Opens our artefact in ONNX Runtime, on the requested provider only."""
    for name in ("keras", "tensorflow", "jax"):  # serving needs none, and they would take memory
        sys.modules.setdefault(name, None)
    workers.use_checkout()
    import onnxruntime

    from keras_transformer.export.artefact.reader import read_artefact
    from keras_transformer.export.runtime.session import CPU, open_session

    provider, artefact = task["provider"], read_artefact(task["artefact"])
    if provider not in onnxruntime.get_available_providers():
        raise Missing(f"onnxruntime {onnxruntime.__version__} has no {provider}")
    if provider != CPU:
        with contextlib.suppress(ModuleNotFoundError):
            import torch  # noqa: F401  # loads CUDA libraries if no other package does
    session = open_session(artefact, [provider], threads=task["threads"])
    facts = {"provider": session.get_providers()[0]}
    facts |= nodes_by_provider(artefact.model_path, provider, task)

    def translate(sources):
        (ids,) = session.run(["token_ids"], {"source_ids": sources})  # (B, W, T)
        return [row[row != 0] for row in ids[:, 0]]

    return facts, translate


def nodes_by_provider(model, provider, task):
    """Profiles a model, and counts the nodes that each provider ran.

    `cpu_products`: operators that belong on the GPU, but did not run there. `share`: the part of
    `provider` in the time of all nodes. Loops are excluded, because their bodies are counted.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.log_severity_level = 4
    options.intra_op_num_threads = task["threads"]
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = os.path.join(folder, "profile")
        session = onnxruntime.InferenceSession(model, options, providers=[provider])
        sources = np.full((2, task["source_length"]), 5, "int32")
        session.run(["token_ids"], {"source_ids": sources})
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    nodes = [
        (event["args"]["op_name"], event["args"]["provider"], event["dur"])
        for event in events
        if event.get("cat") == "Node" and event["args"].get("provider")
    ]
    if not nodes:
        raise WorkerError(f"the profile of {model} names no node")
    nodes = [node for node in nodes if node[0] not in ("Loop", "If", "Scan")]
    elsewhere = [node for node in nodes if node[1] != provider]
    time_there = sum(node[2] for node in nodes) - sum(node[2] for node in elsewhere)
    heavy = {op for op, _, _ in elsewhere if any(name in op for name in PRODUCTS)}
    return {
        "nodes": len(nodes),
        "nodes_elsewhere": len(elsewhere),
        "operators_elsewhere": sorted({node[0] for node in elsewhere}),
        "cpu_products": sorted(heavy),
        "share": time_there / max(1, sum(node[2] for node in nodes)),
    }


def ctranslate2_engine(task):
    """Opens the same weights in CTranslate2. The tokens of a random model are `<id N>`."""
    import ctranslate2

    folder = Path(task["model"], "ctranslate2")
    if not folder.is_dir():
        raise Missing(f"no such folder: {folder}")
    gpu = task["device"] == "gpu"
    if gpu and not ctranslate2.get_cuda_device_count():
        raise Missing(f"ctranslate2 {ctranslate2.__version__} sees no GPU")
    translator = ctranslate2.Translator(
        str(folder),
        device="cuda" if gpu else "cpu",
        compute_type=task["precision"],
        inter_threads=1,
        intra_threads=task["threads"],
    )
    length = json.loads(Path(task["model"], "model.json").read_text("utf-8"))["length"]

    def translate(sources):
        found = translator.translate_batch(
            [[f"<id {i}>" for i in row[:-1]] for row in sources],  # CTranslate2 adds the end token
            beam_size=task["beam"],
            max_decoding_length=length,
            length_penalty=0.6,
        )
        return [[int(token[4:-1]) for token in each.hypotheses[0]] for each in found]

    return {"version": ctranslate2.__version__}, translate


def torch_engine(task):
    """Opens the same weights in PyTorch, with the search of `torch_search.py`."""
    import torch
    from torch_search import TorchTranslator

    folder = Path(task["model"])
    if not (folder / "weights.npz").exists():
        raise Missing(f"no weights.npz in {folder}")
    gpu = task["device"] == "gpu"
    if gpu and not torch.cuda.is_available():
        raise Missing(f"torch {torch.__version__} sees no GPU")
    torch.set_num_threads(task["threads"])
    described = json.loads((folder / "model.json").read_text("utf-8"))
    with np.load(folder / "weights.npz") as weights:
        device = "cuda" if gpu else "cpu"
        model = TorchTranslator(dict(weights), described["config"], device, task["precision"])

    def translate(sources):
        return model.search(sources, task["beam"], described["length"])[0][:, 0]

    return {"version": torch.__version__}, translate
