"""Batches: rows of ids of similar length together, several batches at a time, faults kept apart.

The objects that serve artefacts share these functions. Shapes: `B` rows of a batch, `S` tokens of
its longest row.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from keras_transformer.special_ids import PAD_ID


def in_batches(answer, rows, batch_tokens, workers=1):
    """Answers rows of ids in batches, `workers` of them at the same time.

    Args:
        answer: function of a list of rows, which returns a list with a result for each. Several
            threads call it where `workers` is more than 1.
        rows: dict from any key to a row, a list of int.
        batch_tokens: int, see `batches`.
        workers: int.

    Returns:
        Dict from the same keys to results.
    """
    keys = list(batches(rows, batch_tokens))
    found = _answer_all(answer, [[rows[key] for key in batch] for batch in keys], workers)
    return dict(zip(itertools.chain(*keys), itertools.chain(*found), strict=True))


def _answer_all(answer, batches, workers):
    if min(workers, len(batches)) < 2:
        return map(answer, batches)
    with ThreadPoolExecutor(workers) as pool:
        # The longest rows first, so that no worker is left alone with them in the end.
        return list(pool.map(answer, reversed(batches)))[::-1]


def batches(rows, batch_tokens):
    """Yields lists of keys of `rows`, short rows first, such that a list fits a batch.

    Args:
        rows: dict from any key to a row, a list of int.
        batch_tokens: int, most tokens of a batch, padding included. A longer row is a batch of its
            own.
    """
    batch = []
    for key in sorted(rows, key=lambda key: len(rows[key])):
        longest = len(rows[key])  # rows come sorted
        if batch and (len(batch) + 1) * longest > batch_tokens:
            yield batch
            batch = []
        batch.append(key)
    if batch:
        yield batch


def run_rows(run, rows):
    """Outputs of a model for rows of ids: in one call, or where that fails in smaller ones.

    Args:
        run: function of ids (B, S), int32, padded on the right; returns arrays whose first axis is
            B.
        rows: list of lists of int.

    Returns:
        List with one item a row: a tuple of its part of the arrays, or the exception that `run`
        raises for this row alone.
    """
    ids = np.full((len(rows), max(map(len, rows))), PAD_ID, np.int32)  # (B, S)
    for padded, row in zip(ids, rows, strict=True):
        padded[: len(row)] = row
    try:
        arrays = run(ids)
    except Exception as error:  # onnxruntime's errors have no common base below Exception
        if len(rows) == 1:
            return [error]
        half = len(rows) // 2
        return run_rows(run, rows[:half]) + run_rows(run, rows[half:])
    return list(zip(*arrays, strict=True))
