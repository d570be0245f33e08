"""Folders of exports: they appear whole or not at all, and replace only earlier exports.

`tests/test_files.py` tests the moves of whole folders, `test_exporter.py` failures on the way.
"""

import ctypes
import json
import os
import pathlib

import pytest

from keras_transformer.export.staging import ExportError, quoted, staged, why_not_files

SEALED = json.dumps({"format": "tests"})
EARLIER = {"artefact.json": SEALED, "model.onnx": "earlier"}
why_not = why_not_files(set(EARLIER), "artefact.json", json.loads(SEALED))


def write(folder, files=EARLIER):
    """Writes files by name into a folder, and returns the folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def export(path, content="new"):
    with staged(path, why_not) as folder:
        write(folder, EARLIER | {"model.onnx": content})


def tree(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_a_folder_is_new_or_replaces_an_earlier_export_or_an_empty_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "earlier")
    (tmp_path / "latest").symlink_to("earlier")
    for name in ("empty", "latest", "a/b", "model.v2", "out.fr-en"):
        export(tmp_path / name, name)
        assert (tmp_path / name / "model.onnx").read_text() == name
    assert (tmp_path / "latest").is_symlink()
    found = {item.name for item in tmp_path.iterdir()}
    assert found == {"empty", "earlier", "latest", "a", "model.v2", "out.fr-en"}


FOREIGN = [
    *(
        ({"artefact.json": SEALED, name: "precious"}, f"{name.partition('/')[0]} is not a file of")
        for name in ("model.keras", ".git/HEAD", "notes.txt", "model.onnx/x")
    ),
    *(
        ({"artefact.json": content}, "its artefact.json")
        for content in ("not JSON", "[]", '{"format": "other"}')
    ),
]


@pytest.mark.parametrize("files, reason", FOREIGN)
def test_a_folder_with_other_content_is_left_alone(tmp_path, files, reason):
    write(tmp_path, files)
    with pytest.raises(ExportError, match=rf"not an earlier export \({reason}"):
        export(tmp_path)
    assert tree(tmp_path) == files


def test_files_that_appear_during_the_export_are_left_alone(tmp_path):
    write(tmp_path / "out")
    with pytest.raises(ExportError, match="notes.txt"), staged(tmp_path / "out", why_not) as folder:
        write(folder, {"model.onnx": "new"})
        write(tmp_path / "out", {"notes.txt": "precious"})
    assert tree(tmp_path / "out") == {**EARLIER, "notes.txt": "precious"}
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


ENDINGS = ["model.onnx", "model.keras", "model.h5", "model.tflite", "MODEL.ONNX", "a.b.onnx"]
REFUSED = [
    ("file", ExportError, "it is a file"),
    ("file/out", ExportError, "Cannot write beside"),
    ("dangling", ExportError, "broken symbolic link"),
    ("circle", ExportError, "broken symbolic link"),
    ("~/out", ValueError, r"os\.path\.expanduser"),
    *(
        (name, ValueError, f"folder, but '{name}' is named like a file.*such as '")
        for name in ENDINGS
    ),
]


@pytest.mark.parametrize("name, error, told", REFUSED)
def test_unfit_targets_are_refused_before_the_work(name, error, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("file").write_text("mine")
    pathlib.Path("dangling").symlink_to("nowhere")
    pathlib.Path("circle").symlink_to("circle")
    with pytest.raises(error, match=told), staged(name, why_not):
        pytest.fail("the work began")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "dangling", "circle"}


def test_a_read_only_parent_folder_is_reported(tmp_path, monkeypatch):
    def refuse(path, *arguments, **named):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    told = "Permission denied.*parent folder must be writable"
    with pytest.raises(ExportError, match=told), staged(tmp_path / "out", why_not):
        pytest.fail("the work began")


def test_two_exports_to_one_folder_leave_one_of_them_whole(tmp_path, monkeypatch):
    path, rename = write(tmp_path / "out"), os.rename

    def meet(source, target):
        """Moves another export into place after this one has moved the old folder away."""
        rename(source, target)
        if pathlib.Path(target).name == "old":
            monkeypatch.setattr(os, "rename", rename)
            export(path, "other")

    with staged(path, why_not) as first:
        export(path, "second")
        write(first, EARLIER | {"model.onnx": "first"})
    assert (path / "model.onnx").read_text() == "first"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # two folders cannot be swapped
    monkeypatch.setattr(os, "rename", meet)
    with pytest.raises(ExportError, match="could not be moved.*another export"):
        export(path, "third")
    assert tree(path) == EARLIER | {"model.onnx": "other"}
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "text, most, expected",
    [
        ("\x1b[1mThe size is wrong.\x1b[0m", 300, "ValueError: The size is wrong."),
        ("one\n\n  two", 300, "ValueError: one two."),
        ("\x1b[1;31mred\x1b[m word", 300, "ValueError: red word."),
        ("incomprehensible words at length", 33, "ValueError: incomprehensible ..."),
        ("why?", 300, "ValueError: why?"),
    ],
)
def test_quoted_errors_have_whole_words_and_no_control_codes(text, most, expected):
    assert quoted(ValueError(text), most) == expected
