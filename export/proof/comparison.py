"""Compares the results of exported files with Keras' results.

| precision | error of a number | divided by |
| --- | --- | --- |
| float32 | the largest difference | the largest of the number's size, the spread and 0.01 |
| others | the root mean square of the differences | the spread |

The spread of an output is its standard deviation. The spread of a score is the standard deviation
of the log-probabilities over the vocabulary, as a mean over its tokens. For the scores of the first
token of speech, it is the larger of the two. So an output that ignores the input has an error of 1
or more for every model.

Shapes: B sentences, W hypotheses, T tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.staging import ExportError
from keras_transformer.types import Array, Ids

Outputs: TypeAlias = Mapping[str, Array]

# The largest error allowed, by the precision of the weights. Rounding errors of eleven models
# stayed below; damaged weights gave 0.48 or more (docs, benchmarks).
TOLERANCES = {
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 0.15,
    "int16": 0.15,
    "int8": 0.15,
    "int16x8": 0.15,
    "weight_int8": 0.15,
    "weight_int4": 0.4,
    "copy": 0.25,  # a float32 copy of a model of reduced precision; another model gives 0.5 or more
    "text": 1e-6,  # strings around the same graph of ids
}
# A float32 result with a larger error is wrong, not rounded.
ROUNDING = 1e-2
# Two hypotheses whose scores differ by less may change places.
TIE = 1e-4
# Rounding of numbers around 1 may leave errors of TOLERANCES times this in smaller differences.
SMALL = 1e-2
# A number larger than this, and than TIMES the small numbers of its output, counts as a masking
# constant, such as -1e9. It is compared relative to its own size.
LARGE, TIMES = 1e3, 100


def compare_forward(
    expected: Sequence[Outputs], found: Sequence[Outputs], tolerance: float, exact: bool = True
) -> float:
    """Raises `ExportError` unless every output agrees; returns the largest error.

    Integers and booleans of a float32 export must be equal. Reduced precision may change the index
    of a maximum, so there `tolerance` limits the share that differs.

    Args:
        expected, found: dicts from output names to arrays, one for each case.
        tolerance: largest error allowed, see `TOLERANCES`.
        exact: whether the export is float32. Defaults to `True`.
    """
    worst = 0.0
    for name in expected[0]:
        for one, other in zip(expected, found, strict=True):
            _check_places(f"Output {name!r}", one[name], other[name])
        reference = np.concatenate([case[name].ravel() for case in expected])
        result = np.concatenate([case[name].ravel() for case in found])
        if reference.dtype.kind in "iub":
            worst = max(worst, _check_equal(name, reference, result, 0 if exact else tolerance))
            continue
        finite = np.isfinite(reference)
        if not reference.size:  # such as x[:, :0]; shape and dtype agree
            continue
        if not finite.any():
            raise ExportError(
                f"Output {name!r} has no finite number in any sample, so nothing can be compared. "
                "Pass `samples` for which the model gives finite numbers."
            )
        reference, result = (array[finite].astype(np.float64) for array in (reference, result))
        worst = max(worst, _error(reference, result, exact))
    _check_error("Parity of the outputs: they differ", worst, tolerance, exact)
    return worst


def _check_equal(name: str, reference: Array, result: Array, allowed: float) -> float:
    """Returns the share of differing integers or booleans; raises `ExportError` above `allowed`."""
    differs = reference != result
    share = float(differs.mean()) if differs.size else 0.0
    if share > allowed:
        first = int(np.argmax(differs))
        raise ExportError(
            f"Output {name!r} differs from Keras' {reference.dtype.name} values in "
            f"{differs.sum()} of {differs.size} places: the first is {result[first]}, Keras gives "
            f"{reference[first]}. Pass samples=[...] if the model cannot read the made-up inputs, "
            "or if nearly equal floats decide; otherwise report it with the model's operators."
        )
    return share


def _error(reference: Array, result: Array, exact: bool) -> float:
    """Returns the error of finite numbers; see the table of this module."""
    gaps, sizes = np.abs(result - reference), np.abs(reference)
    small = np.quantile(np.unique(sizes[sizes > 0]), 0.1, method="lower") if sizes.any() else 0.0
    usual = sizes <= max(LARGE, TIMES * small)
    spread = reference[usual].std() if usual.any() else 0.0
    if exact:
        return float((gaps / np.maximum(max(SMALL, spread), sizes)).max())
    # The spread of equal numbers is only rounding.
    spread = max(spread, 1e-3 * sizes[usual].max(initial=0.0)) or 1.0
    errors = [gaps[usual] / spread, gaps[~usual] / sizes[~usual]]
    return max(_root_mean_square(part) for part in errors if part.size)


def _root_mean_square(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array))))


def _check_places(what: str, reference: Array, result: Array) -> None:
    """Raises `ExportError` unless shapes, dtypes and the places of infinite numbers agree."""
    for part in ("shape", "dtype"):
        pair = getattr(result, part), getattr(reference, part)
        if pair[0] != pair[1]:
            raise ExportError(f"{what} has {part} {pair[0]}, Keras gives {pair[1]}.")
    check_no_nan(what, reference)
    infinite = np.where(np.isfinite(reference), 0, reference)
    if not np.array_equal(np.where(np.isfinite(result), 0, result), infinite):
        raise ExportError(f"{what} is not finite at other places than in Keras.")


def check_no_nan(what: str, reference: Array) -> None:
    """Raises `ExportError` if Keras itself gives NaN, which proves nothing."""
    if np.isnan(reference).any():
        raise ExportError(
            f"{what}: the Keras model itself gives NaN, so nothing can be proven. Look for weights "
            "that are not finite, or for numbers that are too large for the model's dtype."
        )


def _check_error(what: str, error: float, tolerance: float, exact: bool) -> None:
    """Raises `ExportError` for NaN and for an error beyond the tolerance."""
    if not error <= tolerance:
        if exact and not error <= max(ROUNDING, 10 * tolerance):
            advice = (
                "These numbers are wrong, not rounded. Pass samples=[...] if the model cannot read "
                "the made-up inputs; otherwise report it with the model's operators"
            )
        else:
            advice = "Pass a larger `tolerance` if that is good enough"
            advice += "" if exact else ", or keep more of the weights in float (`keep_float`)"
        raise ExportError(
            f"{what} from Keras' by {error:.2g} of their {'size' if exact else 'spread'}, "
            f"{tolerance:.2g} is allowed. {advice}."
        )


def compare_search(
    expected: Sequence[tuple[Ids, Array]],
    found: Sequence[Outputs],
    rescored: Sequence[tuple[Array, Array]],
    tolerance: float,
    exact: bool = True,
) -> float:
    """Raises `ExportError` unless a search agrees with Keras; returns the largest error.

    Args:
        expected: Keras' ids (B, W, T) and scores (B, W) for each case.
        found: outputs of the exported file for each case.
        rescored: for each case the scores (B, W) that Keras' forward pass gives to the ids of the
            exported file, and the spread of these scores (B, W).
        tolerance: largest error of a score, see `TOLERANCES`.
        exact: whether the export is float32. Then tokens must agree too, except for ties. Defaults
            to `True`.
    """
    for (ids, scores), outputs in zip(expected, found, strict=True):
        tokens, claimed = outputs[signature.TOKEN_IDS], outputs[signature.SCORES]
        if not tokens.shape[:2] == claimed.shape == scores.shape:
            raise ExportError(
                f"Shapes of the search: token_ids {tokens.shape} and scores {claimed.shape}, Keras "
                f"gives {ids.shape} and {scores.shape}."
            )
        held = slice(None) if exact else slice(1)  # rounding may leave fewer hypotheses
        _check_places("Scores of the search", scores[:, held], claimed[:, held])
    claimed = [outputs[signature.SCORES] for outputs in found]
    exists = [~np.isneginf(scores) for scores in claimed]
    pairs = [(a[e], s[e]) for (a, s), e in zip(rescored, exists, strict=True)]
    claimed = [scores[e] for scores, e in zip(claimed, exists, strict=True)]
    worst = compare_scores("the hypotheses' scores", pairs, claimed, tolerance, exact)
    if exact:
        for (ids, scores), outputs in zip(expected, found, strict=True):
            _compare_tokens(ids, scores, outputs[signature.TOKEN_IDS], outputs[signature.SCORES])
    return worst


def compare_scores(
    what: str,
    expected: Sequence[tuple[Array, Array]],
    found: Sequence[Array],
    tolerance: float,
    exact: bool = True,
) -> float:
    """Raises `ExportError` unless log-probabilities or their sums agree; returns the largest error.

    Log-probabilities near 0 carry the rounding of logits, which are larger. So numbers below 1 are
    compared by their difference.

    Args:
        what: name of the numbers, for the error.
        expected: for each case Keras' log-probabilities, and the spread of their logits.
        found: numbers of the exported file for each case.
        tolerance: largest error, see `TOLERANCES`.
        exact: whether the export is float32. Defaults to `True`.
    """
    errors = []
    for (again, spread), claimed in zip(expected, found, strict=True):
        size = np.maximum(1.0, np.abs(again))
        if not exact:
            size = np.maximum(spread, 1e-3 * size)
        _check_places(f"Parity of the scores: {what}", again.astype(claimed.dtype), claimed)
        errors.append(((claimed - again) / size).ravel())
    every = np.concatenate(errors)
    worst = float(np.abs(every).max()) if exact else _root_mean_square(every)
    _check_error(f"Parity of the scores: {what} differ", worst, tolerance, exact)
    return worst


def _compare_tokens(ids: Ids, scores: Array, tokens: Ids, claimed: Array) -> None:
    """Raises `ExportError` unless hypotheses (B, W, T) agree or are tied.

    Another order of summation may swap hypotheses of nearly equal scores, and then all later ones
    of the sentence may differ. So a sentence passes if all of its scores are Keras' scores.
    """
    length = max(ids.shape[2], tokens.shape[2])
    ids, tokens = (
        np.pad(array, [(0, 0), (0, 0), (0, length - array.shape[2])]) for array in (ids, tokens)
    )
    exists = np.isfinite(scores)  # the same places as in `claimed`
    reference = np.where(exists, scores, 0.0)
    gaps = np.abs(np.where(exists, claimed, 0.0) - reference)
    tied = (gaps <= TIE * np.maximum(1.0, np.abs(reference))).all(axis=1)
    for row, beam in np.argwhere(np.any(ids != tokens, axis=2) & ~tied[:, np.newaxis]):
        first = int(np.argmin(ids[row, beam] == tokens[row, beam]))
        raise ExportError(
            f"Parity of the tokens: sentence {row}, hypothesis {beam}, token {first} is "
            f"{tokens[row, beam, first]}, Keras has {ids[row, beam, first]}; scores differ by "
            f"{gaps[row].max():.2g}. Please report it; for ONNX try fuse=False meanwhile."
        )


def same_tokens(expected: Sequence[tuple[Ids, Array]], found: Sequence[Outputs]) -> list[int]:
    """Returns the number of lines whose best hypothesis has Keras' tokens, and of all lines."""
    theirs = best_rows([ids for ids, _ in expected])
    ours = best_rows([outputs[signature.TOKEN_IDS] for outputs in found])
    return [sum(map(list.__eq__, theirs, ours)), len(theirs)]


def best_rows(batches: Sequence[Ids]) -> list[list[int]]:
    """Returns the tokens of each sentence's best hypothesis, from batches of ids (B, W, T)."""
    return [row[row > 0].tolist() for ids in batches for row in ids[:, 0]]


def compare_texts(expected: Outputs, found: Outputs, tolerance: float) -> float:
    """Raises `ExportError` unless strings and scores (B, W) agree, except for tied hypotheses.

    Returns the largest error of a score.

    Args:
        expected: `texts` and `scores` of the tokenizer around the model.
        found: the same of the exported file.
        tolerance: largest difference of a score, relative to its size but at least to 1.
    """
    texts, others = expected[signature.TEXTS], found[signature.TEXTS]
    exists = np.isfinite(expected[signature.SCORES])
    scores = np.where(exists, expected[signature.SCORES], 0.0)
    gaps = np.abs(np.where(exists, found[signature.SCORES], 0.0) - scores)
    worst = float((gaps / np.maximum(1.0, np.abs(scores))).max(initial=0.0))
    differing = [
        (row, beam)
        for row, beam in np.argwhere(others != texts)
        if not _is_tied(expected[signature.SCORES][row], beam)
    ]
    if differing or not worst <= tolerance:
        row, beam = differing[0] if differing else (0, 0)
        raise ExportError(
            f"Strings of the written file: sentence {row}, hypothesis {beam} is "
            f"{str(others[row, beam])!r} and not {str(texts[row, beam])!r}, or scores differ by "
            f"{worst:.2g}, where {tolerance:.2g} is allowed. Export without the tokenizer and "
            "serve ids, and please report it."
        )
    return worst


def _is_tied(scores: Array, beam: int) -> bool:
    """Returns whether a hypothesis may have changed places with another one."""
    gaps = np.abs(np.delete(scores, beam) - scores[beam])
    return len(gaps) > 0 and bool(np.nanmin(gaps) <= TIE * max(1.0, abs(scores[beam])))


def check_copy(compare: Callable[[], float]) -> None:
    """Runs `compare` with the user's model; explains its `ExportError` by the float32 copy."""
    try:
        compare()
    except ExportError as error:
        raise ExportError(
            "The model has a reduced dtype policy, and the export is made from a copy in float32, "
            f"rebuilt from its configuration. The copy gives other results: {error} Put all state "
            "of layers into weights or get_config, or build the model under the float32 policy, "
            "load the weights, and export that."
        ) from error
