"""The shortest run of pictures to classes: what it leaves behind."""

import json

import numpy as np
import pytest
from support import scripts

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("images")
    arguments = ["--epochs", "1", "--limit", "20", "--layers", "1", "--output", str(path)]
    scripts.load("images").main(arguments)
    return path


@pytest.mark.full
def test_the_score_and_pictures_are_there(run):
    report = json.loads((run / "score.json").read_text("utf-8"))
    assert 0 <= report["score"]["accuracy"] <= 1 and report["epochs"] == 1
    assert report["data"] == "made" and report["artefact_bytes"] > 100_000
    for name in ("confusion.png", "attention.png"):
        assert (run / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_the_artefact_answers(run):
    from support.sets.pictures import made_pictures

    from keras_transformer.export.runtime import Predictor

    sets = made_pictures(limit=20)
    pixels, classes = sets.test
    answers = Predictor(run / "onnx").predict(pixels)
    assert {answer.error for answer in answers} == {None}
    right = np.mean(
        [answer.label == sets.labels[n] for answer, n in zip(answers, classes, strict=True)]
    )
    assert right == json.loads((run / "score.json").read_text("utf-8"))["score"]["accuracy"]
