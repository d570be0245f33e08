"""What exporters share: folders that appear whole or not at all, one error, progress."""

import contextlib
import hashlib
import os
import pathlib
import shutil
import sys
import tempfile
import time


class ExportError(Exception):
    """An export that did not succeed: says which check failed, by how much, and how to go on."""


@contextlib.contextmanager
def staged(path, marker):
    """An empty folder beside `path` that takes its place when the block ends without an error.

    Until then what is at `path` stays as it is, and after an error the new folder is gone. An old
    folder is replaced only if it holds `marker` (or nothing at all).

    Args:
        path: folder to write.
        marker: name of a file that every earlier export left there.

    Yields:
        `pathlib.Path` of the folder to fill.

    Raises:
        ExportError: something else than an export is at `path`.
    """
    path = pathlib.Path(path).absolute()
    foreign = path.exists() and not (
        path.is_dir() and ((path / marker).exists() or not any(path.iterdir()))
    )
    if foreign:
        raise ExportError(
            f"{path} exists and is no earlier export (it has no {marker}), so it was left alone. "
            "Choose another path, or remove it first."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    new, old = aside / "new", aside / "old"
    try:
        new.mkdir()
        yield new
        if path.exists():
            os.rename(path, old)
        try:
            os.rename(new, path)
        except BaseException:
            if old.exists():
                os.rename(old, path)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def digest(path):
    """`{"sha256": ..., "bytes": ...}` of a file, read in pieces."""
    with open(path, "rb") as file:
        return {
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
            "bytes": os.path.getsize(path),
        }


class Progress:
    """Tells on stderr what is being done and how long it took."""

    def __init__(self, verbose):
        self.verbose = verbose

    @contextlib.contextmanager
    def __call__(self, what):
        start = time.perf_counter()
        self._print(f"{what} ... ")
        yield
        self._print(f"{time.perf_counter() - start:.1f} s\n")

    def _print(self, text):
        if self.verbose:
            sys.stderr.write(text)
            sys.stderr.flush()
