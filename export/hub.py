"""Shares an artefact by name, with a model card that is written from its manifest."""

import itertools
import pathlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.hub import library
from keras_transformer.export.artefact.manifest import engine_of, id_inputs, model_files, seal
from keras_transformer.export.artefact.reader import Artefact, read_artefact
from keras_transformer.files import whole_file
from keras_transformer.startup import SOURCE, install
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import StrPath

CARD = "README.md"
# Task of the manifest -> tag of the hub, class of the runtime with its method, and a sentence.
TASKS = {
    "translate": (
        "translation",
        "Translator.translate",
        "Turns a text into another, such as its translation",
    ),
    "generate": ("text-generation", "Generator.generate", "Continues a text"),
    "transcribe": (
        "automatic-speech-recognition",
        "Transcriber.transcribe",
        "Writes the words of speech",
    ),
    "classify": ("text-classification", "Predictor.predict", "Finds the label of its input"),
    "tag": ("token-classification", "Predictor.predict", "Tags each word of a text"),
    "answer": ("question-answering", "Predictor.predict", "Finds the answer in a passage"),
    "embed": ("feature-extraction", "Predictor.predict", "Turns its input into a vector"),
    "heads": ("other", "Predictor.predict", "Gives several answers to one input"),
    "forward": ("other", "Predictor.predict", "Computes the outputs of one forward pass"),
}
TREE = SOURCE.removeprefix("git+") + "/tree/main"
ENGINES = {signature.ONNX_RUNTIME: "ONNX Runtime", signature.LITERT: "LiteRT"}


def describe(
    folder: StrPath, languages: Sequence[str] = (), scores: Mapping[str, float] | None = None
) -> None:
    """Writes languages and scores into the manifest of an artefact, for its model card.

    Args:
        folder: str or path, the folder that an exporter wrote.
        languages: codes of ISO 639, such as "en"; of a translator the source first. Defaults to
            none.
        scores: dict from the name of a measure and its data to a number. Defaults to `None`: none.

    Raises:
        ArtefactError: the folder is no artefact, or damaged.
        ValueError: a language is no string, or a score is no number.

    Example:

    >>> describe("out/onnx", ["en", "de"], {"BLEU on test_2016": 35.2})  # doctest: +SKIP
    """
    artefact = read_artefact(folder)
    about = {"languages": list(languages), "scores": dict(scores or {})}
    strings = all(isinstance(each, str) for each in languages)
    if not strings or not all(type(each) in (int, float) for each in about["scores"].values()):
        raise ValueError(
            f"languages must be strings, such as 'en', and scores numbers by name; got {about}."
        )
    sealed = seal({**artefact.manifest, "about": about})
    with whole_file(artefact.folder / signature.MANIFEST_FILE) as aside:
        aside.write_bytes(sealed)


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
    text = model_card(artefact, name)
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


def model_card(artefact: Artefact, name: str) -> str:
    """Writes the model card of an artefact; all figures come from its manifest.

    The card has a program in Python, and in JavaScript and C where they run this artefact.

    Args:
        artefact: the result of `read_artefact`.
        name: "user/name".
    """
    manifest = artefact.manifest
    tag, runner, sentence = TASKS[manifest["task"]]
    if runner.startswith("Predictor") and signature.TOKENIZER_FILE not in manifest["files"]:
        tag = "other"  # the other tags are for texts
    engine, about = engine_of(manifest), manifest.get("about", {"languages": [], "scores": {}})
    languages = ", ".join(about["languages"])
    facts = {"languages": languages, **about["scores"], **_facts(manifest)}
    parts = {
        "Python": _python(manifest, name),
        "JavaScript": _javascript(artefact, name),
        "C": _c(manifest, name),
        "Check it": "The manifest holds the checksums of all files"
        + (", and a small batch with its answers" if "example" in manifest else "")
        + ". This command compares them on your machine:\n\n"
        + _code("bash", f"python -m keras_transformer.export.verify {name}"),
        "Inputs and outputs": _table(
            ["name", "type", "axes"],
            [
                [f"`{value['name']}`", value["dtype"], ", ".join(map(str, value["axes"]))]
                for value in (*manifest["inputs"], *manifest["outputs"])
            ],
        )
        + "\nSpecial ids: "
        + ", ".join(f"{key} {id}" for key, id in manifest["special_ids"].items())
        + ".\n",
    }
    return "\n".join(
        [
            f"---\nlibrary_name: keras-transformer-onnx\npipeline_tag: {tag}",
            *([f"language: [{languages}]"] if languages else []),
            f"tags: [{engine}, {manifest['precision']}]\n---\n\n# {name}\n",
            f"{sentence}. The model runs in {ENGINES[engine]}, without TensorFlow.\n",
            _table(["", ""], [[key, value] for key, value in facts.items() if value]),
            *(f"## {title}\n\n{text}" for title, text in parts.items() if text),
        ]
    )


def _facts(manifest: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows of the card that every artefact has; an empty row is left out."""
    files, search = manifest["files"], manifest["search"] or {}
    config = search.get("config", {})
    sizes = manifest["vocab_size"]
    facts = {
        "files": ", ".join(f"{each} ({files[each]['bytes'] / 1e6:.3g} MB)" for each in files),
        "precision": manifest["precision"],
        "search": ", ".join(
            [
                search.get("class_name", ""),
                *(f"beam width {config[key]}" for key in ("beam_width",) if key in config),
                *(each["class_name"] for each in config.get("constraints", ())),
            ]
        ),
        "vocabulary": ", ".join(
            f"{sizes[side]} ids of the {side}" for side in sizes if sizes[side]
        ),
        "labels": ", ".join(manifest.get("head", {}).get("config", {}).get("labels") or ()),
    }
    unit = "tokens" if signature.TOKENIZER_FILE in files else "steps"
    if any(isinstance(size, str) for each in manifest["inputs"] for size in each["axes"][1:]):
        facts["longest input"] = f"{manifest['limits']['source_length']} {unit}"
    if proof := manifest.get("proof"):
        same, lines = proof["same_tokens"] or (None, None)
        if lines:
            facts["proof"] = f"{same} of {lines} outputs equal to Keras"
        facts["largest difference from Keras"] = (
            f"{proof['largest_difference']:.2g} of the {proof['relative_to']} of the numbers, "
            f"in {proof['lines']} lines on {proof['date']}"
        )
    return facts


def _python(manifest: dict[str, Any], name: str) -> str:
    """Returns a program of three lines, and the command that installs what it needs."""
    runner, method = TASKS[manifest["task"]][1].split(".")
    ids = id_inputs(manifest["inputs"]) if signature.TOKENIZER_FILE in manifest["files"] else []
    arrays = {
        value["name"]: f'np.ones({shape}, "{value["dtype"]}")'
        for value in manifest["inputs"]
        for shape in [tuple(size if isinstance(size, int) else 16 for size in value["axes"][1:])]
        if value["name"] not in (*ids, signature.SEED, signature.SEGMENT_IDS)
    }
    texts = ['"A text."', '"Another text."']
    pairs = any(value["name"] == signature.SEGMENT_IDS for value in manifest["inputs"])
    sample = f"({', '.join(texts)})" if pairs or len(ids) > 1 else texts[0]
    if arrays:
        given = dict(zip(ids, texts, strict=False)) | arrays
        sample = "{" + ", ".join(f'"{key}": {value}' for key, value in given.items()) + "}"
    call = f"print(model.{method}([{sample}])[0])"
    if (manifest["search"] or {}).get("class_name") == "SpeechSearch":
        arrays, call = {}, f'print(*(part.text for part in model.{method}("sound.wav")))'
    program = [
        *(["import numpy as np"] if arrays else []),
        f"from keras_transformer.export.runtime import {runner}",
        f'model = {runner}.from_hub("{name}")',
        call,
    ]
    extra = "serve-litert" if engine_of(manifest) == signature.LITERT else "serve"
    return _code("bash", install(f"{extra},hub")) + "\n" + _code("python", *program)


def _javascript(artefact: Artefact, name: str) -> str:
    """Returns a program of three lines, "" if the JavaScript package does not run the artefact."""
    manifest = artefact.manifest
    hears = (manifest["search"] or {}).get("class_name") == "SpeechSearch"
    speaks = [value["name"] for value in manifest["inputs"]] == [signature.SOURCE_IDS]
    speaks &= manifest["task"] == "translate" and isinstance(artefact.tokenizer, Tokenizer)
    has_text = signature.TOKENIZER_FILE in manifest["files"]
    is_large = signature.WEIGHTS_FILE in manifest["files"]
    if not (hears or speaks) or not has_text or is_large or not _is_one_file(manifest):
        return ""
    kind, call = "Translator", 'console.log(await model.translate(["A text."]));'
    told = f"The [package]({TREE}/docs/guides/browser.md) runs in browsers and in Node.js"
    if hears:
        told += ". `samples` are the numbers of one channel at 16 kHz, a `Float32Array`"
        kind = "Transcriber"
        call = "for await (const part of model.transcribe(samples)) console.log(part.text);"
    address = f"https://huggingface.co/{name}/resolve/main"
    return f"{told}:\n\n" + _code(
        "js",
        f'import {{ {kind} }} from "keras-transformer-onnx";',
        f'const model = await {kind}.load("{address}");',
        call,
    )


def _c(manifest: dict[str, Any], name: str) -> str:
    """Returns commands for `translate_ids.c`, "" if this program does not run the artefact."""
    example = manifest.get("example", {"inputs": {}})
    runs = manifest["task"] in ("translate", "generate")
    if not runs or [*example["inputs"]] != [signature.SOURCE_IDS] or not _is_one_file(manifest):
        return ""
    (ids, *_), ((written, *_), *_) = (
        example["inputs"][signature.SOURCE_IDS],
        example["outputs"][signature.TOKEN_IDS],
    )
    printed = itertools.takewhile(lambda id: id > signature.SPECIAL_IDS["end"], written)
    program = f"{TREE}/examples/languages/translate_ids.c"
    return (
        f"[`translate_ids.c`]({program}) takes ids and prints ids:\n\n"
        + _code(
            "bash",
            f"hf download {name} --local-dir model",
            "cc translate_ids.c -I INCLUDE -L LIB -l onnxruntime -o translate_ids",
            f"./translate_ids model/{signature.MODEL_FILE} {' '.join(str(id) for id in ids if id)}",
        )
        + f"\nIt prints {' '.join(map(str, printed))}.\n"
    )


def _is_one_file(manifest: dict[str, Any]) -> bool:
    """Returns whether the model is one file for ONNX Runtime."""
    return model_files(manifest) == (signature.MODEL_FILE,)


def _code(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```\n"])


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
