"""Holds an exported ONNX file to the Keras model it was made from.

The file runs in a process of its own (`probe.py`); the comparison happens here.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from keras_transformer.export import signature
from keras_transformer.export.staging import ExportError

# By how much a number may differ: of logits and scores, relative to their size but at least to 1.
# For float32 it covers other orders of summation; for the others it is what a mean over the
# tokens may reach before it counts as broken rather than rounded.
TOLERANCES = {
    "float32": 1e-4,
    "float16": 2e-2,
    "int8": 2e-1,
    "weight_int8": 1e-1,
    "weight_int4": 1.0,
}
# Two hypotheses whose scores differ by less may change places.
TIE = 1e-4
TIMEOUT = 1800  # seconds; a file that takes longer does not work in practice


def probe(path, cases, *, extensions=False, signatures=None):
    """Outputs for each of `cases` of what was written to `path`, from a process of its own.

    Args:
        path: an ONNX file, or the folder of a SavedModel.
        cases: list of dicts from input names to arrays.
        extensions: whether to load the operators of onnxruntime-extensions.
        signatures: the SavedModel's signature of each case. Defaults to `None`: an ONNX file.

    Returns:
        List of dicts from output names to arrays.

    Raises:
        ExportError: names the check that failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        files = []
        for i, case in enumerate(cases):
            files.append({key: str(folder / f"{i}.{key}.npz") for key in ("inputs", "outputs")})
            np.savez(files[-1]["inputs"], **case)
        job = {"model": str(path), "extensions": extensions, "cases": files}
        job["signatures"] = signatures
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        script = pathlib.Path(__file__).with_name("probe.py")
        command = [sys.executable, "-P", str(script), str(folder / "job.json")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise ExportError(
                f"The exported file did not finish {len(cases)} small runs within {TIMEOUT} s."
            ) from error
        if done.returncode:
            raise ExportError(
                f"The process that ran the exported file died with status {done.returncode}: "
                f"{done.stderr[-2000:]}"
            )
        report = json.loads(done.stdout.splitlines()[-1])
        if report:
            raise ExportError(
                f"The exported file failed at {report['check']}: {report['error']}. For ONNX try "
                "fuse=False or precision='float32'; if that works, please report it."
            )
        outputs = []
        for entry in files:
            with np.load(entry["outputs"]) as arrays:
                outputs.append(dict(arrays))
        return outputs


def compare_forward(expected, found, tolerance):
    """Raises `ExportError` unless every output agrees; returns the largest difference.

    Args:
        expected, found: dicts from output names to arrays.
        tolerance: largest difference allowed, relative to the reference's largest entry (or 1).
    """
    worst = 0.0
    for name, reference in expected.items():
        result = found[name]
        if result.shape != reference.shape:
            raise ExportError(
                f"Output {name!r} has shape {result.shape}, Keras gives {reference.shape}."
            )
        if not np.all(np.isfinite(result) == np.isfinite(reference)):
            raise ExportError(
                f"Output {name!r} holds numbers that are not finite; Keras' does not."
            )
        finite = np.isfinite(reference)
        size = max(1.0, float(np.abs(reference[finite]).max(initial=0.0)))
        difference = np.abs(
            result - reference.astype(np.float32), where=finite, out=np.zeros(reference.shape)
        )
        worst = max(worst, float(difference.max(initial=0.0)) / size)
    if not worst <= tolerance:
        raise ExportError(
            f"Parity of the outputs: they differ from Keras' by {worst:.2g} of their size, "
            f"{tolerance:.2g} is allowed. Pass a larger `tolerance` if that is good enough, or "
            "keep more of the graph in float (`keep_float`)."
        )
    return worst


def compare_search(expected, found, rescored, tolerance, exact):
    """Raises `ExportError` unless a search agrees with Keras'; returns the largest differences.

    Args:
        expected: pair of Keras' ids (B, W, T) and scores (B, W).
        found: the exported file's outputs.
        rescored: (B, W), the scores that Keras gives to the ids that were found.
        tolerance: largest relative difference of `rescored` from the scores found.
        exact: whether tokens must be the same too, ties apart.

    Returns:
        Largest relative difference of a score, and the share of sentences whose best hypothesis is
        Keras' own.
    """
    ids, scores = expected
    tokens, claimed = found[signature.TOKEN_IDS], found[signature.SCORES]
    if tokens.shape[:2] != ids.shape[:2] or claimed.shape != scores.shape:
        raise ExportError(
            f"Shapes of the search: token_ids {tokens.shape} and scores {claimed.shape}, Keras "
            f"gives {ids.shape} and {scores.shape}."
        )
    there = np.isfinite(claimed)
    if not np.array_equal(there, np.isfinite(scores)) and exact:
        raise ExportError("Scores of the search: other places are empty (-inf) than with Keras.")
    size = np.maximum(1.0, np.abs(rescored, where=there, out=np.ones_like(rescored)))
    gaps = np.abs(np.where(there, claimed - rescored, 0.0)) / size
    worst = float(np.max(gaps, initial=0.0))
    if not worst <= tolerance:
        raise ExportError(
            f"Parity of the scores: a hypothesis' score differs by {worst:.2g} of its size from "
            f"what Keras gives to the same tokens, {tolerance:.2g} is allowed. Pass a larger "
            "`tolerance` if that is good enough, or keep more of the graph in float (`keep_float`)."
        )
    length = max(ids.shape[2], tokens.shape[2])
    ids, tokens = _padded(ids, length), _padded(tokens, length)
    same = np.all(ids == tokens, axis=2)  # (B, W)
    for row, beam in np.argwhere(~same)[: 1 if exact else 0]:
        tied = np.abs(claimed[row] - scores[row]) <= TIE * np.maximum(1.0, np.abs(scores[row]))
        if not tied.all():
            first = int(np.argmin(ids[row, beam] == tokens[row, beam]))
            raise ExportError(
                f"Parity of the tokens: sentence {row}, hypothesis {beam}, token {first} is "
                f"{tokens[row, beam, first]}, Keras has {ids[row, beam, first]}; scores differ by "
                f"{np.nanmax(np.abs(claimed[row] - scores[row])):.2g}. Try fuse=False; if that "
                "works, please report it."
            )
    return worst, float(np.mean(same[:, 0]))


def _padded(ids, length):
    return np.pad(ids, [(0, 0), (0, 0), (0, length - ids.shape[2])])


def compare_texts(expected, found, tolerance):
    """Raises `ExportError` unless scores and strings (B, W) are the same, tied hypotheses apart."""
    rows = np.asarray(expected[signature.TEXTS])
    texts = np.array([[text.decode() for text in row] for row in rows])
    scores, others = np.asarray(expected[signature.SCORES]), found[signature.SCORES]
    there = np.isfinite(scores)
    gap = np.abs(np.where(there, scores - np.where(there, others, 0.0), 0.0))
    worst = float((gap / np.maximum(1.0, np.abs(np.where(there, scores, 0.0)))).max(initial=0.0))
    differing = [
        (row, beam)
        for row, beam in np.argwhere(found[signature.TEXTS] != texts)
        if not _is_tied(scores[row], beam)
    ]
    if differing or not worst <= tolerance:
        row, beam = differing[0] if differing else (0, 0)
        pair = (str(array[row, beam]) for array in (found[signature.TEXTS], texts))
        raise ExportError(
            "Strings from the written file: that of sentence {}, hypothesis {} is {!r} and not "
            "{!r}, or scores differ by {:.2g}, where {:.2g} is allowed. Export without the "
            "tokenizer and serve ids, and please report it.".format(
                row, beam, *pair, worst, tolerance
            )
        )


def _is_tied(scores, beam):
    """Whether a hypothesis may have changed places with another one."""
    gaps = np.abs(np.delete(scores, beam) - scores[beam])
    return len(gaps) > 0 and bool(np.nanmin(gaps) <= TIE * max(1.0, abs(scores[beam])))
