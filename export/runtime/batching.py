"""Batches: rows of similar length together, several batches at a time, faults kept apart.

The objects that serve artefacts share these functions. Shapes: `B` rows of a batch, `S` tokens of
its longest row.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor

from keras_transformer.padding import pad_rows


def in_batches(answer, rows, batch_tokens, workers=1, **sizes):
    """Answers rows in batches, `workers` of them at the same time.

    Args:
        answer: function of a list of rows, which returns a list with a result for each. Several
            threads call it where `workers` is more than 1.
        rows: dict from any key to a row.
        batch_tokens, **sizes: see `batches`.
        workers: int.

    Returns:
        Dict from the same keys to results.
    """
    keys = list(batches(rows, batch_tokens, **sizes))
    found = _answer_all(answer, [[rows[key] for key in batch] for batch in keys], workers)
    return dict(zip(itertools.chain(*keys), itertools.chain(*found), strict=True))


def _answer_all(answer, batches, workers):
    if min(workers, len(batches)) < 2:
        return map(answer, batches)
    with ThreadPoolExecutor(workers) as pool:
        # The longest rows first, so that no worker is left alone with them in the end.
        return list(pool.map(answer, reversed(batches)))[::-1]


def batches(rows, batch_tokens, length=len, group=lambda row: ()):
    """Yields lists of keys of `rows`, short rows first, such that a list fits a batch.

    Args:
        rows: dict from any key to a row, such as a list of int.
        batch_tokens: int, most tokens of a batch, padding included. A longer row is a batch of its
            own.
        length: function of a row: how many tokens it has.
        group: function of a row: only rows of equal groups, which can be sorted, share a batch.
    """
    sizes = {key: (group(row), length(row)) for key, row in rows.items()}
    for _, keys in itertools.groupby(sorted(sizes, key=sizes.get), lambda key: sizes[key][0]):
        batch = []
        for key in keys:
            longest = sizes[key][1]  # rows come sorted
            if batch and (len(batch) + 1) * longest > batch_tokens:
                yield batch
                batch = []
            batch.append(key)
        yield batch


def run_rows(run, rows, stack=pad_rows, probed=False):
    """Outputs of a model for rows: in one call, or where that fails in smaller ones.

    A batch can fail because of one row, or because of its size. Its halves are then run, and so on.
    A batch can also fail because of the machine, such as a GPU that is gone. Three rows far from
    each other then fail alone and alike, and no others are run.

    Args:
        run: function of what `stack` returns; returns arrays whose first axis is B.
        rows: list of rows.
        stack: function of a list of rows. Defaults to `pad_rows`, for lists of int: ids (B, S),
            int32, padded on the right.
        probed: bool, whether three rows were run alone before.

    Returns:
        List with one item a row: a tuple of its part of the arrays, or the exception that `run`
        raises for this row alone, or for three others.
    """
    try:
        return list(zip(*run(stack(rows)), strict=True))
    except Exception as error:  # onnxruntime's errors have no common base below Exception
        if len(rows) == 1:
            return [error]
    half = len(rows) // 2
    if not probed and len(rows) > 3:
        probes = [run_rows(run, [rows[place]], stack)[0] for place in (0, half, -1)]
        if isinstance(probes[0], Exception) and len(set(map(repr, probes))) == 1:
            return probes[:1] * len(rows)
    halves = rows[:half], rows[half:]
    return [item for some in halves for item in run_rows(run, some, stack, probed=True)]
