"""`whole_file` and `whole_folder`: a target is complete or absent, whatever happens."""

import contextlib
import ctypes
import errno
import os
import pathlib
import signal
import stat
import subprocess
import sys

import pytest

from keras_transformer.files import LOCK_FILE, whole_file, whole_folder


def aside_of(path):
    return (whole_file if path.suffix else whole_folder)(path)


def write(path, content):
    """Writes a file by `whole_file`, or a folder with one file by `whole_folder`."""
    with aside_of(path) as aside:
        assert aside.name == (path.name if path.suffix else "new")
        (aside if path.suffix else aside / "a.txt").write_text(content)


def content(path):
    return (path if path.suffix else path / "a.txt").read_text()


@pytest.fixture(params=["file.npz", "folder"])
def path(request, tmp_path):
    return tmp_path / request.param


def names(folder):
    return sorted(item.name for item in folder.iterdir())


@pytest.mark.parametrize("swaps", [True, False])
def test_new_content_appears_and_replaces_the_old(path, swaps, request):
    if not swaps:
        request.getfixturevalue("without_swap")
    for text in ("first", "second"):
        write(path, text)
        assert (content(path), names(path.parent)) == (text, [path.name])


@pytest.mark.parametrize("suffix", ["", ".npz"])
def test_names_may_be_as_long_as_the_file_system_allows(tmp_path, suffix):
    name = "a" + "\u20ac" * 83 + suffix  # up to 254 bytes
    write(tmp_path / name, "new")
    assert content(tmp_path / name) == "new" and names(tmp_path) == [name]


@pytest.mark.parametrize("earlier", [None, "earlier"])
def test_error_in_the_block_changes_nothing(path, earlier):
    if earlier:
        write(path, earlier)
    before = names(path.parent)
    with pytest.raises(KeyError), aside_of(path) as aside:
        (aside if path.suffix else aside / "a.txt").write_text("half")
        assert path.exists() == bool(earlier) and aside.parent.parent == path.parent
        raise KeyError("stopped on the way")
    with pytest.raises(FileNotFoundError), whole_file(path.with_suffix(".npz")):
        pass  # it wrote no file
    assert names(path.parent) == before
    assert not earlier or content(path) == earlier


@pytest.mark.parametrize("failing", ["rename", "replace", "open"])
def test_a_disk_without_room_for_a_name_leaves_nothing_behind(path, monkeypatch, failing):
    write(path, "earlier")

    call = getattr(os, failing)

    def full(*args, **options):
        if failing == "open" and not args[1] & os.O_CREAT:
            return call(*args, **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, full)
    with contextlib.suppress(OSError):  # a lock is not needed, and not every target is renamed
        with aside_of(path):
            raise OSError(errno.ENOSPC, "no room for the content")
    monkeypatch.undo()
    assert names(path.parent) == [path.name] and content(path) == "earlier"


KILLED = """
import os, signal, sys, pathlib
from keras_transformer.files import whole_file, whole_folder
path = pathlib.Path(sys.argv[1])
with (whole_file if path.suffix else whole_folder)(path) as aside:
    (aside if path.suffix else aside / "a.txt").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
WITHOUT_FRAMEWORKS = "import sys; sys.modules.update(dict.fromkeys(('keras', 'tensorflow')))\n"


def test_process_killed_in_the_block_leaves_the_earlier_content(path):
    write(path, "earlier")
    command = [sys.executable, "-c", WITHOUT_FRAMEWORKS + KILLED, path]
    assert subprocess.run(command, timeout=300).returncode == -signal.SIGKILL
    assert content(path) == "earlier"
    (left,) = set(names(path.parent)) - {path.name}
    assert left.startswith(f".{path.name}.") and left.endswith(".partial")
    write(path, "later")
    assert content(path) == "later"
    assert names(path.parent) == [path.name]


def test_a_write_removes_leftovers_of_other_names(path):
    left = path.with_name(".checkpoint-7.npz.abcdefgh.partial")
    (left / "new").mkdir(parents=True)
    (left / LOCK_FILE).touch()  # as a killed process leaves it: nothing holds the lock
    write(path, "later")
    assert names(path.parent) == [path.name]


@pytest.mark.parametrize("kind", ["in use", "foreign", "old", "no locks"])
def test_a_write_keeps_folders_that_are_no_leftovers(path, kind, monkeypatch):
    others = path.with_name("other")
    if kind == "in use":
        with whole_folder(others), whole_file(path.with_name("other.npz")) as aside:
            aside.touch()
            before = set(names(path.parent))
            write(path, "new")
            assert set(names(path.parent)) == before | {path.name} and len(before) == 2
        return
    if kind == "no locks":
        monkeypatch.setattr("keras_transformer.files.fcntl", None)
    left = path.with_name(".out.abcdefgh.partial")
    (left / ("old" if kind == "old" else "new")).mkdir(parents=True)
    if kind != "foreign":
        (left / LOCK_FILE).touch()
    write(path, "new")
    assert set(names(path.parent)) == {path.name, left.name}


KILLED_AFTER_A_RENAME = """
import os, signal, sys, pathlib
from keras_transformer.files import whole_folder
rename = os.rename
def rename_and_die(*paths):
    rename(*paths)
    os.kill(os.getpid(), signal.SIGKILL)
with whole_folder(sys.argv[1]) as aside:
    (aside / "a.txt").write_text("later")
    os.rename = rename_and_die
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux swaps two folders in one step")
def test_folder_exists_at_every_moment_of_its_replacement(tmp_path):
    write(tmp_path / "out", "earlier")
    command = [sys.executable, "-c", WITHOUT_FRAMEWORKS + KILLED_AFTER_A_RENAME, tmp_path / "out"]
    subprocess.run(command, timeout=300)
    assert content(tmp_path / "out") == "later"
    assert names(tmp_path) == ["out"]


@pytest.fixture
def without_swap(monkeypatch):
    """A system that cannot swap two folders."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())


@pytest.mark.parametrize("name", ["~/a.txt", "~/out", "~"])
def test_path_that_begins_with_a_tilde_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"os\.path\.expanduser"), aside_of(pathlib.Path(name)):
        pytest.fail("the block began")
    assert names(tmp_path) == []
    write(tmp_path / "~" / "out", "an absolute path is as it is")
    assert names(tmp_path) == ["~"]


def test_folder_that_is_not_writable_is_an_error_before_the_work(path, monkeypatch):
    def refuse(path, *arguments, **named):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "mkdir", refuse)  # root ignores permissions
    with pytest.raises(PermissionError), aside_of(path):
        pytest.fail("the block began")
    assert names(path.parent) == []


def test_file_needs_an_existing_parent_and_a_folder_makes_its_own(tmp_path):
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "no" / "a.txt"):
        pytest.fail("the block began")
    write(tmp_path / "no" / "such" / "folder", "new")
    assert content(tmp_path / "no" / "such" / "folder") == "new"
    with pytest.raises(KeyError), whole_folder(tmp_path / "other" / "folder"):
        raise KeyError("stopped on the way")
    assert names(tmp_path) == ["no"]


def test_a_file_and_a_folder_do_not_replace_each_other(path):
    path.write_text("mine") if not path.suffix else path.mkdir()
    with pytest.raises(OSError, match=path.name) as raised:
        write(path, "new")
    assert path.suffix or isinstance(raised.value, NotADirectoryError)
    assert names(path.parent) == [path.name] and path.is_dir() == bool(path.suffix)


@pytest.mark.parametrize("exists", [True, False])
def test_symbolic_link_stays_and_its_target_is_written(path, exists):
    target = path.parent / "other" / "target"
    target.parent.mkdir()
    if exists:
        target.touch() if path.suffix else target.mkdir()
    path.symlink_to(target)
    write(path, "new")
    assert path.is_symlink() and not target.is_symlink()
    assert (content(path), names(target.parent)) == ("new", ["target"])


def test_new_files_and_folders_have_default_permissions(path):
    before = os.umask(0o022)
    try:
        write(path, "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == (0o644 if path.suffix else 0o755)


@pytest.mark.parametrize("refused", ["new", "old"])
def test_an_earlier_folder_survives_a_failed_move(tmp_path, monkeypatch, without_swap, refused):
    """It is put back, or kept beside its place if that fails, too."""
    write(tmp_path / "out", "earlier")
    rename = os.rename

    def refuse(source, target):
        if target == tmp_path / "out" and source.name in ("new", refused):
            raise OSError(16, "Device or resource busy")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="busy"):
        write(tmp_path / "out", "new")
    (left,) = tmp_path.iterdir()
    assert (left.name == "out") == (refused == "new")
    assert content(left if refused == "new" else left / "old") == "earlier"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sync_flushes_content_before_the_move_and_the_name_after_it(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, os.replace

    def flushed(opened):
        done.append(pathlib.Path(os.readlink(f"/proc/self/fd/{opened}")).name)
        fsync(opened)

    def moved(source, target):
        done.append("move")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", moved)
    with whole_file(tmp_path / "a.npz", sync=True) as aside:
        aside.write_text("new")
    assert done == ["a.npz", "move", tmp_path.name]
    with whole_file(tmp_path / "a.npz") as aside:
        aside.write_text("newer")
    assert done[3:] == ["move"]
