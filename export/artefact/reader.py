"""Reads an exported folder, and checks that it has not changed since the export.

`artefact.json` names every file with its size and SHA-256, and holds a checksum of itself. So
truncated, swapped or changed files are found before ONNX Runtime reads them. This finds damage and
mix-ups. It does not protect against an attacker who can rewrite all files.
"""

import errno
import os
import pathlib
import stat
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import digest, model_files, unseal
from keras_transformer.text.json_tokenizer import load_tokenizer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import StrPath


class ArtefactError(ValueError):
    """An exported folder is damaged, foreign, of another format version, or unfit for this use."""


# The largest `artefact.json`. Most of its bytes are labels.
MOST_MANIFEST_BYTES = 2**24
# Nanoseconds. A file system may record the same time for two changes that are closer together.
_COARSEST_TIME = 2 * 10**9


_NONE = MappingProxyType({})


class FileState(NamedTuple):
    """The fields of `os.stat` that differ between two files, or before and after a change."""

    device: int
    inode: int
    bytes: int
    modified_ns: int
    changed_ns: int


class Artefact(NamedTuple):
    """A folder whose files have not changed since the export.

    Attributes:
        folder: pathlib.Path, absolute, without symbolic links.
        manifest: dict, the content of `artefact.json`; module `manifest` describes its fields.
        tokenizer: Tokenizer, or None if the artefact holds none.
        target_tokenizer: Tokenizer of the output: `tokenizer`, unless the artefact holds a second
            one.
        states: dict from file names to `FileState`, before the checksums were compared.
    """

    folder: pathlib.Path
    manifest: dict[str, Any]
    tokenizer: Tokenizer | None
    target_tokenizer: Tokenizer | None = None
    states: Mapping[str, FileState] = _NONE

    @property
    def model_paths(self) -> list[pathlib.Path]:
        """Paths of the files that the engine opens, list of pathlib.Path."""
        return [self.folder / name for name in model_files(self.manifest)]

    @property
    def model_path(self) -> pathlib.Path:
        """Path of that file, or of the first, pathlib.Path."""
        return self.model_paths[0]

    def check_unchanged(self, opened: Mapping[str, os.stat_result] = _NONE) -> None:
        """Raises `ArtefactError` if a file has changed since its checksum was compared.

        Call it after the files were opened. The checksums then belong to the opened bytes. A file
        that was replaced and put back in between is found only if it is in `opened`.

        Args:
            opened: dict from file names to `os.fstat` of the descriptors that were read.
        """
        for name, state in self.states.items():
            path = self.folder / name
            try:
                found = [_state(path.stat())]
                found += [_state(opened[name])] if name in opened else []
            except OSError:
                found = []
            # A new mode, owner or hard link also changes `changed_ns`.
            if {other._replace(changed_ns=state.changed_ns) for other in found} != {state}:
                raise ArtefactError(
                    f"{path} was written or replaced while it was opened. Open the folder again "
                    "once it is whole, and replace it in one move, as an export does."
                )
            if found[0] != state or time.time_ns() - state.changed_ns < _COARSEST_TIME:
                _verify(path, self.manifest["files"][name])


def read_artefact(folder: StrPath) -> Artefact:
    """Reads and verifies the folder that `export_onnx` wrote.

    Reads every file that the manifest names and compares its checksum, which takes about a second
    per gigabyte. Other files are ignored.

    Args:
        folder: str or path.

    Returns:
        An `Artefact`.

    Raises:
        ArtefactError: the folder or a file is missing or cannot be read, was changed after the
            export, is of a foreign or newer format, or holds a tokenizer that does not fit.

    Example:

    >>> read_artefact("out/onnx").manifest["precision"]  # doctest: +SKIP
    'int8'
    """
    given, folder = folder, _resolve(folder)  # once: a link may point elsewhere at any time
    manifest = _read_manifest(folder, given)
    states = {name: _verify(folder / name, entry) for name, entry in manifest["files"].items()}
    tokenizer, target = (
        _read_tokenizer(folder / name, manifest["vocab_size"][side])
        if name in manifest["files"]
        else None
        for name, side in (
            (signature.TOKENIZER_FILE, "source"),
            (signature.TARGET_TOKENIZER_FILE, "target"),
        )
    )
    return Artefact(folder, manifest, tokenizer, target or tokenizer, states)


def read_task(folder: StrPath) -> str:
    """Returns the task of an artefact, by its manifest alone. Errors as in `read_artefact`."""
    return _read_manifest(_resolve(folder), folder)["task"]


def _resolve(folder: StrPath) -> pathlib.Path:
    try:
        return pathlib.Path(os.path.realpath(pathlib.Path(folder)))
    except (OSError, ValueError) as error:  # no working directory; a NUL in the path
        raise _no_artefact(folder, signature.MANIFEST_FILE, error) from error


def _no_artefact(folder: StrPath, path: StrPath, error: Exception) -> ArtefactError:
    return ArtefactError(
        f"{folder} is not an artefact: {path} cannot be read "
        f"({getattr(error, 'strerror', error)}). Pass the folder that "
        "`keras_transformer.export.export_onnx` wrote."
    )


def _read_tokenizer(path: pathlib.Path, known: int | None) -> Tokenizer:
    """Reads a tokenizer; raises `ArtefactError` if it has more ids than the model, `known`."""
    try:
        tokenizer = load_tokenizer(path)
    except OSError as error:
        raise ArtefactError(_unreadable(path, error)) from error
    except (ImportError, ValueError) as error:
        raise ArtefactError(f"{path}: {error}") from error
    if known is not None and tokenizer.vocab_size > known:
        raise ArtefactError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} ids and the model knows {known}. "
            "Export the model with the tokenizer that it was trained with."
        )
    return tokenizer


def _read_manifest(folder: pathlib.Path, given: StrPath) -> dict[str, Any]:
    """Reads the manifest in a folder; errors name the folder as it was `given`."""
    path = folder / signature.MANIFEST_FILE
    try:
        size, data = _state(path.stat()).bytes, b""
        if 0 < size <= MOST_MANIFEST_BYTES:  # kernel files have 0 bytes and may never end
            with open(path, "rb") as file:
                data = file.read(size + 1)
    except OSError as error:
        raise _no_artefact(given, path, error) from error
    if not 0 < len(data) == size:
        raise ArtefactError(
            f"{path} has {size} bytes, or changed while it was read. A manifest has from 1 to "
            f"{MOST_MANIFEST_BYTES} bytes. Copy the folder again, or export the model again."
        )
    try:
        return unseal(data)
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{path}: {error}") from error


def _state(found: os.stat_result) -> FileState:
    """Returns the state of a regular file; raises `OSError` for others, such as a FIFO."""
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "no regular file")
    return FileState(
        found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )


def _verify(path: pathlib.Path, entry: dict[str, Any]) -> FileState:
    """Returns a file's state; raises `ArtefactError` unless size and SHA-256 match `entry`."""
    try:
        state = _state(path.stat())
        found = digest(path) if state.bytes == entry["bytes"] else {"bytes": state.bytes}
    except OSError as error:
        raise ArtefactError(_unreadable(path, error)) from error
    if found["bytes"] != entry["bytes"]:
        raise ArtefactError(
            f"{path} has {found['bytes']} bytes and was written with {entry['bytes']}. It was cut "
            "off or replaced: copy the folder again, or export the model again."
        )
    if found != entry:
        raise ArtefactError(
            f"{path} was changed after the export: its SHA-256 is {found['sha256']}, not "
            f"{entry['sha256']}. Copy the folder again, or export the model again."
        )
    return state


def _unreadable(path: pathlib.Path, error: OSError) -> str:
    return (
        f"{path} cannot be read ({error.strerror}). The artefact is incomplete: copy the whole "
        "folder again, or export the model again."
    )
