"""Shared by all exporters: atomic writes of folders, the export error, and progress."""

import contextlib
import json
import os
import pathlib
import re
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, TypeAlias

from keras_transformer.files import checked_path, whole_folder
from keras_transformer.types import StrPath

# A function that returns why a folder is not an earlier export, or `None` if it is one.
WhyNot: TypeAlias = Callable[[pathlib.Path], str | None]


# Endings of the files of other exporters. Ours write folders.
FILE_ENDINGS = frozenset(
    (".onnx", ".keras", ".h5", ".hdf5", ".pb", ".tflite", ".bin", ".npz", ".safetensors", ".zip")
)


class ExportError(Exception):
    """Raised when an export fails. The message names the check, the size of the error and a fix."""


def quoted(error: Exception, most: int = 2000) -> str:
    """Returns the type and the text of an error in one line of at most `most` characters.

    Keras' texts have control codes for bold type; a long text is cut between two words.
    """
    text = re.sub(r"\x1b\[[\d;]*m", "", f"{type(error).__name__}: {error}")
    text = textwrap.shorten(text, most, placeholder=" ...")
    return text if text.endswith((".", "!", "?")) else f"{text}."


@contextlib.contextmanager
def staged(path: StrPath, why_not: WhyNot) -> Iterator[pathlib.Path]:
    """Yields an empty folder beside `path`, which replaces `path` when the block ends.

    Until then `path` is unchanged. After an error the new folder is removed. An old folder is
    replaced only if it is empty or holds only an earlier export. A symbolic link stays, and the
    folder that it points to is replaced.

    Args:
        path: folder to write.
        why_not: a `WhyNot`, such as a result of `why_not_files`.

    Yields:
        `pathlib.Path` of the folder to fill.

    Raises:
        ExportError: `path` holds something other than an export, or cannot be written.
        ValueError: `path` begins with "~", or has the ending of a file.
    """
    path = checked_path(path)
    if path.suffix.lower() in FILE_ENDINGS:
        raise ValueError(
            f"The export is a folder, but {str(path)!r} is named like a file. Pass the name of a "
            f"folder, such as {str(path.with_suffix(''))!r}."
        )
    if os.path.islink(path) and not os.path.exists(path):
        raise ExportError(
            f"{path} is a broken symbolic link, to {os.path.realpath(path)}. Remove the link, "
            "make that folder, or choose another path."
        )
    path = pathlib.Path(os.path.realpath(path))
    _check_target(path, why_not)
    folder, complete = None, False
    try:
        with whole_folder(path) as folder:
            yield folder
            _check_target(path, why_not)  # it may have changed meanwhile
            complete = True
    except OSError as error:
        if folder is None:
            raise ExportError(
                f"Cannot write beside {path}: {error}. An export is written to a temporary folder "
                "and moved into place, so the parent folder must be writable: change that, or "
                "choose another path."
            ) from error
        if complete:
            raise ExportError(
                f"The export is complete, but could not be moved to {path}: {error}. If another "
                "export wrote there at the same time, that one was kept; else check that the "
                "folder can be renamed (it is not a mount point), and export again."
            ) from error
        raise


def _check_target(path: pathlib.Path, why_not: WhyNot) -> None:
    """Raises `ExportError` unless `path` is free, an empty folder or an earlier export."""
    if not path.exists():
        return
    reason = why_not(path) if path.is_dir() else "it is a file"
    if reason and not (path.is_dir() and not any(path.iterdir())):
        raise ExportError(
            f"{path} exists and is not an earlier export ({reason}), so it was left unchanged. "
            "Choose another path, or remove it first."
        )


def why_not_files(names: Collection[str], marked: str, mark: dict[str, Any]) -> WhyNot:
    """Returns the `WhyNot` of exports that consist of files, one of which is marked.

    Args:
        names: names of all files that such an export may hold.
        marked: name of a JSON file of each export.
        mark: keys and values that this file must hold.
    """

    def why_not(folder: pathlib.Path) -> str | None:
        for item in sorted(folder.iterdir()):
            if item.name not in names or not item.is_file():
                return f"{item.name} is not a file of such an export"
        try:
            content = json.loads((folder / marked).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            return f"its {marked} cannot be read: {error}"
        if not isinstance(content, dict) or not mark.items() <= content.items():
            return f"its {marked} does not say {json.dumps(mark)}, so it came from elsewhere"
        return None

    return why_not


class Progress:
    """Reports on stderr each stage, its duration and failures.

    Attributes:
        pending: an exception that a signal handler raised, or `None`. Python loses an exception
            that is raised while a finalizer runs; then the next stage raises it again.
    """

    pending: ClassVar[BaseException | None] = None

    def __init__(self, verbose: bool) -> None:
        self.verbose = verbose

    @contextlib.contextmanager
    def __call__(
        self, stage: str, advice: str = "Please report it with the model's configuration."
    ) -> Iterator[None]:
        """Runs the block as a stage. Unexpected errors become `ExportError`s with the advice."""
        start = time.perf_counter()
        if Progress.pending is not None:
            raise Progress.pending
        self._write(f"{stage} ... ")
        try:
            yield
        except BaseException as error:
            self._write("failed\n" if isinstance(error, Exception) else "stopped\n")
            if isinstance(error, ExportError) or not isinstance(error, Exception):
                raise
            if isinstance(error, OSError):
                advice = "Free some disk space, check the folder's permissions, and export again."
            raise ExportError(
                f"Failed at {stage}: {quoted(error)} The target is unchanged. {advice}"
            ) from error
        self._write(f"{time.perf_counter() - start:.1f} s\n")

    def result(self, text: str) -> None:
        """Writes a line with a result."""
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        if self.verbose:
            sys.stderr.write(text)
            sys.stderr.flush()
