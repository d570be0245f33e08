"""`examples/similarity.py` in its shortest form."""

import json

import pytest
from support import scripts

from keras_transformer.export.runtime import Predictor

SHORT = ["--epochs", "1", "--limit", "60", "--vocab-size", "300", "--num-layers", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("similarity")
    scripts.load("similarity").main([*SHORT, "--d-model", "16", "--output", str(folder)])
    return folder


@pytest.mark.full
def test_the_score_is_of_both_directions(folder):
    report = json.loads((folder / "score.json").read_text("utf-8"))
    assert sorted(report["score"]) == [
        "recall@1 de-en", "recall@1 en-de", "recall@10 de-en", "recall@10 en-de"
    ]  # fmt: skip
    assert all(0 <= value <= 1 for value in report["score"].values())
    assert report["pairs"] == 60 and report["data"] == "number words"
    assert len(report["baseline"]) == 2 and report["artefact_bytes"] > 0


@pytest.mark.full
def test_the_picture_is_there(folder):
    assert (folder / "similarity.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_the_artefact_gives_vectors_of_length_one(folder):
    first, second = Predictor(folder / "onnx").predict(["one", "zwei"])
    assert first.vector.shape == (16,)
    assert first.vector @ first.vector == pytest.approx(1, abs=1e-5)
    assert first.vector @ second.vector < 1
