"""Folders of exports: they appear whole or not at all, and replace only earlier exports."""

import ctypes
import json
import os
import pathlib

import pytest

from keras_transformer.export.staging import ExportError, quoted, staged, why_not_files

MARK = {"format": "tests"}
why_not = why_not_files({"artefact.json", "model.onnx"}, "artefact.json", MARK)


def write(folder, content="new"):
    """Writes an export's files."""
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_text(content)
    (folder / "artefact.json").write_text(json.dumps(MARK))
    return folder


def export(path, content="new"):
    with staged(path, why_not) as folder:
        write(folder, content)


def tree(folder):
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_a_new_folder_appears_with_its_parents_and_replaces_an_earlier_export(tmp_path):
    path = tmp_path / "a" / "b" / "out"
    for content in ("first", "second"):
        export(path, content)
        assert (path / "model.onnx").read_text() == content
    assert [item.name for item in path.parent.iterdir()] == ["out"]
    (tmp_path / "empty").mkdir()
    export(tmp_path / "empty")
    assert (tmp_path / "empty" / "model.onnx").read_text() == "new"


def test_error_leaves_nothing_behind(tmp_path):
    for path in (tmp_path / "new" / "out", write(tmp_path / "old", "earlier")):
        before = tree(tmp_path)
        with pytest.raises(KeyError), staged(path, why_not) as folder:
            write(folder)
            raise KeyError("stopped on the way")
        assert tree(tmp_path) == before


@pytest.mark.parametrize("stray", ["model.keras", ".git/HEAD", "notes.txt", "model.onnx/x"])
def test_export_with_other_files_beside_it_is_left_alone(tmp_path, stray):
    if stray.startswith("model.onnx"):
        (tmp_path / "artefact.json").write_text(json.dumps(MARK))
    else:
        write(tmp_path)
    (tmp_path / stray).parent.mkdir(exist_ok=True)
    (tmp_path / stray).write_text("precious")
    before = tree(tmp_path)
    name = stray.partition("/")[0]
    with pytest.raises(ExportError, match=f"not an earlier export .{name} is not a file of"):
        export(tmp_path)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("content", ["not JSON", "[]", '{"format": "other"}'])
def test_a_file_named_like_the_manifest_makes_no_export(tmp_path, content):
    (tmp_path / "artefact.json").write_text(content)
    with pytest.raises(ExportError, match=r"not an earlier export \(its artefact.json"):
        export(tmp_path)
    assert tree(tmp_path) == {"artefact.json": content}


def test_files_that_appear_during_the_export_are_left_alone(tmp_path):
    path = write(tmp_path / "out", "earlier")
    with (
        pytest.raises(ExportError, match="notes.txt"),
        staged(path, why_not) as folder,
    ):
        write(folder)
        (path / "notes.txt").write_text("precious")
    assert (path / "notes.txt").read_text() == "precious"
    assert (path / "model.onnx").read_text() == "earlier"
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


def test_symbolic_link_stays_and_its_target_is_replaced(tmp_path):
    write(tmp_path / "release", "earlier")
    (tmp_path / "latest").symlink_to("release")
    export(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "release" / "model.onnx").read_text() == "new"


def test_path_that_begins_with_a_tilde_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"os\.path\.expanduser"):
        export("~/out")
    assert not list(tmp_path.iterdir())


def test_targets_that_cannot_be_written_are_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    cases = {
        tmp_path / "file": "it is a file",
        tmp_path / "file" / "out": "Cannot write beside",
        tmp_path / "dangling": "broken symbolic link",
        tmp_path / "circle": "broken symbolic link",
    }
    for path, told in cases.items():
        with pytest.raises(ExportError, match=told), staged(path, why_not):
            pytest.fail("the work began")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "dangling", "circle"}


def test_a_read_only_parent_folder_is_reported(tmp_path, monkeypatch):
    def refuse(path, *arguments, **named):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    with (
        pytest.raises(ExportError, match="Permission denied.*parent folder must be writable"),
        staged(tmp_path / "out", why_not),
    ):
        pytest.fail("the work began")


def test_failed_move_puts_the_earlier_export_back(tmp_path, monkeypatch):
    path, rename = write(tmp_path / "out", "earlier"), os.rename

    def refuse(source, target):
        if source.name == "new":
            raise OSError(16, "Device or resource busy")
        rename(source, target)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # two folders cannot be swapped
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(ExportError, match="could not be moved.*busy"):
        export(path)
    assert (path / "model.onnx").read_text() == "earlier"
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


def test_two_exports_to_one_folder_leave_one_of_them_whole(tmp_path, monkeypatch):
    path, rename = write(tmp_path / "out", "earlier"), os.rename

    def meet(source, target):
        """Moves another export into place after this one has moved the old folder away."""
        rename(source, target)
        if pathlib.Path(target).name == "old":
            monkeypatch.setattr(os, "rename", rename)
            export(path, "other")

    with staged(path, why_not) as first:
        export(path, "second")
        write(first, "first")
    assert (path / "model.onnx").read_text() == "first"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # two folders cannot be swapped
    monkeypatch.setattr(os, "rename", meet)
    with pytest.raises(ExportError, match="another export"):
        export(path, "third")
    assert (path / "model.onnx").read_text() == "other"
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "text, most, expected",
    [
        ("\x1b[1mThe size is wrong.\x1b[0m", 300, "KeyError: The size is wrong."),
        ("one\n\n  two", 300, "KeyError: one two."),
        ("\x1b[1;31mred\x1b[m word", 300, "KeyError: red word."),
        ("incomprehensible words at length", 31, "KeyError: incomprehensible ..."),
        ("why?", 300, "KeyError: why?"),
    ],
)
def test_quoted_errors_have_whole_words_and_no_control_codes(text, most, expected):
    class KeyError(Exception):
        pass

    assert quoted(KeyError(text), most) == expected


# Names of folders

ENDINGS = ["model.onnx", "model.keras", "model.h5", "model.tflite", "MODEL.ONNX", "a.b.onnx"]


@pytest.mark.parametrize("name", ENDINGS)
def test_a_folder_is_not_named_like_a_file(name, tmp_path):
    with (
        pytest.raises(ValueError, match=rf"The export is a folder, but '.*{name}' is named like"),
        staged(tmp_path / name, lambda folder: None),
    ):
        pytest.fail("the block must not run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model", "model.v2", "v1.0", "onnx", "out.fr-en"])
def test_other_points_in_the_name_of_a_folder_are_kept(name, tmp_path):
    with staged(tmp_path / name, lambda folder: None) as folder:
        (folder / "a").write_text("")
    assert (tmp_path / name / "a").exists()
