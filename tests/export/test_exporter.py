"""The skeleton of all exporters, with a format of one text file: prepare, write, prove, seal."""

import json
import re

import numpy as np
import pytest
from helpers import artefacts

from keras_transformer.export.exporter import Format, Rule, check_rules, export, part_of
from keras_transformer.export.proof import comparison, run_exported
from keras_transformer.export.staging import ExportError, why_not_files

MARK = {"format": "tests"}


class Doubled:
    """A task that doubles numbers."""

    def cases(self, samples=None):
        return [{"x": np.array([2.0, 3.0])}] if samples is None else samples

    def expected(self, case):
        return {"y": 2 * case["x"]}

    def compare(self, cases, expected, found, tolerance, exact=True):
        return comparison.compare_forward(expected, found, tolerance, exact)

    def same_tokens(self, expected, found):
        return [1, 2]


class Text(Format):
    """A file with the factor that multiplies the numbers."""

    why_not = staticmethod(why_not_files({"factor.json", "tokenizer.model"}, "factor.json", MARK))

    def __init__(self, factor=2.0, samples=None, **attributes):
        self.factor, self.parts = factor, [part_of(Doubled(), samples, "double")]
        vars(self).update(attributes)

    def write(self, folder, progress):
        with progress("writing"):
            (folder / "factor.json").write_text(json.dumps({**MARK, "factor": self.factor}))

    def run(self, folder, calls):
        factor = json.loads((folder / "factor.json").read_text())["factor"]
        assert {name for name, _ in calls} == {"double"}
        return [{"y": factor * case["x"]} for _, case in calls]

    def seal(self, folder, proof):
        return sorted(path.name for path in folder.iterdir()), proof


def test_an_export_is_written_proven_and_sealed(tmp_path, capsys):
    tokenizer = artefacts.tokenizer()
    files, proof = export(tmp_path / "out", Text(tokenizers=(tokenizer, None)))
    assert files == ["factor.json", "tokenizer.model"]
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == tokenizer.model
    assert proof.pop("date") and proof == {
        "cases": 1,
        "lines": 2,
        "largest_difference": 0.0,
        "relative_to": "size",
        "same_tokens": [1, 2],
    }
    told = capsys.readouterr().err
    stages = re.findall(r"^(.*) \.\.\. [\d.]+ s$", told, re.MULTILINE)
    assert [stage.split()[0] for stage in stages] == [
        *("writing", "running", "proving", "comparing", "sealing")
    ]
    assert "the same tokens in 1 of 2 lines of random input\n" in told


@pytest.mark.parametrize(
    ("factor", "attributes", "allowed"),
    [
        (2.0001, {}, True),
        (2.001, {}, False),
        (2.001, {"tolerance": 0.01}, True),
        (2.001, {"precision": "int8"}, True),
        (3.0, {"precision": "int8"}, False),
        (2.0001, {"tolerance": 1e-6}, False),
    ],
)
def test_the_precision_chooses_the_tolerance(factor, attributes, allowed, tmp_path):
    made = Text(factor, [{"x": np.array([1.0, -1.0, 2.0])}], **attributes)
    if allowed:
        export(tmp_path / "out", made, verbose=False)
    else:
        with pytest.raises(ExportError, match="Parity of the outputs: they differ"):
            export(tmp_path / "out", made, verbose=False)
    assert (tmp_path / "out").exists() is allowed


@pytest.mark.parametrize(
    "stage, owner, name",
    [
        ("writing", json, "dumps"),
        ("proving the files", Text, "run"),
        ("sealing", Text, "seal"),
    ],
)
def test_a_failed_stage_leaves_the_folder_as_it_was(
    stage, owner, name, tmp_path, monkeypatch, capsys
):
    export(tmp_path / "out", Text(), verbose=False)
    before = (tmp_path / "out" / "factor.json").read_text()
    monkeypatch.setattr(owner, name, None)
    with pytest.raises(ExportError, match=f"Failed at {stage}.*not callable.*unchanged"):
        export(tmp_path / "out", Text(2.00001))
    assert "failed\n" in capsys.readouterr().err
    assert [item.name for item in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "factor.json").read_text() == before


def test_a_second_format_adds_files_and_is_proven(tmp_path):
    class Copy(Text):
        def write(self, folder, progress):
            assert (folder / "factor.json").exists()

    files, _ = export(tmp_path / "out", Text(), Copy(), verbose=False)
    assert files == ["factor.json"]
    with pytest.raises(AssertionError):  # not an `Exception` of a stage: the format is wrong
        export(tmp_path / "other", Copy(), verbose=False)


@pytest.mark.parametrize("given, error", [("x", TypeError), (0, ValueError)])
def test_the_first_broken_rule_raises(given, error):
    rules = (
        Rule(TypeError, lambda a: a == "x", lambda a: f"{a} is no number"),
        Rule(ValueError, lambda a: a < 1, lambda a: f"{a} is below 1"),
    )
    check_rules(rules, 3)
    with pytest.raises(error, match=f"{given} is"):
        check_rules(rules, given)


def test_the_process_of_the_proof_opens_files_by_a_function_of_an_exporter():
    with pytest.raises(ExportError, match="failed at imports.*has no attribute 'nothing'"):
        run_exported(["x"], [], opener="keras_transformer.export.exporter:nothing")
