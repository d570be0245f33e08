"""`examples/summarise.py` in its shortest form."""

import json

import pytest
from support import bergamot_model, scripts

from keras_transformer.data.text_sets import TextSets
from keras_transformer.export.runtime import Translator
from keras_transformer.importers import bergamot

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
    assert report["parameters"] == bergamot.load(start)[0].count_params()
    (result,) = Translator(tmp_path / "out" / "onnx").n_best(["um cão corre ."])
    assert result.error is None
