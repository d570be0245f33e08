"""Holds an exported ONNX file to the Keras model it was made from.

The file runs in a process of its own (`probe.py`); the comparison happens here.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.staging import ExportError

# By how much numbers may differ from Keras'. For float32 the largest difference, relative to the
# number's size but at least to 1, and for an output to its spread: other orders of summation. For
# the others the root mean square of the differences, relative to the spread of the numbers: of an
# output, its standard deviation; of a hypothesis' score, that of log-probabilities over the
# vocabulary, as a mean over its tokens. So an output that knows nothing of the input is off by 1 or
# more, whatever the model.
#
# Rounding stayed below these on eleven models, and the least that damaged weights gave is 0.48
# (docs, benchmarks).
TOLERANCES = {
    "float32": 1e-4,
    "float16": 1e-2,
    "int8": 0.15,
    "weight_int8": 0.15,
    "weight_int4": 0.4,
}
# A float32 result that is off by more is wrong, and not rounded.
ROUNDING = 1e-2
# Two hypotheses whose scores differ by less may change places.
TIE = 1e-4
# A number of an output that is larger than this and than so many times the small ones is taken for
# a constant that hides something, such as -1e9. It has a scale of its own.
LARGE, TIMES = 1e3, 100
TIMEOUT = 1800  # seconds; a file that takes longer does not work in practice


def probe(path, cases, *, step=None, extensions=False, signatures=None):
    """Outputs for each of `cases` of what was written to `path`, from a process of its own.

    Args:
        path: an ONNX file, or the folder of a SavedModel.
        cases: list of dicts from input names to arrays.
        step: the second file of a search in two files. Defaults to `None`: there is one.
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
        models = [str(item) for item in (path, step) if item is not None]
        job = {"models": models, "extensions": extensions, "cases": files}
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


def compare_forward(expected, found, tolerance, exact=True):
    """Raises `ExportError` unless every output agrees; returns the largest error.

    Integers and booleans must be equal, whatever the tolerance. Reduced precision may choose
    others, as where they are the index of a maximum: then `tolerance` limits the share that differ.

    Args:
        expected, found: lists of dicts from output names to arrays, one for each case.
        tolerance: largest error allowed, as `TOLERANCES` explains it.
        exact: whether the artefact is float32.
    """
    worst = 0.0
    for name in expected[0]:
        pairs = [(case[name], other[name]) for case, other in zip(expected, found, strict=True)]
        for reference, result in pairs:
            _check_places(f"Output {name!r}", reference, result)
        reference, result = (
            np.concatenate([array.ravel() for array in arrays])
            for arrays in zip(*pairs, strict=True)
        )
        if reference.dtype.kind in "iub":
            worst = max(worst, _check_equal(name, reference, result, 0 if exact else tolerance))
            continue
        reference, result = reference.astype(np.float64), result.astype(np.float64)
        finite = np.isfinite(reference)
        if not finite.any():
            raise ExportError(
                f"Output {name!r} has no finite number in any sample, so nothing can be compared. "
                "Pass `samples` that the model has an answer to."
            )
        error = _error(reference[finite], result[finite], exact)
        worst = max(worst, error)
    _check_error("Parity of the outputs: they differ", worst, tolerance, exact)
    return worst


def _check_equal(name, reference, result, allowed):
    """The share of integers or booleans that differ; raises `ExportError` above `allowed`."""
    differs = reference != result
    share = float(differs.mean()) if differs.size else 0.0
    if share > allowed:
        first = int(np.argmax(differs))
        raise ExportError(
            f"Output {name!r} has other {reference.dtype.name} values than Keras' in "
            f"{differs.sum()} of {differs.size} places: the first is {result[first]}, Keras gives "
            f"{reference[first]}. If the made-up inputs are none that the model reads, or nearly "
            "equal floats decide, pass samples=[...]; else report it with the model's operators."
        )
    return share


def _error(reference, result, exact):
    """How far the numbers of an output are from Keras', as `TOLERANCES` explains it."""
    gaps, sizes = np.abs(result - reference), np.abs(reference)
    small = np.quantile(np.unique(sizes[sizes > 0]), 0.1, method="lower") if sizes.any() else 0.0
    usual = sizes <= max(LARGE, TIMES * small)
    spread = reference[usual].std() if usual.any() else 0.0
    if exact:
        return float((gaps / np.maximum(np.maximum(1.0, spread), sizes)).max())
    # Where all numbers are the same there is no spread but rounding.
    spread = max(spread, 1e-3 * sizes[usual].max(initial=0.0)) or 1.0
    errors = [gaps[usual] / spread, gaps[~usual] / sizes[~usual]]
    return float(max(_root_mean_square(part) for part in errors if part.size))


def _check_places(what, reference, result):
    """Raises `ExportError` unless shapes are the same, and infinite numbers at the same places."""
    for part in ("shape", "dtype"):
        pair = getattr(result, part), getattr(reference, part)
        if pair[0] != pair[1]:
            raise ExportError(f"{what} has {part} {pair[0]}, Keras gives {pair[1]}.")
    check_known(what, reference)
    endless = np.where(np.isfinite(reference), 0, reference)
    if not np.array_equal(np.where(np.isfinite(result), 0, result), endless):
        raise ExportError(f"{what} is not finite at other places than Keras'.")


def check_known(what, reference):
    """Raises `ExportError` where Keras' own numbers are NaN, which prove nothing."""
    if np.isnan(reference).any():
        raise ExportError(
            f"{what}: the Keras model itself gives NaN, so nothing can be proven. Look for weights "
            "that are not finite, or for numbers that are too large for the model's dtype."
        )


def _check_error(what, error, tolerance, exact):
    """Raises `ExportError` for an error beyond the tolerance; NaN is beyond any."""
    if not error <= tolerance:
        if exact and not error <= max(ROUNDING, 10 * tolerance):
            advice = (
                "These numbers are wrong, not rounded. If the made-up inputs are none that the "
                "model reads, pass samples=[...]; else report it with the model's operators"
            )
        else:
            advice = "Pass a larger `tolerance` if that is good enough"
            advice += "" if exact else ", or keep more of the weights in float (`keep_float`)"
        raise ExportError(
            f"{what} from Keras' by {error:.2g} of their {'size' if exact else 'spread'}, "
            f"{tolerance:.2g} is allowed. {advice}."
        )


def _root_mean_square(array):
    return np.sqrt(np.mean(np.square(array)))


def compare_search(expected, found, rescored, tolerance, exact=True):
    """Raises `ExportError` unless a search agrees with Keras'; returns the largest error.

    Args:
        expected: list of pairs of Keras' ids (B, W, T) and scores (B, W), one for each case.
        found: list of the exported file's outputs.
        rescored: list of pairs, each (B, W): scores that Keras gives to the ids that were found,
            and the spread that they are held against.
        tolerance: largest error of a score, as `TOLERANCES` explains it.
        exact: whether it is that of float32, and tokens must be the same too, ties apart.
    """
    errors = []
    for (ids, scores), outputs, (again, spread) in zip(expected, found, rescored, strict=True):
        tokens, claimed = outputs[signature.TOKEN_IDS], outputs[signature.SCORES]
        if not tokens.shape[:2] == claimed.shape == scores.shape:
            raise ExportError(
                f"Shapes of the search: token_ids {tokens.shape} and scores {claimed.shape}, Keras "
                f"gives {ids.shape} and {scores.shape}."
            )
        held = slice(None) if exact else slice(1)  # rounding may leave a sentence with less of them
        _check_places("Scores of the search", scores[:, held], claimed[:, held])
        there = ~np.isneginf(claimed)
        size = np.maximum(1.0, np.abs(again))
        if not exact:
            size = np.maximum(spread, 1e-3 * size)
        errors.append((claimed[there] - again[there]) / size[there])
    errors = np.concatenate(errors)
    worst = float(np.abs(errors).max() if exact else _root_mean_square(errors))
    what = "Parity of the scores: those of hypotheses differ"
    _check_error(what, worst, tolerance, exact)
    if exact:
        for (ids, scores), outputs in zip(expected, found, strict=True):
            _compare_tokens(ids, scores, outputs[signature.TOKEN_IDS], outputs[signature.SCORES])
    return worst


def _compare_tokens(ids, scores, tokens, claimed):
    """Raises `ExportError` unless hypotheses (B, W, T) are the same, or tied with one another.

    Two programs that add in another order may put hypotheses of nearly the same score in another
    order, and then all later ones of the sentence may differ too. So a sentence passes where all of
    its scores are Keras' scores.
    """
    length = max(ids.shape[2], tokens.shape[2])
    ids, tokens = _padded(ids, length), _padded(tokens, length)
    there = np.isfinite(scores)  # both, as was checked
    gaps = np.abs(np.where(there, claimed, 0.0) - np.where(there, scores, 0.0))
    tied = gaps <= TIE * np.maximum(1.0, np.where(there, np.abs(scores), 0.0))
    for row, beam in np.argwhere(np.any(ids != tokens, axis=2)):
        if not tied[row].all():
            first = int(np.argmin(ids[row, beam] == tokens[row, beam]))
            raise ExportError(
                f"Parity of the tokens: sentence {row}, hypothesis {beam}, token {first} is "
                f"{tokens[row, beam, first]}, Keras has {ids[row, beam, first]}; scores differ by "
                f"{gaps[row].max():.2g}. Please report it; for ONNX try fuse=False meanwhile."
            )


def _padded(ids, length):
    return np.pad(ids, [(0, 0), (0, 0), (0, length - ids.shape[2])])


def compare_texts(expected, found, tolerance):
    """Raises `ExportError` unless scores and strings (B, W) are the same, tied hypotheses apart.

    Args:
        expected: dict with `texts` as bytes and `scores`, from the tokenizer around the model.
        found: the same from the written file, texts as `str`.
        tolerance: largest difference of a score, relative to its size but at least to 1.
    """
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
