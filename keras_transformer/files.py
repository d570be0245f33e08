"""Files and folders that appear whole or not at all: written aside, then moved into place.

New content goes into a new folder beside the target, `.NAME.XXXXXXXX.partial`. It lies on the same
disk, so that the move is one step of the file system. A process that is killed meanwhile leaves
that folder, which is never read, and the target as it was.
"""

import contextlib
import ctypes
import errno
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator


def checked_path(path: str | os.PathLike) -> pathlib.Path:
    """The path, unless it begins with "~": only a shell replaces that by a home folder.

    Raises:
        ValueError: the path begins with "~" or the home folder of a user ("~ann").
    """
    path = pathlib.Path(path)
    home = os.path.expanduser(path)
    if home != os.fspath(path):
        raise ValueError(
            f"The path {str(path)[:100]!r} begins with '~', which only a shell replaces. Pass "
            f"{home[:100]!r}, the result of os.path.expanduser."
        )
    return path


def make_folder(path: pathlib.Path):
    """Makes a folder and those above it where they are missing; flushes their names to the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _flush_folder(folder.parent)


@contextlib.contextmanager
def whole_file(path: str | os.PathLike, sync: bool = False) -> Iterator[pathlib.Path]:
    """Yields a path to write a file to, which is moved to `path` when the block ends.

    An existing file is replaced. After an error it stays as it is, and what was written is removed.
    A symbolic link stays: the file that it names is written.

    Args:
        path: str or path. Its folder must exist.
        sync: bool. If True, the content and the new name are flushed to the disk, so that they
            survive a loss of power.

    Yields:
        `pathlib.Path` of the same name, and so of the same suffix, in another folder.

    Raises:
        OSError: the folder is missing or not writable.

    Example:

    >>> with whole_file("metrics.json") as aside:  # doctest: +SKIP
    ...     aside.write_text("{}", "utf-8")
    """
    name = checked_path(path).name
    path = _target(path)
    with _folder_beside(path) as folder:
        aside = folder / name
        yield aside
        if sync:
            _flush(aside, os.O_RDWR)
        os.replace(aside, path)
    if sync:
        _flush_folder(path.parent)


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields an empty folder to fill, which is moved to `path` when the block ends.

    An existing folder is swapped with the new one in one step, and then removed. Where the system
    or the file system cannot swap (only Linux can), it is moved away before the new one is moved
    there; a process that is killed between these two steps leaves nothing at `path`, and the
    existing folder as `old` in the `.partial` folder beside it. After an error the existing folder
    stays as it is, and the new one is removed. Missing folders above `path` are made. A symbolic
    link stays: the folder that it names is replaced.

    Args:
        path: str or path.

    Yields:
        `pathlib.Path` of the folder to fill.

    Raises:
        OSError: nothing can be written beside `path`, or the folder cannot be moved there.
    """
    path = _target(path)
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _folder_beside(path) as folder:
            aside = folder / "new"
            aside.mkdir()
            yield aside
            _replace_folder(aside, path, folder / "old")
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):  # it is not empty: the new folder is in it
                folder.rmdir()


def _target(path: str | os.PathLike) -> pathlib.Path:
    """The checked path; the place that a symbolic link names."""
    path = checked_path(path)
    return path.resolve() if path.is_symlink() else path


@contextlib.contextmanager
def _folder_beside(path):
    """A new folder beside `path`, removed in the end unless it holds the only copy of `path`."""
    folder = tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        yield pathlib.Path(folder)
    finally:
        if path.exists() or not os.path.exists(os.path.join(folder, "old")):
            shutil.rmtree(folder, ignore_errors=True)


def _replace_folder(new, path, old):
    """Moves `new` to `path`. An earlier folder goes to `new` or `old`, or stays after an error."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "A file is in the folder's place", str(path))
    if _swap(new, path):
        return
    try:
        if path.exists():
            os.rename(path, old)
        os.rename(new, path)
    except BaseException:
        if old.exists() and not path.exists():
            os.rename(old, path)
        raise


def _swap(one, other):
    """Exchanges two folders in one step. Returns False if one is missing or it is unsupported."""
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE, of Linux' headers
    paths = os.fsencode(one), os.fsencode(other)
    return renameat2 is not None and renameat2(here, paths[0], here, paths[1], exchange) == 0


def _flush_folder(path):
    if hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder to flush it
        _flush(path, os.O_RDONLY | os.O_DIRECTORY)


def _flush(path, flags):
    opened = os.open(path, flags)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
