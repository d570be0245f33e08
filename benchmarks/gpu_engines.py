"""The execution provider of each operator of an artefact, from a profile of ONNX Runtime."""

import json
import os
import tempfile
from pathlib import Path

import devices
import numpy as np
from bench import WorkerError
from serving_engines import PROVIDERS

# Operators that belong on the GPU. Lengths, shapes and loop conditions may stay on the CPU.
PRODUCTS = ("MatMul", "Gemm", "Attention", "LayerNorm", "Softmax", "TopK", "Gelu", "Quant")


def nodes_by_provider(task):
    """Profiles the artefact of a task, and counts the nodes that each provider ran.

    `cpu_products`: operators that belong on the GPU, but did not run there. `share`: the part of
    `provider` in the time of all nodes. Loops are excluded, because their bodies are counted.
    """
    devices.use_checkout()
    from keras_transformer.export.artefact.reader import read_artefact
    from keras_transformer.export.runtime import session as runtime
    from keras_transformer.export.runtime.steps_session import StepsSession

    artefact, provider = read_artefact(task["folder"]), PROVIDERS[task["device"]]
    with tempfile.TemporaryDirectory() as folder:

        def profiled(*arguments):
            options = made(*arguments)
            options.enable_profiling = True
            options.log_severity_level = 4
            options.profile_file_prefix = os.path.join(folder, "profile")
            return options

        made = runtime.session_options
        runtime.session_options = profiled
        session = runtime.open_session(artefact, [provider], threads=task["threads"])
        session.run(None, {"source_ids": np.full((2, 7), 5, "int32")})
        parts = [session]
        if isinstance(session, StepsSession):
            parts = [session.first, session.step]
        files = [part.end_profiling() for part in parts]
        events = [event for file in files for event in json.loads(Path(file).read_text("utf-8"))]
    model = artefact.folder.name
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
        "provider": parts[-1].get_providers()[0],
        "nodes": len(nodes),
        "nodes_elsewhere": len(elsewhere),
        "operators_elsewhere": sorted({node[0] for node in elsewhere}),
        "cpu_products": sorted(heavy),
        "share": time_there / max(1, sum(node[2] for node in nodes)),
    }
