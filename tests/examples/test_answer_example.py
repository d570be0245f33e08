"""`examples/answer.py` in its shortest form."""

import json

import pytest
from support import scripts

from keras_transformer.export.runtime import Predictor

SHORT = ["--epochs", "1", "--passages", "20", "--limit", "40", "--num-layers", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answer")
    scripts.load("answer").main([*SHORT, "--d-model", "16", "--output", str(folder)])
    return folder


@pytest.mark.full
def test_the_score_stands_beside_a_baseline(folder):
    report = json.loads((folder / "score.json").read_text("utf-8"))
    assert report["questions"] == 40 and report["data"] == "made calendars"
    assert 0 <= report["score"]["exact match"] <= 1
    assert 0.2 < report["baseline"]["most words in common, kind given"] < 0.8


@pytest.mark.full
def test_the_picture_is_there(folder):
    assert (folder / "answer.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_the_artefact_answers_from_the_passage(folder):
    passage = "Anna reads a novel in Rome."
    (answer,) = Predictor(folder / "onnx").predict([("Where is Anna on 3/5?", passage)])
    assert answer.error is None and 0 < answer.score <= 1
    assert answer.text and passage[answer.start : answer.end] == answer.text
