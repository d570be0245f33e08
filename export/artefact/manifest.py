"""`artefact.json`, the manifest of an ONNX artefact, which describes its files to a server.

An artefact is a folder. Its manifest has these fields, which `FIELDS` and `OPTIONAL` define:

| field | value |
| --- | --- |
| `format`, `format_version` | `FORMAT`, `FORMAT_VERSION` |
| `task` | one of `TASKS`: a search, a head, or "forward", one pass without a head |
| `inputs`, `outputs` | of the model, without those of `options`: list of \
`{"name", "dtype", "axes"}`, axes names or sizes |
| `text` | `{"inputs", "outputs"}` of `text_model.onnx`, or null without that file |
| `special_ids` | `SPECIAL_IDS` |
| `vocab_size` | `{"source", "target"}`, valid ids are less; null without ids |
| `limits` | in tokens: `source_length`, the longest source; `target_length`, the maximum number \
of generated tokens, the end token included, or null; `extra_length`, the maximum number of them \
beyond the source's length, or null |
| `search` | `{"class_name", "config"}`, or null for a forward pass |
| `precision` | one of `PRECISIONS` |
| `opsets`, `ir_version` | of the ONNX files: `{domain: version}`, `""` is ONNX itself; integer; \
null without ONNX files |
| `versions` | `{package: version}` that wrote the artefact |
| `files` | `{name: {"sha256", "bytes"}}`, every file but the manifest itself |
| `checksum` | SHA-256 of the other fields (`seal`), which reveals every changed bit |
| `head` | `{"class_name", "config"}` of a task head; only if the task has one |
| `ignores_padding` | whether padding on the right of ids changes nothing; only beside `head` |
| `proof` | comparison with Keras: `date` as year-month-day; `cases`, the number of batches; \
`lines`, the number of their rows; `largest_difference` from Keras' numbers; `relative_to`, its \
divisor: the "size" of each number (float32) or the "spread" of an output; `same_tokens`, of a \
search: lines with the same best hypothesis as Keras, and all lines; else null |
| `example` | `{"inputs", "outputs"}`, a small batch of the proof: nested lists by name, and the \
answers of the files, for `verify`; missing if the smallest batch is large |
| `about` | `{"languages", "scores"}` for the model card, which `export.describe` writes: codes of \
languages; numbers by the name of measure and data |
| `options` | inputs of the model that a caller may leave out: list of `{"name", "dtype", "axes", \
"default", "lowest", "highest"}`, the bounds of its numbers, or null |
| `engine` | one of `ENGINES`, which runs the files; "onnxruntime" if it is missing |
| `layout` | one of `LAYOUTS`, which says what the ONNX files are; "loop" if it is missing |

The checks are written by hand. A schema library would be a further package on servers, and could
not check the seal.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.artefact.signature import (
    DTYPES,
    ENGINES,
    FILES,
    FORMAT,
    FORMAT_VERSION,
    LAYOUTS,
    LITERT,
    LITERT_FILE,
    MANIFEST_FILE,
    MODEL_FILES,
    ONNX_RUNTIME,
    PRECISIONS,
    SCORES,
    SEARCH_OUTPUTS,
    SEARCH_TASKS,
    SEGMENT_IDS,
    SPECIAL_IDS,
    TASKS,
    TOKEN_IDS,
)
from keras_transformer.export.artefact.task_heads import HEADS, fits_labels, head_of
from keras_transformer.types import StrPath

# The form of each field: a type, a range of integers, a constant, a tuple of alternatives, a list
# with the form of its items, or a dict with exactly these keys.
_COUNT = range(2**63)
_COUNT_OR_NULL = (_COUNT, None)
_VALUES = [{"name": str, "dtype": DTYPES, "axes": [(str, _COUNT)]}]
FIELDS: dict[str, Any] = {
    "format": str,
    "format_version": int,
    "task": TASKS,
    "inputs": _VALUES,
    "outputs": _VALUES,
    "text": ({"inputs": _VALUES, "outputs": _VALUES}, None),
    "special_ids": SPECIAL_IDS,
    "vocab_size": {"source": _COUNT_OR_NULL, "target": _COUNT_OR_NULL},
    "limits": {
        "source_length": _COUNT,
        "target_length": _COUNT_OR_NULL,
        "extra_length": _COUNT_OR_NULL,
    },
    "search": (dict, None),
    "precision": PRECISIONS,
    "opsets": (dict, None),
    "ir_version": (int, None),
    "versions": dict,
    "files": dict,
    "checksum": str,
}
OPTIONAL: dict[str, Any] = {
    "head": {"class_name": tuple(HEADS), "config": dict},
    "ignores_padding": bool,
    "proof": {
        "date": str,
        "cases": int,
        "lines": int,
        "largest_difference": float,
        "relative_to": str,
        "same_tokens": ([_COUNT], None),
    },
    "example": {"inputs": dict, "outputs": dict},
    "about": {"languages": [str], "scores": dict},
    "options": [
        {
            **_VALUES[0],
            "default": (int, float, list),
            "lowest": (int, float, None),
            "highest": (int, float, None),
        }
    ],
    "engine": ENGINES,
    "layout": LAYOUTS,
}
_FILE = {"sha256": str, "bytes": _COUNT}


def id_inputs(inputs: Iterable[dict[str, Any]]) -> list[str]:
    """Returns the names of the inputs that are rows of ids, without `segment_ids`.

    Args:
        inputs: entries of `inputs` of a manifest.
    """
    return [
        value["name"]
        for value in inputs
        if value["dtype"] in ("int32", "int64")
        and len(value["axes"]) == 2
        and value["name"] != SEGMENT_IDS
    ]


def engine_of(manifest: dict[str, Any]) -> str:
    """Returns the engine that runs an artefact, one of `ENGINES`."""
    return manifest.get("engine", ONNX_RUNTIME)


def model_files(manifest: dict[str, Any]) -> tuple[str, ...]:
    """Returns the names of the files that the engine opens."""
    if engine_of(manifest) == LITERT:
        return (LITERT_FILE,)
    return MODEL_FILES[manifest.get("layout", "loop")]


def digest(path: StrPath) -> dict[str, Any]:
    """Returns `{"sha256": ..., "bytes": ...}` of a file, its entry in `files`."""
    with open(path, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"sha256": sha256, "bytes": file.tell()}


def checksum(manifest: dict[str, Any]) -> str:
    """Computes the SHA-256, in hexadecimal, of all fields but `checksum`, in any order."""
    rest = {name: value for name, value in manifest.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def seal(manifest: dict[str, Any]) -> bytes:
    """Returns a valid `manifest` as the bytes of `artefact.json`, with its checksum."""
    manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, **manifest}
    manifest["checksum"] = checksum(manifest)
    validate(manifest)
    return (json.dumps(manifest, indent=2, ensure_ascii=True) + "\n").encode("ascii")


def unseal(data: bytes) -> dict[str, Any]:
    """Returns the validated manifest in the bytes of `artefact.json`.

    Raises:
        ValueError: the bytes are not JSON, are of a foreign or newer format, were changed after
            the export, or hold something that no exporter writes.
    """
    try:
        manifest = json.loads(data.decode("ascii"))
    except ValueError as error:
        raise ValueError(
            f"{MANIFEST_FILE} is not JSON ({error}). The file is damaged: export the model again."
        ) from error
    validate(manifest)
    if seal(manifest) != data:  # a lost last newline, an editor's indentation
        raise ValueError(
            f"{MANIFEST_FILE} does not have the exporter's layout: it was cut off or edited. "
            "Copy the folder again, or export the model again."
        )
    return manifest


def validate(manifest: Any) -> None:
    """Raises `ValueError` at the first thing in `manifest` that no exporter writes."""
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(
            f"{MANIFEST_FILE} does not say format={FORMAT!r}. The folder is not an artefact of "
            "`keras_transformer.export.export_onnx`, or it is damaged."
        )
    if not _fits(manifest.get("format_version"), FORMAT_VERSION):
        raise ValueError(
            f"This artefact has format_version {shorten(manifest.get('format_version'))}, and "
            f"this release reads {FORMAT_VERSION}. Use the release that wrote it, or export again."
        )
    for name, form in FIELDS.items():
        _check(name in manifest, f"field {name!r} is missing")
        _check(_fits(manifest[name], form), f"{name} is {manifest[name]!r}")
    for name in sorted(set(manifest) - set(FIELDS)):
        _check(name in OPTIONAL, f"unknown field {name!r}")
        _check(_fits(manifest[name], OPTIONAL[name]), f"{name} is {manifest[name]!r}")
    found = checksum(manifest)
    _check(manifest["checksum"] == found, f"its checksum should be {found}")
    _check(manifest["inputs"] and manifest["outputs"], "it has no inputs or no outputs")
    files, has_onnx = manifest["files"], engine_of(manifest) == ONNX_RUNTIME
    for name in ("opsets", "ir_version"):
        _check((manifest[name] is not None) == has_onnx, f"{name} is {manifest[name]!r}")
    _check(has_onnx or "layout" not in manifest, "only ONNX files have a layout")
    for name in model_files(manifest):
        _check(name in files, f"files do not name {name}")
    for name, entry in files.items():
        _check(name in FILES, f"files name {name!r}")
        fits = _fits(entry, _FILE) and len(entry["sha256"]) == 64
        _check(fits, f"the entry of {name} is {entry!r}")
    if manifest["task"] in SEARCH_TASKS:
        names = [value["name"] for value in manifest["outputs"]]
        expected = [name for name in SEARCH_OUTPUTS if name in (TOKEN_IDS, SCORES, *names)]
        _check(names == expected, f"a search has outputs {names}")
        _check(manifest["search"] is not None, "a search without its configuration")
    _check_head(manifest)


def _fits(value: Any, form: Any) -> bool:
    """Returns whether a value has a form, as `FIELDS` describes it."""
    if isinstance(form, dict):
        same_keys = isinstance(value, dict) and set(value) == set(form)
        return same_keys and all(_fits(value[name], form[name]) for name in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_fits(item, form[0]) for item in value)
    if isinstance(form, tuple):
        return any(_fits(value, alternative) for alternative in form)
    if isinstance(form, range):
        return type(value) is int and value in form
    if isinstance(form, type):
        return isinstance(value, form) and (form is bool or not isinstance(value, bool))
    return type(value) is type(form) and value == form


def _check_head(manifest: dict[str, Any]) -> None:
    """Checks that the head's fields match the task, and the head's configuration."""
    task, fields = manifest["task"], {"head", "ignores_padding"} & set(manifest)
    if task not in {kind.task for kind in HEADS.values()}:
        _check(not fields, f"task {task!r} with the fields {sorted(fields)}")
        return
    _check(len(fields) == 2, f"task {task!r} with the fields {sorted(fields)}")
    head = manifest["head"]
    _check(HEADS[head["class_name"]].task == task, f"head is {head}")
    sizes = {value["name"]: (value["axes"] or [None])[-1] for value in manifest["outputs"]}
    parts: dict[str, Any] = {}
    try:
        parts = head_of(head).parts(sizes)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        _check(False, f"head is {head}: {error}")
    _check({*parts} == {*sizes}, f"outputs {sorted(sizes)} and heads {sorted(parts)}")
    for name, part in parts.items():
        labels, size = getattr(part, "labels", None), sizes[name]
        if labels is not None and isinstance(size, int):
            fits = fits_labels(labels, size)
            _check(fits, f"{len(labels)} labels and an output of {size} classes")


def _check(holds: Any, problem: str) -> None:
    if not holds:
        problem = problem if len(problem) <= 200 else f"{problem[:200]} ..."
        raise ValueError(
            f"{MANIFEST_FILE} is damaged or was edited by hand: {problem}. Export the model again."
        )
