"""`examples/summarise.py` in its shortest form."""

import json

import pytest
from support import scripts

from keras_transformer.export.runtime import Translator

SHORT = ["--epochs", "1", "--limit", "16", "--vocab-size", "700", "--num-layers", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("summarise")
    script = scripts.load("summarise")
    script.main([*SHORT, "--d-model", "16", "--beam-width", "1", "--output", str(folder)])
    return folder


def test_the_score_stands_beside_leads(folder):
    report = json.loads((folder / "score.json").read_text("utf-8"))
    assert sorted(report["score"]) == ["rouge1", "rouge2", "rougeL"]
    assert {f"rouge1 of lead-{count}" for count in (1, 3)} <= report["baseline"].keys()
    assert report["texts"] == 16 and report["data"] == "made calendars"


def test_the_picture_is_there(folder):
    assert (folder / "summarise.png").read_bytes().startswith(b"\x89PNG")


def test_the_artefact_writes(folder):
    (result,) = Translator(folder / "onnx").n_best(["Anna reads a novel in Rome."])
    assert result.error is None and len(result.texts) == 1
