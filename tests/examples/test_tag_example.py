"""The script that learns parts of speech, at its shortest."""

import json

import pytest
from support.scripts import load

pytest.importorskip("tensorflow")
pytest.importorskip("onnxruntime")
pytest.importorskip("matplotlib")

from keras_transformer.export.runtime import Predictor  # noqa: E402


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tag")
    load("tag").main(["--epochs", "1", "--limit", "60", "--output", str(folder)])
    return folder


@pytest.mark.full
def test_it_leaves_a_score_and_a_picture(output):
    report = json.loads((output / "score.json").read_text("utf-8"))
    assert 0 <= report["score"]["accuracy"] <= 1
    assert 0.5 < report["baseline"]["usual tag of each word"] < 1
    assert (output / "confusion.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_its_artefact_answers(output):
    (result,) = Predictor(output / "onnx").predict(["Anna sees the garden"])
    assert result.words == ("Anna", "sees", "the", "garden")
    assert len(result.tags) == 4 and result.error is None


def test_the_baseline_is_the_usual_tag():
    usual_tags = load("tag").usual_tags
    train = [["a", "walk"], ["walk", "walk", "a"]], [["D", "N"], ["V", "V", "D"]]
    assert usual_tags(train, ["walk", "a"]) == ["V", "D"]
    assert usual_tags(([["a", "b"]], [["X", "X"]]), ["new"]) == ["X"]
