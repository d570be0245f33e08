"""The types of the package, which its marker `py.typed` promises."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from helpers.imports import PACKAGE, ROOT


@pytest.mark.full
def test_types_of_public_names_are_complete(tmp_path):
    pytest.importorskip("pyright")
    # A plain copy, because type checkers do not follow the hook of an editable installation.
    shutil.copytree(ROOT / PACKAGE, tmp_path / PACKAGE)
    shutil.copytree(ROOT / "export", tmp_path / PACKAGE / "export")
    command = [sys.executable, "-m", "pyright", "--verifytypes", PACKAGE, "--ignoreexternal"]
    # Pyright finds the installed packages through the first `python` on the path.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = subprocess.run(
        [*command, "--outputjson"],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    report = json.loads(done.stdout)["typeCompleteness"]
    unknown = [one["name"] for one in report["symbols"] if not one["isTypeKnown"]]
    assert report["symbols"] and report["completenessScore"] >= 0.98, unknown
