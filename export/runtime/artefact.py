"""Reads an exported folder, and checks that it is what the exporter wrote.

`artefact.json` names every file with its size and SHA-256, and holds a checksum of itself. So a
file that was cut off, swapped or changed is found before ONNX Runtime reads it. This finds damage
and mix-ups; it is no signature against someone who can rewrite all the files.
"""

import pathlib
from typing import NamedTuple

from keras_transformer.data.json_tokenizer import load_tokenizer
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.export.runtime import signature
from keras_transformer.export.runtime.manifest import digest, unseal


class ArtefactError(ValueError):
    """An exported folder is damaged, foreign, of another format version, or unfit for this use."""


class Artefact(NamedTuple):
    """A folder whose files are all as they were written.

    Attributes:
        folder: pathlib.Path.
        manifest: dict, the content of `artefact.json`; its fields are those of `manifest.FIELDS`.
        tokenizer: Tokenizer, or None where the artefact holds none.
        target_tokenizer: Tokenizer of what the model writes: `tokenizer`, unless the artefact
            holds a second one.
    """

    folder: pathlib.Path
    manifest: dict
    tokenizer: Tokenizer | None
    target_tokenizer: Tokenizer | None = None

    @property
    def models(self):
        """Paths of the ONNX files, list of pathlib.Path."""
        layout = self.manifest.get("layout", "loop")
        return [self.folder / name for name in signature.MODEL_FILES[layout]]

    @property
    def model(self):
        """Path of the ONNX file, or of the first, pathlib.Path."""
        return self.models[0]


def read_artefact(folder):
    """Reads and verifies the folder that `export_onnx` wrote.

    Every file that the artefact names is read and its checksum compared, which takes about a second
    a gigabyte. Files that it does not name are ignored.

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
    folder = pathlib.Path(folder)
    manifest = _read_manifest(folder)
    for name, entry in manifest["files"].items():
        _verify(folder / name, entry)
    tokenizer, target = (
        _read_tokenizer(folder / name, manifest["vocab_size"][side])
        if name in manifest["files"]
        else None
        for name, side in (
            (signature.TOKENIZER_FILE, "source"),
            (signature.TARGET_TOKENIZER_FILE, "target"),
        )
    )
    return Artefact(folder, manifest, tokenizer, target or tokenizer)


def read_task(folder):
    """The task of an artefact, by its manifest alone: what to serve it with. Errors as above."""
    return _read_manifest(pathlib.Path(folder))["task"]


def _read_tokenizer(path, known):
    """The tokenizer in a file; raises where the model knows fewer ids, `known`, than it has."""
    try:
        tokenizer = load_tokenizer(path)
    except ValueError as error:
        raise ArtefactError(f"{path}: {error}") from error
    if known is not None and tokenizer.vocab_size > known:
        raise ArtefactError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} ids and the model knows {known}. "
            "Export the model with the tokenizer that it was trained with."
        )
    return tokenizer


def _read_manifest(folder):
    path = folder / signature.MANIFEST_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtefactError(
            f"{folder} is not an artefact: {path} cannot be read ({error.strerror}). Pass the "
            "folder that `keras_transformer.export.export_onnx` wrote."
        ) from error
    try:
        return unseal(data)
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{path}: {error}") from error


def _verify(path, entry):
    """Raises unless the file at `path` has the size and the SHA-256 that `entry` says."""
    try:
        found = digest(path)
    except OSError as error:
        raise ArtefactError(
            f"{path} cannot be read ({error.strerror}). The artefact is incomplete: copy the "
            "whole folder again, or export the model again."
        ) from error
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
