"""The shortest run of sound to text: what it leaves behind."""

import json

import pytest
from support import scripts

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("speech")
    arguments = ["--epochs", "1", "--limit", "8", "--layers", "1", "--output", str(path)]
    scripts.load("speech").main(arguments)
    return path


@pytest.mark.full
def test_the_score_and_the_picture_are_there(run):
    report = json.loads((run / "score.json").read_text("utf-8"))
    digits, joined = report["score"].values()
    assert 0 <= digits <= 1 and joined >= 0
    assert report["epochs"] == 1 and report["data"] == "made"
    assert (run / "spectrogram.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_the_artefact_takes_sound_and_gives_text(run):
    from support.sets.sound import log_bands
    from support.sets.spoken_digits import WORDS, dialled_digits

    from keras_transformer.export.runtime import Transcriber

    transcriber = Transcriber(run / "onnx")
    frames = log_bands(dialled_digits().test[0].samples, bands=64)
    (text,) = transcriber.transcribe([frames])
    assert set(text) <= set("".join(WORDS) + " ")
    (inputs,) = [value for value in transcriber.manifest["inputs"] if value["name"] == "frames"]
    assert inputs["axes"][2] == 64
