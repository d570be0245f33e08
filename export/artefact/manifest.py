"""`artefact.json`, the manifest of an ONNX artefact: what a server must know of the other files.

An artefact is a folder. The fields of its manifest are those of `FIELDS`:

| field | value |
| --- | --- |
| `format`, `format_version` | `FORMAT`, `FORMAT_VERSION` |
| `task` | one of `TASKS`: a search, a head, or "forward", one pass without a head |
| `inputs`, `outputs` | of the model: list of `{"name", "dtype", "axes"}`, axes names or sizes |
| `text` | `{"inputs", "outputs"}` of `text_model.onnx`, or null where there is none |
| `special_ids` | `SPECIAL_IDS` |
| `vocab_size` | `{"source", "target"}`, valid ids lie below; null where there are no ids |
| `limits` | see `LIMITS` |
| `search` | `{"class_name", "config"}`, or null for a forward pass |
| `head` | `{"class_name", "config"}`, one of `heads`; only where the task has one |
| `ignores_padding` | whether ids padded on the right give the same; only beside `head` |
| `precision` | one of `PRECISIONS` |
| `layout` | one of `LAYOUTS`, which says what the ONNX files are; "loop" where it is missing |
| `opsets`, `ir_version` | of the ONNX files: `{domain: version}`, `""` is ONNX itself; integer |
| `versions` | `{package: version}` that wrote the artefact |
| `proof` | comparison with Keras, see `PROOF`; earlier releases did not write it |
| `files` | `{name: {"sha256", "bytes"}}`, every file but the manifest itself |
| `checksum` | SHA-256 of the other fields (`seal`), so that no flipped bit in them goes unseen |

The checks are written by hand: a schema library would be one more package to install where models
are served, and could not check the seal.
"""

import hashlib
import json
import reprlib
from typing import Any

from keras_transformer.export.artefact.signature import (
    DTYPES,
    FILES,
    FORMAT,
    FORMAT_VERSION,
    LAYOUTS,
    MANIFEST_FILE,
    MODEL_FILES,
    PRECISIONS,
    SCORES,
    SEARCH_TASKS,
    SEGMENT_IDS,
    SPECIAL_IDS,
    TASKS,
    TOKEN_IDS,
)
from keras_transformer.export.artefact.task_heads import HEADS, fits_labels

# How long a sentence may be, in tokens. Only `source_length` is a number in every artefact.
LIMITS = {
    "source_length": "longest source that was meant to be served, S",
    "target_length": "most generated tokens, the end token included, whatever the source; or null",
    "extra_length": "most generated tokens beyond the source's; or null",
}

_DICT_OR_NULL = (dict, type(None))
FIELDS = {
    "format": str,
    "format_version": int,
    "task": str,
    "inputs": list,
    "outputs": list,
    "text": _DICT_OR_NULL,
    "special_ids": dict,
    "vocab_size": dict,
    "limits": dict,
    "search": _DICT_OR_NULL,
    "precision": str,
    "opsets": dict,
    "ir_version": int,
    "versions": dict,
    "files": dict,
    "checksum": str,
}
# Other tasks and earlier releases write artefacts without these fields.
HEAD_FIELDS = {"head": dict, "ignores_padding": bool}
# The comparison of the export with Keras. Earlier releases did not write this field.
PROOF_FIELD = "proof"
PROOF = {
    "date": str,  # year-month-day
    "cases": int,  # batches
    "lines": int,  # rows of all batches
    "largest_difference": float,
    "relative_to": str,  # "size": of each number (float32), or "spread": of an output's numbers
    "same_tokens": (list, type(None)),  # lines with Keras' best hypothesis, and all; of a search
}
# Artefacts of one file and artefacts of earlier releases do not have this field.
LAYOUT = "layout"

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100


def shown(value: Any) -> str:
    """The `repr` of a value, cut to about 100 characters, for an error message."""
    return _SHORT.repr(value)[:100]


def id_inputs(inputs):
    """Names of the inputs that are rows of ids, `segment_ids` apart.

    Args:
        inputs: list of entries, `inputs` of a manifest.
    """
    return [
        value["name"]
        for value in inputs
        if value["dtype"] in ("int32", "int64")
        and len(value["axes"]) == 2
        and value["name"] != SEGMENT_IDS
    ]


def digest(path):
    """`{"sha256": ..., "bytes": ...}` of a file, the entry of `files`. Read in pieces."""
    with open(path, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"sha256": sha256, "bytes": file.tell()}


def checksum(manifest):
    """SHA-256, in hexadecimal, of all fields but `checksum` itself, whatever their order."""
    rest = {name: value for name, value in manifest.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def seal(manifest):
    """`manifest` as the bytes of `artefact.json`, checksum added, after `validate`."""
    manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, **manifest}
    manifest["checksum"] = checksum(manifest)
    validate(manifest)
    return (json.dumps(manifest, indent=2, ensure_ascii=True) + "\n").encode("ascii")


def unseal(data):
    """The manifest that the bytes of `artefact.json` hold, validated.

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
            f"{MANIFEST_FILE} is not laid out as the exporter does it: it was cut off or edited. "
            "Copy the folder again, or export the model again."
        )
    return manifest


def validate(manifest):
    """Raises `ValueError` at the first thing in `manifest` that no exporter writes."""
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(
            f"{MANIFEST_FILE} does not say format={FORMAT!r}. The folder is not an artefact of "
            "`keras_transformer.export.export_onnx`, or it is damaged."
        )
    if manifest.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"This artefact has format_version {shown(manifest.get('format_version'))}, and "
            f"this release reads {FORMAT_VERSION}. Use the release that wrote it, or export again."
        )
    for name, kind in FIELDS.items():
        _check(name in manifest, f"field {name!r} is missing")
        _check(
            isinstance(manifest[name], kind) and not isinstance(manifest[name], bool),
            f"field {name!r} has the wrong type {type(manifest[name]).__name__}",
        )
    unknown = sorted(set(manifest) - set(FIELDS) - set(HEAD_FIELDS) - {LAYOUT, PROOF_FIELD})
    _check(not unknown, f"unknown fields {unknown}")
    found = checksum(manifest)
    _check(manifest["checksum"] == found, f"its checksum should be {found}")
    _check(manifest["task"] in TASKS, f"task is {manifest['task']!r}, not one of {TASKS}")
    _check(
        manifest["precision"] in PRECISIONS,
        f"precision is {manifest['precision']!r}, not one of {PRECISIONS}",
    )
    _check(
        manifest["special_ids"] == SPECIAL_IDS,
        f"special_ids are {manifest['special_ids']}, not {SPECIAL_IDS}",
    )
    _check_values(manifest["inputs"], "inputs")
    _check_values(manifest["outputs"], "outputs")
    if manifest["text"] is not None:
        _check_values(manifest["text"].get("inputs"), "text inputs")
        _check_values(manifest["text"].get("outputs"), "text outputs")
    _check_sizes(manifest)
    _check_proof(manifest.get(PROOF_FIELD, {}))
    layout = manifest.get(LAYOUT, "loop")
    _check(layout in LAYOUTS, f"layout is {layout!r}, not one of {LAYOUTS}")
    _check_files(manifest["files"], MODEL_FILES[layout])
    _check_head(manifest)
    if manifest["task"] in SEARCH_TASKS:
        names = [value["name"] for value in manifest["outputs"]]
        _check(names == [TOKEN_IDS, SCORES], f"a search has outputs {names}")
        _check(manifest["search"] is not None, "a search without its configuration")


def _check(holds, problem):
    if not holds:
        problem = problem if len(problem) <= 200 else f"{problem[:200]} ..."
        raise ValueError(
            f"{MANIFEST_FILE} is damaged or was edited by hand: {problem}. Export the model again."
        )


def _check_values(values, what):
    """Holds `inputs` or `outputs` to `[{"name": str, "dtype": str, "axes": [str or int]}]`."""
    _check(isinstance(values, list) and values, f"{what} must be a list that is not empty")
    for value in values:
        _check(
            isinstance(value, dict) and set(value) == {"name", "dtype", "axes"},
            f"{what} hold {value!r}",
        )
        _check(isinstance(value["name"], str), f"{what} name {value['name']!r}")
        _check(value["dtype"] in DTYPES, f"{what} have dtype {value['dtype']!r}")
        axes = value["axes"]
        _check(
            isinstance(axes, list)
            and all(isinstance(axis, str) or _is_count(axis) for axis in axes),
            f"{what} have axes {axes!r}",
        )


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _check_proof(proof):
    """Holds the proof, where there is one, to the types of `PROOF`."""
    _check(isinstance(proof, dict) and set(proof) in (set(), set(PROOF)), f"proof is {proof!r}")
    for name, value in proof.items():
        _check(isinstance(value, PROOF[name]), f"proof has {name} {value!r}")
    _check(all(map(_is_count, proof.get("same_tokens") or [])), f"proof is {proof!r}")


def _check_head(manifest):
    """Holds the fields of a head to the task, and the head to what its class takes."""
    head, there = manifest.get("head"), set(HEAD_FIELDS) & set(manifest)
    if manifest["task"] not in {kind.task for kind in HEADS.values()}:
        _check(not there, f"task {manifest['task']!r} with the fields {sorted(there)}")
        return
    for name, kind in HEAD_FIELDS.items():
        _check(isinstance(manifest.get(name), kind), f"{name} is {manifest.get(name)!r}")
    _check(set(head) == {"class_name", "config"}, f"head is {head}")
    _check(head["class_name"] in list(HEADS), f"head is {head}")  # it may be unhashable
    kind = HEADS[head["class_name"]]
    _check(kind.task == manifest["task"], f"head is {head}")
    try:
        labels = getattr(kind(**head["config"]), "labels", None)
    except (TypeError, ValueError) as error:
        _check(False, f"head is {head}: {error}")
    size = (manifest["outputs"][0]["axes"] or [None])[-1]
    if labels is not None and isinstance(size, int):
        _check(fits_labels(labels, size), f"{len(labels)} labels and an output of {size} classes")


def _check_sizes(manifest):
    sizes, limits = manifest["vocab_size"], manifest["limits"]
    _check(set(sizes) == {"source", "target"}, f"vocab_size is {sizes}")
    _check(set(limits) == set(LIMITS), f"limits are {limits}")
    for name, value in {**sizes, **limits}.items():
        _check(value is None or _is_count(value), f"{name} is {value!r}")
    _check(limits["source_length"] is not None, "limits have no source_length")


def _check_files(files, needed):
    for name in needed:
        _check(name in files, f"files do not name {name}")
    for name, entry in files.items():
        _check(name in FILES, f"files name {name!r}")
        _check(
            isinstance(entry, dict)
            and set(entry) == {"sha256", "bytes"}
            and _is_count(entry["bytes"])
            and isinstance(entry["sha256"], str)
            and len(entry["sha256"]) == 64,
            f"the entry of {name} is {entry!r}",
        )
