"""What exporters share: folders that appear whole or not at all, one error, progress."""

import contextlib
import json
import os
import pathlib
import sys
import time

from keras_transformer.export.artefact import signature
from keras_transformer.files import checked_path, whole_folder

# The file that every SavedModel has.
SAVED_MODEL_FILE = "saved_model.pb"


class ExportError(Exception):
    """An export that did not succeed: says which check failed, by how much, and how to go on."""


@contextlib.contextmanager
def staged(path, why_not):
    """An empty folder beside `path` that takes its place when the block ends without an error.

    Until then what is at `path` stays as it is, and after an error the new folder is removed. An
    old folder is replaced only if it is empty, or if all that is in it belongs to an earlier
    export. A symbolic link stays, and the folder that it leads to is replaced.

    Args:
        path: folder to write.
        why_not: function of a folder that returns why it is no earlier export, or None if it is
            one: `why_not_onnx` or `why_not_saved_model`.

    Yields:
        `pathlib.Path` of the folder to fill.

    Raises:
        ExportError: something else than an export is at `path`, or nothing can be written there.
        ValueError: `path` begins with "~".
    """
    path = checked_path(path)
    if os.path.islink(path) and not os.path.exists(path):
        raise ExportError(
            f"{path} is a symbolic link that leads nowhere, to {os.path.realpath(path)}. Remove "
            "the link, make that folder, or choose another path."
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
                f"Nothing can be written beside {path}: {error}. An export is written aside and "
                "moved into place, so the folder above must be writable: mend that, or choose "
                "another path."
            ) from error
        if complete:
            raise ExportError(
                f"The export is complete, but could not be moved to {path}: {error}. If another "
                "export wrote there at the same time, that one stands; else see that the folder "
                "can be renamed (it is no mount point), and export again."
            ) from error
        raise


def _check_target(path, why_not):
    """Raises `ExportError` unless `path` is free, an empty folder or an earlier export."""
    if not path.exists():
        return
    reason = why_not(path) if path.is_dir() else "it is a file"
    if reason and not (path.is_dir() and not any(path.iterdir())):
        raise ExportError(
            f"{path} exists and is no earlier export ({reason}), so it was left alone. Choose "
            "another path, or remove it first."
        )


def why_not_onnx(folder):
    """Why a folder is not what `export_onnx` wrote, or None."""
    known = {signature.MANIFEST_FILE, *signature.FILES}
    for item in sorted(folder.iterdir()):
        if item.name not in known or not item.is_file():
            return f"{item.name} is no file of an ONNX export"
    try:
        manifest = json.loads((folder / signature.MANIFEST_FILE).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return f"its {signature.MANIFEST_FILE} cannot be read: {error}"
    if not isinstance(manifest, dict) or manifest.get("format") != signature.FORMAT:
        return f"its {signature.MANIFEST_FILE} does not say format={signature.FORMAT!r}"
    return None


def why_not_saved_model(folder):
    """Why a folder is not what `export_saved_model` wrote, or None."""
    for item in sorted(folder.iterdir()):
        if not _is_part_of_saved_model(item):
            return f"{item.name} is no part of a SavedModel"
    if not (folder / SAVED_MODEL_FILE).exists():
        return f"it has no {SAVED_MODEL_FILE}"
    return None


def _is_part_of_saved_model(item):
    if item.is_file():
        return item.name in (SAVED_MODEL_FILE, "fingerprint.pb")
    if item.name == "assets":
        return not any(item.iterdir())  # the tokenizer is in the graph
    if item.name == "assets.extra":
        return [file.name for file in item.iterdir()] == ["head.json"]
    return item.name == "variables" and all(
        file.name.startswith("variables.") for file in item.iterdir()
    )


class Progress:
    """Tells on stderr what is being done and how long it took; and in which stage it failed.

    `pending` may hold an exception that a signal's handler has raised. Python loses one that comes
    while a finaliser runs; then the next stage raises it again.
    """

    pending = None

    def __init__(self, verbose):
        self.verbose = verbose

    @contextlib.contextmanager
    def __call__(self, what, advice="Please report it with the model's configuration."):
        start = time.perf_counter()
        if Progress.pending is not None:
            raise Progress.pending
        self._print(f"{what} ... ")
        try:
            yield
        except BaseException as error:
            self._print("failed\n" if isinstance(error, Exception) else "stopped\n")
            if isinstance(error, ExportError) or not isinstance(error, Exception):
                raise
            if isinstance(error, OSError):
                advice = "Make room and see that it can be written there, and export again."
            raise ExportError(
                f"Failed at {what}: {type(error).__name__}: {error}. What was at the target is as "
                f"before. {advice}"
            ) from error
        self._print(f"{time.perf_counter() - start:.1f} s\n")

    def result(self, text: str) -> None:
        """Tells a result."""
        self._print(f"{text}\n")

    def _print(self, text):
        if self.verbose:
            sys.stderr.write(text)
            sys.stderr.flush()
