"""An exported search beside its Keras model, on lines of the user's own.

    python -m keras_transformer.export.compare model.keras out/int8 lines.txt [references.txt]

The export proves itself on a few made-up sentences. This runs whole test sets.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer import search as searches
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import ArtefactError, read_artefact
from keras_transformer.export.staging import ExportError
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID, END_ID

BATCH_SIZE = 50
SEED = 17


class Comparison(NamedTuple):
    """Results of Keras and of the artefact for the same sentences.

    Attributes:
        sentences: int, number of lines.
        same_tokens: int, number of lines with the same best hypothesis, token for token.
        same_texts: int, number of equal strings from the text model; `None` without one.
        keras_seconds, onnx_seconds: float, for all batches, after a first run.
        text_seconds: float, the same for the text model; `None` without one.
        keras_scores, onnx_scores: dict with "BLEU" and "chrF"; `None` without references.
    """

    sentences: int
    same_tokens: int
    same_texts: int | None
    keras_seconds: float
    onnx_seconds: float
    text_seconds: float | None
    keras_scores: dict | None = None
    onnx_scores: dict | None = None

    def __str__(self):
        ratio = self.keras_seconds / self.onnx_seconds
        told = (
            f"{self.sentences} sentences: Keras {self.keras_seconds:.2f} s, ONNX Runtime without "
            f"TensorFlow {self.onnx_seconds:.2f} s ({ratio:.1f} times as fast); the same tokens "
            f"in {self.same_tokens} of {self.sentences}"
        )
        for name, score in (self.keras_scores or {}).items():
            told += f"\n{name}: Keras {score:.2f}, ONNX Runtime {self.onnx_scores[name]:.2f}"
        if self.same_texts is None:
            return told
        return (
            f"{told}\n{self.sentences} strings through the file with the tokenizer: "
            f"{self.text_seconds:.2f} s; the same text in {self.same_texts} of {self.sentences}"
        )


def compare_with_keras(
    model: keras.Model,
    folder: str | Path,
    lines: list[str],
    references: list[str] | None = None,
) -> Comparison:
    """Runs `lines` through Keras, and through the artefact in a process without any framework.

    Tokenizer and search are those of the artefact. Both sides get the same batches of lines of
    similar length. Float32 artefacts give Keras' tokens, but for sentences with two hypotheses of
    nearly equal scores; other precisions round. Keras searches without a shortlist or grammar.

    Args:
        model: the Keras model that was exported.
        folder: folder that `export_onnx` wrote, with a search and a tokenizer. A text model in it
            is run, too.
        lines: list of strings: sources, or prompts of a language model.
        references: list of strings, right answers, for BLEU and chrF. Defaults to `None`.

    Returns:
        `Comparison`; `str()` tells it in words.

    Raises:
        ValueError: there is no line, a line is too long, references are not as many, or the
            artefact has no search that reads text.
        ArtefactError: the folder is damaged or no artefact.
        ImportError: references need sacrebleu, which is not installed.
        ExportError: the other process failed.

    Example:

    >>> print(compare_with_keras(model, "out/int8", lines))  # doctest: +SKIP
    """
    artefact = read_artefact(folder)
    tokenizer, manifest = artefact.tokenizer, artefact.manifest
    _check(artefact, lines, references)
    scored = None if references is None else _scorer(references)
    search = getattr(searches, manifest["search"]["class_name"])(**manifest["search"]["config"])
    start, end = ([BEGIN_ID], []) if manifest["task"] == "generate" else ([], [END_ID])
    sources = [[*start, *ids, *end] for ids in tokenizer.encode(lines)]
    _check_lengths(sources, manifest["limits"]["source_length"])
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    batches = [
        pad_rows([sources[i] for i in order[begin : begin + BATCH_SIZE]])
        for begin in range(0, len(order), BATCH_SIZE)
    ]
    limits = manifest["limits"]
    options = {"max_length": None if limits["extra_length"] else limits["target_length"]}
    if isinstance(search, searches.Sampling):
        options["seed"] = SEED
    search(model, batches[0], **options)  # traces the search, which then takes any shape
    begun = time.perf_counter()
    found = [ops.convert_to_numpy(search(model, batch, **options).ids)[:, 0] for batch in batches]
    keras_seconds = time.perf_counter() - begun
    wanted = [row[row > 0].tolist() for ids in found for row in ids]  # ids (B, T)
    apart = _run_apart(folder, lines, batches)
    decode = artefact.target_tokenizer.decode
    texts = apart.get("texts")
    if texts is not None:
        texts = [texts[i] for i in order]
        texts = sum(map(str.__eq__, texts, decode(wanted)))
    return Comparison(
        len(lines),
        sum(map(list.__eq__, wanted, apart["token_ids"])),
        texts,
        keras_seconds,
        apart["seconds"],
        apart.get("text_seconds"),
        scored and scored(decode(wanted), order),
        scored and scored(decode(apart["token_ids"]), order),
    )


def _check(artefact, lines, references):
    names = [value["name"] for value in artefact.manifest["inputs"]]
    reads_ids = set(names) <= {signature.SOURCE_IDS, signature.SEED}
    if artefact.manifest["search"] is None or artefact.tokenizer is None or not reads_ids:
        raise ValueError(
            f"{artefact.folder} must hold a search that reads text, and its tokenizer, but has the "
            f"task {artefact.manifest['task']!r}, inputs {names} and "
            f"{'a' if artefact.tokenizer else 'no'} tokenizer. Export it with both."
        )
    if isinstance(lines, str) or not lines:
        raise ValueError(
            f"lines must be a list of at least one line, but {lines!r:.100} was passed."
        )
    if references is not None and len(references) != len(lines):
        raise ValueError(
            f"There are {len(lines)} lines and {len(references)} references. Pass one for each."
        )


def _check_lengths(sources, longest):
    for number, ids in enumerate(sources, 1):
        if len(ids) > longest:
            raise ValueError(
                f"Line {number} has {len(ids)} tokens, but the artefact takes at most {longest} "
                "(`max_source_length` of its export). Leave the line out."
            )


def _scorer(references):
    """A function from texts in some order to their BLEU and chrF."""
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise ImportError(
            "References need sacrebleu, which is not installed here. Install it with: pip install "
            "sacrebleu, or leave the references out.",
            name="sacrebleu",
        ) from error

    def scored(texts, order):
        right = [[references[i] for i in order]]
        return {
            "BLEU": BLEU().corpus_score(texts, right).score,
            "chrF": CHRF().corpus_score(texts, right).score,
        }

    return scored


def _run_apart(folder, lines, batches):
    """The report of `apart.py`."""
    script = Path(__file__).with_name("apart.py")
    with tempfile.TemporaryDirectory() as place:
        job = Path(place) / "job.npz"
        ids = {f"ids/{i}": batch for i, batch in enumerate(batches)}
        np.savez(job, folder=str(folder), lines=np.array(lines), seed=np.int32(SEED), **ids)
        command = [sys.executable, "-P", str(script), str(job)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ExportError(
            f"The process that ran {folder} died with status {done.returncode}: "
            f"{done.stderr[-2000:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export.compare",
        description="Compare an exported search with its Keras model: tokens, scores, seconds.",
    )
    parser.add_argument("model", help="what `model.save` wrote, MODEL.keras")
    parser.add_argument("folder", help="what `export_onnx` wrote, with search and tokenizer")
    parser.add_argument("lines", type=Path, help="text file of sources or prompts, one a line")
    parser.add_argument(
        "references", type=Path, nargs="?", help="right answers, one a line, for BLEU and chrF"
    )
    given = parser.parse_args(arguments)
    try:
        lines, references = (
            path and path.read_text("utf-8").removesuffix("\n").split("\n")
            for path in (given.lines, given.references)
        )
        model = keras.saving.load_model(given.model, compile=False)
        print(compare_with_keras(model, given.folder, lines, references))
    except (ArtefactError, ExportError, ImportError, OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
