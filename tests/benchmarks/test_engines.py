"""The table of engines: one row, the whole table at night, and the faults of engines."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from helpers import node

pytest.importorskip("tensorflow", reason="exporters run on TensorFlow")
if keras.config.backend() != "tensorflow":
    pytest.skip("exporters run on TensorFlow", allow_module_level=True)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import columns  # noqa: E402
import engines  # noqa: E402
import export_columns  # noqa: E402

pytestmark = pytest.mark.slow

REPORT = json.loads((BENCHMARKS / "results" / "engines.json").read_text("utf-8"))
FAULTS = sorted((BENCHMARKS / "faults").glob("*.py"))
# The package that an engine or tool needs, if the development environment lacks it.
NEEDS = {"OpenVINO": "openvino", "tract": "tract", "onnxslim": "onnxslim"}


@pytest.fixture
def with_browser(pytestconfig, monkeypatch):
    folder = node.installed(pytestconfig.cache.mkdir("node"))
    monkeypatch.setenv("ENGINES_NODE", str(folder))


def states(row):
    return {name: cell["state"] for name, cell in row["cells"].items()}


def test_the_report_has_all_engines_and_a_reason_for_each_failure():
    rows = REPORT["rows"]
    assert len(rows) >= 30 and not [row["name"] for row in rows if "fails" in row]
    for row in rows:
        assert row["cells"].keys() == rows[0]["cells"].keys(), row["name"]
        assert row["cells"]["ONNX Runtime"] == {"state": "equal"}, row["name"]
        for cell in row["cells"].values():
            assert cell["state"] in ("equal", "refused", "fault", "differs")
            assert cell["state"] == "equal" or len(cell["reason"]) > 10
    files = {path.stem for path in FAULTS}
    faults = [
        (row["name"], name, cell.get("reproduction"))
        for row in rows
        for name, cell in row["cells"].items()
        if cell["state"] == "fault" and name not in export_columns.TOOLS
    ]
    assert faults and {name for *_, name in faults} <= files, faults


@pytest.mark.parametrize("path", FAULTS, ids=[path.stem for path in FAULTS])
def test_a_reproduction_is_short(path):
    lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    assert len(lines) <= 20


@pytest.mark.nightly
@pytest.mark.parametrize("path", FAULTS, ids=[path.stem for path in FAULTS])
def test_a_reproduction_still_shows_its_fault(path):
    """If a fault is gone, measure the table again."""
    if "openvino" in path.stem:
        pytest.importorskip("openvino")
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    shown = done.returncode < 0 or "AssertionError" in done.stderr  # below 0: it never returned
    assert shown, f"The fault is gone:\n{done.stdout}{done.stderr}"


@pytest.mark.full
def test_a_row_has_the_cells_of_the_report(with_browser):
    compare(["text to text, greedy"])


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(engines.all_rows()))
def test_every_row_has_the_cells_of_the_report(name, with_browser):
    compare([name])


def compare(names):
    """Measures rows again; engines that are not installed are left out."""
    import engines_checks

    table = [*engines_checks.ENGINES, *engines_checks.TOOLS]
    here = [
        engine
        for engine in table
        if importlib.util.find_spec(NEEDS.get(engine.opener, "onnxruntime")) is not None
    ]
    committed = {row["name"]: states(row) for row in REPORT["rows"]}
    for name in names:
        found = states(engines.measure(engines.all_rows()[name], here))
        assert found == {engine.name: committed[name][engine.name] for engine in here}
        assert found["ONNX Runtime"] == "equal" and found["browser"] == "equal"


def test_a_table_numbers_its_reasons():
    refused = {"state": "refused", "reason": "Unsupported operator 'Loop' at node 17"}
    other = {"state": "refused", "reason": "Unsupported operator 'Scan' at node 9"}
    fault = {"state": "fault", "reason": "crashes", "reproduction": "some_crash"}
    rows = [
        {"name": "one", "cells": {"A": {"state": "equal"}, "A, portable": refused}},
        {"name": "two", "cells": {"A": fault, "A, portable": other}},
        {"name": "three", "cells": {"A": fault}},
    ]
    text = columns.TABLES["engines"]({"rows": rows})
    assert "| one | equal | refused (1) |" in text and "| **equal** | **1 of 3** |" in text
    assert "| two | fault (2) | refused (1) |" in text and "| three | fault (2) | - |" in text
    assert "2. A: `crashes` [Reproduction](#some-crash)." in text
