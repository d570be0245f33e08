"""Atomic writes of files and folders: written to a temporary folder, then moved into place.

The temporary folder, `.NAME.XXXXXXXX.partial`, is beside the target. So it is on the same disk, and
the move is one step of the file system. Of a long name it has 200 bytes. If the process is killed
before the move, the target is unchanged, and the folder stays but is never read. The next write
beside it removes it: a lock, which the system releases when a process ends, shows that no process
uses it. Where files cannot be locked, such as on Windows, the folder stays.
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

from keras_transformer.types import StrPath

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# The file in a temporary folder that its process locks.
LOCK_FILE = ".keras_transformer.lock"


def checked_path(path: StrPath) -> pathlib.Path:
    """Converts to a `pathlib.Path`; refuses "~", which only a shell expands to a home folder.

    Raises:
        ValueError: the path begins with "~" or the home folder of a user ("~ann").
    """
    path = pathlib.Path(path)
    home = os.path.expanduser(path)
    if home != os.fspath(path):
        raise ValueError(
            f"The path {str(path)[:100]!r} begins with '~', which only a shell expands. Pass "
            f"{home[:100]!r}, the result of os.path.expanduser."
        )
    return path


def make_folder(path: pathlib.Path) -> None:
    """Creates a folder and its missing parents; flushes their names to the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _flush_folder(folder.parent)


@contextlib.contextmanager
def whole_file(path: StrPath, sync: bool = False) -> Iterator[pathlib.Path]:
    """Yields a path for a new file, which is moved to `path` when the block ends.

    An existing file is replaced. After an error it stays unchanged, and the new file is removed.
    If `path` is a symbolic link, the link stays, and its target is replaced.

    Args:
        path: str or path. Its folder must exist.
        sync: bool. If True, the content and the new name are flushed to the disk, so that they
            survive a power failure.

    Yields:
        `pathlib.Path` of the same name, with the same suffix, in another folder.

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
def whole_folder(path: StrPath) -> Iterator[pathlib.Path]:
    """Yields an empty folder to fill, which is moved to `path` when the block ends.

    An existing folder is swapped with the new one in one step, and then removed. Only Linux can
    swap. Elsewhere the existing folder is moved away before the new one is moved to `path`. A
    process that is killed between these two steps leaves nothing at `path`, and the existing folder
    as `old` in the `.partial` folder beside it. After an error the existing folder stays unchanged,
    and the new one is removed. Missing parents of `path` are created. If `path` is a symbolic link,
    the link stays, and its target is replaced.

    Args:
        path: str or path.

    Yields:
        `pathlib.Path` of the folder to fill.

    Raises:
        OSError: the folder beside `path` is not writable, or the move fails.
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
            with contextlib.suppress(OSError):  # not empty: it contains the new folder
                folder.rmdir()


def _target(path: StrPath) -> pathlib.Path:
    """Returns the checked path, or the target of a symbolic link."""
    path = checked_path(path)
    return path.resolve() if path.is_symlink() else path


@contextlib.contextmanager
def _folder_beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Creates a folder beside `path`; removes it unless it holds the only copy of `path`."""
    _remove_leftovers(path.parent)
    # A file system allows names of 255 bytes.
    name = os.fsencode(path.name)[:200].decode("utf-8", "ignore")
    # The folder gets its name after the lock, so that no other process finds it without a lock.
    made = pathlib.Path(tempfile.mkdtemp(prefix=f".{name}.", dir=path.parent))
    folder = made.with_name(f"{made.name}.partial")
    with _lock(made / LOCK_FILE, os.O_CREAT):
        try:
            os.rename(made, folder)
            yield folder
        finally:
            if path.exists() or not (folder / "old").exists():
                for left in (made, folder):  # `made` if the disk had no room for the new name
                    shutil.rmtree(left, ignore_errors=True)


def _remove_leftovers(parent: pathlib.Path) -> None:
    """Removes the temporary folders of killed processes, except one that holds an old folder."""
    for file in parent.glob(f".*.partial/{LOCK_FILE}"):
        with _lock(file) as locked:
            if locked and not (file.parent / "old").exists():
                shutil.rmtree(file.parent, ignore_errors=True)


@contextlib.contextmanager
def _lock(file: pathlib.Path, flags: int = 0) -> Iterator[bool]:
    """Locks a file in the context. Yields False, and leaves no new file, if this is impossible."""
    opened, locked = None, False
    with contextlib.suppress(OSError):
        if fcntl is not None:
            opened = os.open(file, os.O_RDWR | flags, 0o600)
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
    if flags and not locked:
        file.unlink(missing_ok=True)
    try:
        yield locked
    finally:
        if opened is not None:
            os.close(opened)


def _replace_folder(new: pathlib.Path, path: pathlib.Path, old: pathlib.Path) -> None:
    """Moves `new` to `path`. An existing folder goes to `new` or `old`, or stays after an error."""
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


def _swap(one: pathlib.Path, other: pathlib.Path) -> bool:
    """Exchanges two folders in one step. Returns False if one is missing or it is unsupported."""
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    paths = os.fsencode(one), os.fsencode(other)
    return renameat2 is not None and renameat2(here, paths[0], here, paths[1], exchange) == 0


def _flush_folder(path: pathlib.Path) -> None:
    if hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder to flush it
        _flush(path, os.O_RDONLY | os.O_DIRECTORY)


def _flush(path: pathlib.Path, flags: int) -> None:
    opened = os.open(path, flags)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
