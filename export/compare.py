"""Compares an exported search with its Keras model, on your own lines.

    python -m keras_transformer.export.compare model.keras out/int8 lines.txt [references.txt]

The proof of an export runs a few made-up sentences. This command runs whole test sets.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_transformer import search as searches
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import engine_of
from keras_transformer.export.artefact.options import default_inputs
from keras_transformer.export.artefact.reader import ArtefactError, read_artefact
from keras_transformer.export.exporter import Rule, check_rules
from keras_transformer.export.litert_model import OPENER
from keras_transformer.export.proof import run_exported
from keras_transformer.export.proof.comparison import best_rows
from keras_transformer.export.staging import ExportError
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID, END_ID, UNKNOWN_ID
from keras_transformer.text.corpora import read_lines
from keras_transformer.text.lines import text_of
from keras_transformer.text.vocabularies import check_tokenizers
from keras_transformer.text.words import bleu_tokens
from keras_transformer.types import StrPath

BATCH_SIZE = 50
SEED = 17

RULES = (
    Rule(
        ValueError,
        lambda a: (
            a.artefact.manifest["search"] is None
            or a.artefact.tokenizer is None
            or not set(a.names) <= {signature.SOURCE_IDS, signature.SEED}
        ),
        lambda a: (
            f"{a.artefact.folder} must hold a search that reads text, and its tokenizer, but has "
            f"the task {a.artefact.manifest['task']!r}, inputs {a.names} and "
            f"{'a' if a.artefact.tokenizer else 'no'} tokenizer. Export it with both."
        ),
    ),
    Rule(
        ValueError,
        lambda a: isinstance(a.lines, str) or not a.lines,
        lambda a: f"lines must be a list of at least one line, but {a.lines!r:.100} was passed.",
    ),
    Rule(
        ValueError,
        lambda a: a.references is not None and len(a.references) != len(a.lines),
        lambda a: (
            f"There are {len(a.lines)} lines and {len(a.references)} references. Pass one for each."
        ),
    ),
)

Scores: TypeAlias = dict[str, float]


class Comparison(NamedTuple):
    """Results of Keras and of the artefact for the same sentences.

    Attributes:
        sentences: int, number of lines.
        same_tokens: int, number of lines with the same best hypothesis, token for token.
        same_texts: int, number of equal strings from the text model; `None` without one.
        keras_seconds, onnx_seconds: float, time of all batches after a warm-up.
        text_seconds: float, the same for the text model; `None` without one.
        keras_scores, onnx_scores: dict with "BLEU" and "chrF"; `None` without references. It has
            "BLEU of characters" for references in which no line has four words or most have no
            spaces between words: BLEU of words would be 0.
    """

    sentences: int
    same_tokens: int
    same_texts: int | None
    keras_seconds: float
    onnx_seconds: float
    text_seconds: float | None
    keras_scores: Scores | None = None
    onnx_scores: Scores | None = None

    def __str__(self) -> str:
        ratio = self.keras_seconds / self.onnx_seconds
        lines = [
            f"{self.sentences} sentences: Keras {self.keras_seconds:.2f} s, ONNX Runtime without "
            f"TensorFlow {self.onnx_seconds:.2f} s ({ratio:.1f} times as fast); the same tokens "
            f"in {self.same_tokens} of {self.sentences}"
        ]
        for name, score in (self.keras_scores or {}).items():
            lines.append(f"{name}: Keras {score:.2f}, ONNX Runtime {self.onnx_scores[name]:.2f}")
        if self.same_texts is not None:
            lines.append(
                f"{self.sentences} strings through the file with the tokenizer: "
                f"{self.text_seconds:.2f} s; the same text in {self.same_texts} of {self.sentences}"
            )
        return "\n".join(lines)


def compare_with_keras(
    model: keras.Model,
    folder: StrPath,
    lines: Sequence[str],
    references: Sequence[str] | None = None,
) -> Comparison:
    """Runs `lines` through Keras, and through the artefact in a process without any framework.

    The tokenizer and the search come from the artefact. Both sides get the same batches of lines of
    similar length. Float32 artefacts give Keras' tokens, except for sentences with two hypotheses
    of nearly equal scores; other precisions round. Keras searches without a shortlist. Constraints
    must be serializable by `keras.saving`, like all of this package.

    Args:
        model: the Keras model that was exported.
        folder: result of `export_onnx` or `export_litert`, with a search and a tokenizer. Its text
            model also runs.
        lines: sources, or prompts of a language model. As in the runtime, a line ends at a NUL
            character.
        references: reference translations, for BLEU and chrF. Defaults to `None`.

    Returns:
        `Comparison`; `str()` formats it.

    Raises:
        ValueError: `lines` is empty, a line is too long, the number of references differs, the
            artefact has no search that reads text, or the model was trained with another tokenizer.
        ArtefactError: the folder is damaged or not an artefact.
        ImportError: references need sacrebleu, which is not installed.
        ExportError: the other process failed.

    Example:

    >>> print(compare_with_keras(model, "out/int8", lines))  # doctest: +SKIP
    """
    artefact = read_artefact(folder)
    manifest = artefact.manifest
    names = [value["name"] for value in manifest["inputs"]]
    given = {"artefact": artefact, "names": names, "lines": lines, "references": references}
    check_rules(RULES, SimpleNamespace(**given))
    check_tokenizers(model, {"source": artefact.tokenizer, "target": artefact.target_tokenizer})
    lines = [text_of(line) for line in lines]
    scored = None if references is None else _scorer(references)
    search = getattr(searches, manifest["search"]["class_name"])
    search = search.from_config(manifest["search"]["config"])
    start, end = ([BEGIN_ID], []) if manifest["task"] == "generate" else ([], [END_ID])
    sources = [[*start, *ids, *end] for ids in artefact.tokenizer.encode(lines)]
    limits = manifest["limits"]
    _check_lengths(sources, limits["source_length"])
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    batches = [
        pad_rows([sources[i] for i in order[begin : begin + BATCH_SIZE]])
        for begin in range(0, len(order), BATCH_SIZE)
    ]
    options = {"max_length": None if limits["extra_length"] else limits["target_length"]}
    seed = {}
    if isinstance(search, searches.Sampling):
        options["seed"] = SEED
        seed[signature.SEED] = np.int32(SEED)
    search(model, batches[0], **options)  # traces the search for all shapes
    begun = time.perf_counter()
    expected = [ops.convert_to_numpy(search(model, batch, **options).ids) for batch in batches]
    keras_seconds = time.perf_counter() - begun
    cases = [{signature.SOURCE_IDS: batch, **seed} for batch in batches]
    opener = ""
    if engine_of(manifest) == signature.LITERT:
        opener, defaults = OPENER, default_inputs(manifest)
        cases = [{**defaults, **case} for case in cases]
    found = run_exported(artefact.model_paths, cases, opener=opener, timed=True)
    tokenizer = artefact.target_tokenizer

    def served(rows: list[list[int]]) -> list[str]:
        """Returns the texts that an artefact serves: unknown ids, nothing for blank lines."""
        known = [[i if i < tokenizer.vocab_size else UNKNOWN_ID for i in row] for row in rows]
        texts = zip(order, tokenizer.decode(known), strict=True)
        return [
            text.replace("\0", signature.REPLACEMENT) if lines[i].strip() else ""
            for i, text in texts
        ]

    wanted = best_rows(expected)
    given = best_rows([outputs[signature.TOKEN_IDS] for outputs in found.outputs])
    same_texts = text_seconds = None
    if manifest["text"] is not None:
        path = artefact.folder / signature.TEXT_MODEL_FILE
        case = {signature.TEXT: np.array(lines), **seed}
        (outputs,), text_seconds = run_exported([path], [case], extensions=True, timed=True)
        texts = outputs[signature.TEXTS][order, 0].tolist()
        same_texts = sum(map(str.__eq__, texts, served(wanted)))
    return Comparison(
        len(lines),
        sum(map(list.__eq__, wanted, given)),
        same_texts,
        keras_seconds,
        found.seconds,
        text_seconds,
        scored and scored(served(wanted), order),
        scored and scored(served(given), order),
    )


def _check_lengths(sources: Sequence[list[int]], longest: int) -> None:
    for number, ids in enumerate(sources, 1):
        if len(ids) > longest:
            raise ValueError(
                f"Line {number} has {len(ids)} tokens, but the artefact takes at most {longest} "
                "(`max_source_length` of its export). Leave the line out."
            )


def _scorer(references: Sequence[str]) -> Callable[[Sequence[str], Sequence[int]], Scores]:
    """Returns a function that computes BLEU and chrF of texts in some order."""
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise ImportError(
            "References need sacrebleu, which is not installed here. Install it with: pip install "
            "sacrebleu, or leave the references out.",
            name="sacrebleu",
        ) from error

    tokens = bleu_tokens(references)
    name = "BLEU of characters" if tokens == "char" else "BLEU"

    def scored(texts: Sequence[str], order: Sequence[int]) -> Scores:
        right = [[references[i] for i in order]]
        return {
            name: BLEU(tokenize=tokens).corpus_score(texts, right).score,
            "chrF": CHRF().corpus_score(texts, right).score,
        }

    return scored


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export.compare",
        description="Compare an exported search with its Keras model: tokens, scores, seconds.",
    )
    parser.add_argument("model", help="result of `model.save`, MODEL.keras")
    parser.add_argument("folder", help="result of `export_onnx`, with search and tokenizer")
    parser.add_argument(
        "lines", type=Path, help="text file, plain or gzip, of sources or prompts, one per line"
    )
    parser.add_argument(
        "references", type=Path, nargs="?", help="references, one per line, for BLEU and chrF"
    )
    given = parser.parse_args(arguments)
    try:
        lines, references = (path and read_lines(path) for path in (given.lines, given.references))
        model = keras.saving.load_model(given.model, compile=False)
        print(compare_with_keras(model, given.folder, lines, references))
    except (ArtefactError, ExportError, ImportError, OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
