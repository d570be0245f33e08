"""`examples/summarise.py` in its shortest form."""

import json

import keras
import numpy as np
import pytest
from support import bergamot_model, scripts
from support.sets.text_sets import TextSets

import keras_transformer as kt
from keras_transformer.export.runtime import Translator
from keras_transformer.importers import bergamot

SHORT = ["--epochs", "1", "--limit", "16", "--vocab-size", "700", "--num-layers", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("summarise")
    script = scripts.load("summarise")
    script.main([*SHORT, "--d-model", "16", "--beam-width", "1", "--output", str(folder)])
    return folder


@pytest.mark.full
def test_the_score_stands_beside_leads(folder):
    report = json.loads((folder / "score.json").read_text("utf-8"))
    assert sorted(report["score"]) == ["rouge1", "rouge2", "rougeL"]
    assert {f"rouge1 of lead-{count}" for count in (1, 3)} <= report["baseline"].keys()
    assert report["texts"] == 16 and report["data"] == "made calendars"


@pytest.mark.full
def test_the_picture_is_there(folder):
    assert (folder / "summarise.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_the_artefact_writes(folder):
    (result,) = Translator(folder / "onnx").n_best(["Anna reads a novel in Rome."])
    assert result.error is None and len(result.texts) == 1


@pytest.mark.full
def test_it_starts_from_a_published_translator(tmp_path, monkeypatch):
    start = bergamot_model.write_folder(tmp_path / "pt-en")
    lines = bergamot_model.LINES  # all that its vocabulary can spell
    sets = TextSets([lines, lines], [lines[:4], lines[:4]], {"test": [lines[:4], lines[:4]]})
    script = scripts.load("summarise")
    monkeypatch.setattr(script, "calendar_summaries", lambda *_, **__: sets)
    options = ["--epochs", "1", "--beam-width", "1", "--start", str(start)]
    script.main([*options, "--output", str(tmp_path / "out")])
    report = json.loads((tmp_path / "out" / "score.json").read_text("utf-8"))
    assert report["data"] == "made calendars, from a translator"
    assert report["epochs"] == 1  # none of beginnings: it can copy
    published = bergamot.load(start)[0].get_weights()
    trained = keras.models.load_model(tmp_path / "out" / "model.keras").get_weights()
    moved = [np.abs(a - b).max() for a, b in zip(trained, published, strict=True)]
    assert max(moved) < 0.02  # where it began: one update at 0.0002 at most
    assert (tmp_path / "out" / "summarise.png").exists()  # a decoder without self-attention, too
    (result,) = Translator(tmp_path / "out" / "onnx").n_best(["um cão corre ."])
    assert result.error is None


def test_a_translator_of_two_vocabularies_is_refused(tmp_path, monkeypatch):
    script = scripts.load("summarise")
    monkeypatch.setattr(script.bergamot, "load", lambda folder: (None, ("source", "target")))
    options = ["--limit", "4", "--start", "de-en", "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="de-en has two vocabularies"):
        script.main(options)


@pytest.mark.full
def test_lines_that_say_nothing_are_drawn(folder):
    script = scripts.load("summarise")
    model = keras.models.load_model(folder / "model.keras")
    tokenizer = kt.Tokenizer.load(folder / "onnx" / "tokenizer.model")
    figure = script.draw_attention(model, tokenizer, [("Anna reads.", "Anna", "")])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["</s>"]
