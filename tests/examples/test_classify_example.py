"""The script that learns classes of texts, at its shortest."""

import json

import pytest
from support.scripts import load

pytest.importorskip("tensorflow")
pytest.importorskip("onnxruntime")
pytest.importorskip("matplotlib")

from keras_transformer.export.runtime import Predictor  # noqa: E402


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classify")
    load("classify").main(["--epochs", "1", "--limit", "60", "--output", str(folder)])
    return folder


@pytest.mark.full
def test_it_leaves_a_score(output):
    report = json.loads((output / "score.json").read_text("utf-8"))
    assert 0 <= report["score"]["accuracy"] <= 1
    assert 0.4 <= max(report["baseline"].values()) <= 1
    assert report["epochs"] == 1 and report["artefact_bytes"] > 10_000
    assert report["data"] == "opinions made of a few words"


@pytest.mark.full
def test_it_leaves_pictures(output):
    for name in ("words.png", "confusion.png"):
        assert (output / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_its_artefact_answers(output):
    (result,) = Predictor(output / "onnx").predict(["the film was not good"])
    assert {*result.labels} == {"negative", "positive"} and result.error is None


def test_the_set_of_real_data_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        load("classify").main(["--data", str(tmp_path)])
    assert "--data and --set go together" in capsys.readouterr().err
