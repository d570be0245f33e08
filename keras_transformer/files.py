"""Files and folders that appear whole or not at all: written aside, then moved into place.

What is written goes into a new folder beside the target, `.NAME.XXXXXXXX.partial`. It lies on the
same disk, so that the move is one step of the file system. A process that is killed meanwhile
leaves that folder, which nobody reads, and the target as it was.
"""

import contextlib
import errno
import os
import pathlib
import shutil
import tempfile


@contextlib.contextmanager
def whole_file(path, sync=False):
    """Yields a path to write a file to, which is moved to `path` when the block ends.

    An existing file is replaced. After an error it stays as it is, and what was written is removed.

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
    path = pathlib.Path(path)
    with _folder_beside(path) as folder:
        aside = folder / path.name
        yield aside
        if sync:
            _flush(aside, os.O_RDWR)
        os.replace(aside, path)
    if sync and hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder to flush it
        _flush(path.parent, os.O_RDONLY | os.O_DIRECTORY)


@contextlib.contextmanager
def whole_folder(path):
    """Yields an empty folder to fill, which is moved to `path` when the block ends.

    An existing folder is replaced: it is moved away first, and removed once the new one is there.
    After an error it stays as it is, and the new folder is removed. Folders above `path` are made
    where they are missing.

    Args:
        path: str or path.

    Yields:
        `pathlib.Path` of the folder to fill.

    Raises:
        OSError: nothing can be written beside `path`, or the folder cannot be moved there.
    """
    path = pathlib.Path(path)
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
    """Moves `path` to `old` and `new` to `path`; moves `old` back where the second move fails."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "A file is in the folder's place", str(path))
    try:
        if path.exists():
            os.rename(path, old)
        os.rename(new, path)
    except BaseException:
        if old.exists() and not path.exists():
            os.rename(old, path)
        raise


def _flush(path, flags):
    opened = os.open(path, flags)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
