"""An artefact outside Python: Node.js with ONNX Runtime's WebAssembly build."""

import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
from support import artefacts

from keras_transformer.export.runtime import Translator

SOURCE = pathlib.Path(__file__).parents[2] / "node"


@pytest.fixture(scope="module")
def node_folder(pytestconfig):
    """A folder, kept in pytest's cache, with the script and the packages that it needs."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder = pytestconfig.cache.mkdir("node")
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


def test_node_gives_the_same_tokens_as_python(node_folder, tmp_path):
    folder = artefacts.write(tmp_path, artefacts.tokenizer())
    translator = Translator(folder, threads=1)
    batches = [padded(translator, artefacts.LINES[:n]) for n in (1, 2, 5)]
    results = run_in_node(node_folder, folder / "model.onnx", batches)
    assert len(results) == len(batches)
    for batch, result in zip(batches, results, strict=True):
        tokens, scores = translator.session.run(["token_ids", "scores"], {"source_ids": batch})
        np.testing.assert_array_equal(result["token_ids"], tokens)
        np.testing.assert_allclose(result["scores"], scores, atol=1e-4)
