"""The script that learns to go on with a text, at its shortest."""

import json

import pytest
from support.scripts import load

pytest.importorskip("tensorflow")
pytest.importorskip("onnxruntime")
pytest.importorskip("matplotlib")

from keras_transformer.export.runtime import Generator  # noqa: E402


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language_model")
    load("language_model").main(["--epochs", "1", "--limit", "500", "--output", str(folder)])
    return folder


@pytest.mark.full
def test_it_leaves_a_score_and_a_picture(output):
    report = json.loads((output / "score.json").read_text("utf-8"))
    assert 0.5 < report["score"]["loss in nats a character"] < 4
    assert report["epochs"] == 1 and report["artefact_bytes"] > 10_000
    assert (output / "learning.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_its_artefact_goes_on_with_a_prompt(output):
    generator = Generator(output / "onnx")
    (text,) = generator.generate(["the old "], seed=3)
    assert text and generator.generate(["the old "], seed=3) == [text]
