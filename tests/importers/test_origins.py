"""An importer names the right one for a folder of another origin, and says what a folder lacks."""

import json

import pytest

from keras_transformer import importers
from keras_transformer.importers.__main__ import ORIGINS, main

FILES = {
    "bergamot": {"model.enes.intgemm.bin": "", "vocab.enes.spm": "", "lex.enes.bin": ""},
    "ctranslate2": {"model.bin": "", "config.json": "{}", "shared_vocabulary.json": "[]"},
    "keras_hub": {"config.json": json.dumps({"module": "keras_hub.src.models.bert"})},
    **{
        name: {"config.json": json.dumps({"model_type": name}), "model.safetensors": ""}
        for name in ("bert", "gpt2", "marian", "whisper")
    },
}


def write(folder, files):
    for name, content in files.items():
        (folder / name).write_text(content, "utf-8")
    return folder


@pytest.mark.parametrize("load", ["load", "load_model"])
@pytest.mark.parametrize("found", FILES)
@pytest.mark.parametrize("asked", ORIGINS)
def test_the_right_importer_is_named(asked, found, load, tmp_path):
    if asked == found or (asked, load) == ("bergamot", "load_model"):  # it has `load` only
        return
    write(tmp_path, FILES[found])
    message = rf"holds a model of {found}, but this importer reads {asked}\. Use .* {found}\."
    with pytest.raises(ValueError, match=message):
        getattr(getattr(importers, asked), load)(tmp_path)


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("kind", ["empty", "missing", "file", "other", "unknown"])
def test_a_folder_without_a_model_says_what_it_lacks(origin, kind, tmp_path, capsys):
    folder = tmp_path / "folder"
    if kind == "file":
        folder.write_text("mine", "utf-8")
    elif kind != "missing":
        folder.mkdir()
        files = {"other": {"README.md": ""}, "unknown": {"config.json": '{"model_type": "t5"}'}}
        write(folder, files.get(kind, {}))
    assert main([origin, str(folder), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    lacks = {"bergamot": "model*.bin", "ctranslate2": "model.bin"}.get(origin, "config.json")
    if kind in ("file", "missing"):
        reason = "is a file" if kind == "file" else "does not exist"
        assert f"folder {reason}. Pass the folder with the published files" in error
    elif kind == "unknown" and lacks == "config.json":
        assert f"the architecture 't5', but this importer reads '{origin}'. No importer" in error
    else:
        assert f"folder has no {lacks}, so it holds no model of {origin}" in error
    assert not (tmp_path / "out").exists()
