"""Runs an artefact's ONNX file in Node.js, on ONNX Runtime's WebAssembly build."""

import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

SOURCE = pathlib.Path(__file__).parents[1] / "node"


def installed(folder):
    """The folder, once the script and the packages that it needs are in it; else skips the test."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    for path in SOURCE.iterdir():
        shutil.copy(path, folder)
    installed = folder / "node_modules" / "onnxruntime-web" / "package.json"
    wanted = json.loads((SOURCE / "package.json").read_text())["dependencies"]["onnxruntime-web"]
    if not installed.exists() or json.loads(installed.read_text())["version"] != wanted:
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            pytest.skip(f"npm could not install onnxruntime-web: {done.stderr.strip()[-300:]}")
    return folder


def run_in_node(node_folder, model, batches):
    """Outputs of the model, as arrays, for each batch of source ids."""
    done = subprocess.run(
        ["node", "run_artefact.js", str(model)],
        cwd=node_folder,
        input=json.dumps([batch.tolist() for batch in batches]),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [
        {
            name: np.array([float(x) for x in value["data"]]).reshape(value["dims"])
            for name, value in result.items()
        }
        for result in json.loads(done.stdout)
    ]


def padded(translator, lines):
    rows = [[*translator.tokenizer.encode(line), 3] for line in lines]
    ids = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return ids
