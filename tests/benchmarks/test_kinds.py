"""The table of task kinds: some rows in full, and the cases of each row."""

import sys
from pathlib import Path

import keras
import pytest
from helpers.tiers import nightly

pytest.importorskip("tensorflow", reason="exporters run on TensorFlow")
if keras.config.backend() != "tensorflow":
    pytest.skip("exporters run on TensorFlow", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import columns  # noqa: E402
import kinds  # noqa: E402
import kinds_checks  # noqa: E402
import kinds_rows  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.full]

ROWS = kinds.all_rows()
# Words that the names of the rows must contain.
KINDS = (
    "classes",
    "tags",
    "spans",
    "vectors",
    "language model",
    "text to text",
    "pictures to class",
    "series to series",
    "sound to class",
    "sound to text",
    "recurrent",
    "used twice",
    "numbers",
    "several outputs",
)


def test_every_kind_of_task_has_a_row():
    missing = [kind for kind in KINDS if not any(kind in name for name in ROWS)]
    assert not missing
    assert sum(not row.own for row in ROWS.values()) >= 10


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.own])
def test_cases_have_several_sizes_and_padding_on_either_side(name):
    row = ROWS[name]
    cases = row.cases(kinds_rows.CASES)
    assert {len(next(iter(case.values()))) for case in cases} >= {1, 3, 8, 32}
    ends = [x for case in cases for x in case.values() if x.ndim == 2 and x.dtype.kind == "i"]
    assert not ends or not row.left or any((x[:, 0] == 0).any() for x in ends)
    assert not ends or any((x[:, -1] == 0).any() for x in ends)


@pytest.mark.parametrize(
    "name, columns",
    [
        ("tags", (".keras",)),
        nightly("classes, class token", ("float32", "padding")),
        nightly("sound to class", ("SavedModel",)),
        ("pictures to class", ("int8",)),
    ],
)
def test_a_row_passes_its_checks(name, columns):
    report = kinds.measure(ROWS[name], quick=True, columns=columns)
    assert list(report["columns"]) == list(columns)
    assert [found for found in report["columns"].values() if "fails" in found] == []


def test_a_wrong_answer_fails(tmp_path):
    kind = kinds_checks.Kind(ROWS["text and numbers"], kinds_rows.QUICK_CASES[:1], tmp_path)
    kind.expected = [{name: 2.0 * x for name, x in case.items()} for case in kind.expected]
    with pytest.raises(kinds_checks.export.ExportError, match="differ|other numbers"):
        kind.check(".keras")


def test_failures_are_listed_with_their_reason():
    def broken():
        raise ValueError("no such\nthing")

    row = kinds_rows.Row("broken", broken, lambda rng, real: {})
    found = kinds.measure(row, quick=True)
    assert found["fails"] == "ValueError: no such thing"
    good = {"name": "good", "columns": {".keras": {"error": 0.0}}}
    text = columns.TABLES["kinds"]({"rows": [good, {"name": "gone", "fails": "status -11"}]})
    assert "| good | 0e+00 |" in text and "| gone | fails |" in text
    assert "- gone, all: status -11" in text
