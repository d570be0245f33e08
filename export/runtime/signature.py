"""What an exported artefact is made of: names of inputs, outputs, axes, files; `artefact.json`.

Exporters write these names and servers read them. Plain Python, without a framework, so that a
server can import it.

An ONNX artefact is a folder. `artefact.json` (the manifest) says all that a server needs to know
about the other files; its fields are those of `FIELDS`:

| field | value |
| --- | --- |
| `format`, `format_version` | `FORMAT`, `FORMAT_VERSION` |
| `task` | one of `TASKS`: source to target, prompt to continuation, one forward pass |
| `inputs`, `outputs` | of `model.onnx`: list of `{"name", "dtype", "axes"}`, axes names or sizes |
| `text` | `{"inputs", "outputs"}` of `text_model.onnx`, or null where there is none |
| `special_ids` | `SPECIAL_IDS` |
| `vocab_size` | `{"source", "target"}`, valid ids lie below; null where there are no ids |
| `limits` | see `LIMITS` |
| `search` | `{"class_name", "config"}`, or null for a forward pass |
| `precision` | one of `PRECISIONS` |
| `opsets`, `ir_version` | of `model.onnx`: `{domain: version}`, `""` being ONNX itself; integer |
| `versions` | `{package: version}` that wrote the artefact |
| `files` | `{name: {"sha256", "bytes"}}`, every file but the manifest itself |
| `checksum` | SHA-256 of the other fields (`seal`), so that no flipped bit in them goes unseen |

Shapes: `B` batch, `S` source length, `W` beam width, `T` target length, `V` vocabulary. In an ONNX
artefact `B` and `S` are at least 1: its operators take no empty arrays. `Translator` and
SavedModels answer no texts with no translations.
"""

import hashlib
import json

SOURCE_IDS = "source_ids"  # (B, S) int32, input; right-padded with SPECIAL_IDS["pad"]
TARGET_IDS = "target_ids"  # (B, T) int32, second input where the forward pass itself is exported
SEED = "seed"  # () int32, second input where a search draws random numbers
TOKEN_IDS = "token_ids"  # (B, W, T) int32, output; best hypothesis first
SCORES = "scores"  # (B, W) float32, output
LOGITS = "logits"  # (B, T, V) float32, output where the forward pass itself is exported
TEXT = "text"  # (B,) string, input of the text model
TEXTS = "texts"  # (B, W) string, its output beside SCORES

# Names of the axes, in order. Axes of one name have one length within a call.
AXES = {
    SOURCE_IDS: ("batch", "source_length"),
    TARGET_IDS: ("batch", "target_length"),
    SEED: (),
    TOKEN_IDS: ("batch", "beam", "target_length"),
    SCORES: ("batch", "beam"),
    LOGITS: ("batch", "target_length", "vocabulary"),
    TEXT: ("batch",),
    TEXTS: ("batch", "beam"),
}
DTYPES = ("bool", "float16", "float32", "int32", "int64", "string")

SPECIAL_IDS = {"pad": 0, "unknown": 1, "begin": 2, "end": 3}

# What every server makes of odd text, be it `Translator`, a SavedModel or a text model. Input ends
# at its first NUL character, for that is where onnxruntime-extensions end it. If it then holds
# white space alone (`str.isspace`), or nothing that the tokenizer knows, it is blank and has one
# empty hypothesis of score 0. Output has U+FFFD for bytes that spell no character, and for NUL.
BLANK = (  # a regular expression of RE2 for white space
    r"[\t-\r\x1c- \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]*"
)
REPLACEMENT = "\ufffd"

# Files of an ONNX artefact's folder.
MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"  # external data, only beside models past 2 GB
TEXT_MODEL_FILE = "text_model.onnx"  # strings in and out, only where asked for
TOKENIZER_FILE = "tokenizer.model"
MANIFEST_FILE = "artefact.json"
FILES = (MODEL_FILE, WEIGHTS_FILE, TEXT_MODEL_FILE, TOKENIZER_FILE)

# Signatures of a SavedModel.
TRANSLATE = "translate"  # strings in; n-best strings and scores out
SEARCH = "search"  # ids in and out
FORWARD = "logits"  # teacher forcing

FORMAT = "keras-transformer-onnx"
FORMAT_VERSION = 1
TASKS = ("translate", "generate", "forward")
# float16 is meant for GPUs; the others run on CPUs. "int8": weights and, at run time, activations;
# "weight_int8" and "weight_int4": in blocks, each with a scale of its own.
PRECISIONS = ("float32", "float16", "int8", "weight_int8", "weight_int4")
# How long a sentence may be, in tokens. Only `source_length` is a number in every artefact.
LIMITS = {
    "source_length": "longest source that was meant to be served, S",
    "target_length": "most generated tokens, the end mark included, whatever the source; or null",
    "extra_length": "most generated tokens beyond the source's; or null",
}

_TEXT_OR_NULL = (dict, type(None))
FIELDS = {
    "format": str,
    "format_version": int,
    "task": str,
    "inputs": list,
    "outputs": list,
    "text": _TEXT_OR_NULL,
    "special_ids": dict,
    "vocab_size": dict,
    "limits": dict,
    "search": _TEXT_OR_NULL,
    "precision": str,
    "opsets": dict,
    "ir_version": int,
    "versions": dict,
    "files": dict,
    "checksum": str,
}


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
            f"This artefact has format_version {manifest.get('format_version')!r}, and this "
            f"release reads {FORMAT_VERSION}. Use the release that wrote it, or export again."
        )
    for name, kind in FIELDS.items():
        _check(name in manifest, f"field {name!r} is missing")
        _check(
            isinstance(manifest[name], kind) and not isinstance(manifest[name], bool),
            f"field {name!r} has the wrong type {type(manifest[name]).__name__}",
        )
    unknown = sorted(set(manifest) - set(FIELDS))
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
    _check_files(manifest["files"])
    if manifest["task"] != "forward":
        names = [value["name"] for value in manifest["outputs"]]
        _check(names == [TOKEN_IDS, SCORES], f"a search has outputs {names}")
        _check(manifest["search"] is not None, "a search without its configuration")


def _check(holds, problem):
    if not holds:
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
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_sizes(manifest):
    sizes, limits = manifest["vocab_size"], manifest["limits"]
    _check(set(sizes) == {"source", "target"}, f"vocab_size is {sizes}")
    _check(set(limits) == set(LIMITS), f"limits are {limits}")
    for name, value in {**sizes, **limits}.items():
        _check(value is None or _is_count(value), f"{name} is {value!r}")
    _check(limits["source_length"] is not None, "limits have no source_length")


def _check_files(files):
    _check(MODEL_FILE in files, f"files do not name {MODEL_FILE}")
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
