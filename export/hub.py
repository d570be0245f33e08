"""Shares an artefact by name, with a model card that is written from its manifest."""

import pathlib
import tempfile
from typing import Any

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.hub import library
from keras_transformer.export.artefact.manifest import engine_of
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.types import StrPath

CARD = "README.md"
# Task of the manifest -> tag of the hub, class of the runtime, its call, kind of its input.
TASKS = {
    "translate": ("translation", "Translator", 'translate(["..."])'),
    "generate": ("text-generation", "Generator", 'generate(["..."])'),
    "transcribe": ("automatic-speech-recognition", "Transcriber", 'transcribe("sound.wav")'),
}
OTHER = ("other", "Predictor", "predict([...])")


def push_to_hub(folder: StrPath, name: str, private: bool = False) -> str:
    """Uploads an artefact and its model card in one commit.

    Args:
        folder: str or path, the folder that an exporter wrote. All checksums are compared first.
        name: "user/name". The repository is created if it is missing.
        private: bool, whether a new repository is private. Defaults to `False`.

    Returns:
        The address of the commit.

    Raises:
        ArtefactError: the folder is no artefact, or damaged.
        ImportError: `huggingface_hub` is missing.

    Example:

    >>> push_to_hub("out/onnx", "user/english-german")  # doctest: +SKIP
    """
    hub = library()
    artefact = read_artefact(folder)
    text = model_card(artefact.manifest, name)
    names = [signature.MANIFEST_FILE, *artefact.manifest["files"]]
    with tempfile.TemporaryDirectory() as scratch:
        card = pathlib.Path(scratch, CARD)
        card.write_text(text, "utf-8")
        paths = {CARD: card} | {each: artefact.folder / each for each in names}
        api = hub.HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        operations = [hub.CommitOperationAdd(each, str(path)) for each, path in paths.items()]
        found = api.create_commit(name, operations, commit_message="Add the exported model")
    return str(found.commit_url)


def model_card(manifest: dict[str, Any], name: str) -> str:
    """Writes the model card of an artefact; all figures come from its manifest.

    Args:
        manifest: the content of `artefact.json`.
        name: "user/name".
    """
    tag, runner, call = TASKS.get(manifest["task"], OTHER)
    engine, files = engine_of(manifest), manifest["files"]
    size = sum(entry["bytes"] for entry in files.values()) / 1e6
    proof, search = manifest.get("proof"), manifest["search"]
    rows = {
        "task": manifest["task"],
        "engine": f"{engine}, precision {manifest['precision']}",
        "size": f"{size:.1f} MB in {len(files)} files",
        "ids of source and target": " and ".join(
            str(manifest["vocab_size"][side]) for side in ("source", "target")
        ),
        "longest source": manifest["limits"]["source_length"],
    }
    if search is not None:
        rows["search"] = search["class_name"]
        for constraint in search["config"]["constraints"]:
            rows["search"] += f", {constraint['class_name']}"
    if proof is not None:
        rows["largest difference from Keras"] = (
            f"{proof['largest_difference']:.2g} of the numbers' {proof['relative_to']}, "
            f"{proof['lines']} lines, {proof['date']}"
        )
        if proof["same_tokens"]:
            same, lines = proof["same_tokens"]
            rows["outputs equal to Keras"] = f"{same} of {lines}"
    inputs, outputs = (
        ", ".join(f"`{value['name']}` {value['dtype']} {value['axes']}" for value in manifest[side])
        for side in ("inputs", "outputs")
    )
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    return f"""---
library_name: keras-transformer-onnx
pipeline_tag: {tag}
tags: [{engine}, {manifest["precision"]}]
---

# {name}

| | |
| --- | --- |
{table}

## Python

```python
from keras_transformer.export.runtime import {runner}

print({runner}.from_hub("{name}").{call})
```

Check the files and their answers on your machine:

```bash
python -m keras_transformer.export.verify {name}
```

## Other languages

{", ".join(f"`{each}`" for each in sorted(files))} need no further code.

- Inputs: {inputs}
- Outputs: {outputs}
- Special ids: {manifest["special_ids"]}
"""
