"""Runs the package of `export/web` and artefacts in Node.js and Chromium.

The packages from npm are installed once, into a folder of pytest's cache.
"""

import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
from helpers import shared

from keras_transformer.padding import pad_rows

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "export" / "web"
DRIVERS = ROOT / "tests" / "node"
MADE = ("node_modules", "vendor", "types")  # not copied: the cached folder has its own
OLDEST_NODE = (20, 16)  # as package.json says
# Containers cannot set up Chromium's sandbox. The other options keep it off the network.
CHROMIUM_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def installed(folder):
    """Installs package, dependencies and drivers into the folder, or skips the test."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()
    if tuple(map(int, version.removeprefix("v").split(".")[:2])) < OLDEST_NODE:
        pytest.skip(f"node {version} is older than {'.'.join(map(str, OLDEST_NODE))}")
    with shared.alone(folder):
        shutil.copytree(PACKAGE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*MADE))
        shutil.copytree(DRIVERS, folder / "drivers", dirs_exist_ok=True)
        lock, done = (PACKAGE / "package-lock.json").read_bytes(), folder / "installed.json"
        if not done.exists() or done.read_bytes() != lock:
            _npm(folder, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
            done.write_bytes(lock)
        if not (folder / "vendor" / "runtime.js").exists():
            _npm(folder, "run", "vendor")
    return folder


def _npm(folder, *arguments):
    done = subprocess.run(
        ["npm", *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        pytest.skip(f"npm {arguments[0]} failed for export/web: {done.stderr.strip()[-300:]}")


def chromium():
    """Returns the path of Chromium, or skips the test."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("chromium is not installed")


def run(folder, driver, request=None, timeout=120):
    """Runs a driver of `tests/node`, with `request` as JSON. Returns its JSON output."""
    done = subprocess.run(
        ["node", f"drivers/{driver}"],
        cwd=folder,
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def run_in_node(node_folder, model, batches):
    """Returns the model's outputs, as arrays, for each batch of source ids."""
    request = {"model": str(model), "batches": [batch.tolist() for batch in batches]}
    return [
        {
            name: np.array([float(x) for x in value["data"]]).reshape(value["dims"])
            for name, value in result.items()
        }
        for result in run(node_folder, "run_artefact.js", request)
    ]


def padded(translator, lines):
    return pad_rows([[*translator.tokenizer.encode(line), 3] for line in lines])
