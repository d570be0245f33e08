"""Batches: rows of similar length together, several batches at a time, faults kept apart.

The objects that serve artefacts share these functions. Shapes: `B` rows of a batch, `S` tokens of
its longest row.
"""

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

from keras_transformer.padding import pad_rows

# The machine is at fault if different rows fail alone and alike: at least 3 rows, at most 5 run.
FEWEST_PROBES, PROBES = 3, 5


class MachineError(RuntimeError):
    """The model fails for different inputs alike: the machine is at fault, not the inputs."""


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
    """Returns the model's outputs for each row, and keeps the faults of rows apart.

    All rows run in one call. If it fails, because of one row or because of the size, the halves of
    the rows run, and so on. If the machine fails, such as a GPU that was removed, all calls fail.
    `run_rows` then runs a few different rows alone and raises an error if they fail alike.

    Args:
        run: function of what `stack` returns; returns arrays whose first axis is B.
        rows: list of rows.
        stack: function of a list of rows. Defaults to `pad_rows`, for lists of int: ids (B, S),
            int32, padded on the right.
        probed: bool, whether the few different rows ran alone before.

    Returns:
        List with one item a row: a tuple of its part of the arrays, or the exception that `run`
        raises for this row alone.

    Raises:
        MachineError: `FEWEST_PROBES` to `PROBES` different rows fail alone with the same error, and
            ONNX Runtime does not blame the input.
    """
    try:
        return list(zip(*run(stack(rows)), strict=True))
    except Exception as error:  # onnxruntime's errors have no common base below Exception
        if len(rows) == 1:
            return [error]
        if not probed and not _is_of_input(error):
            _check_machine(run, rows, stack)
    half = len(rows) // 2
    halves = rows[:half], rows[half:]
    return [item for some in halves for item in run_rows(run, some, stack, probed=True)]


def _is_of_input(error: Exception) -> bool:
    """Whether ONNX Runtime blames the input, such as an id outside of a table."""
    return type(error).__name__ == "InvalidArgument"


def _check_machine(run, rows, stack) -> None:
    """Raises `MachineError` if different rows, far from each other, fail alone and alike."""
    different = list({pickle.dumps(row): row for row in rows}.values())
    count = min(PROBES, len(different))
    if count < FEWEST_PROBES:
        return
    errors = []
    for place in range(count):
        row = different[place * (len(different) - 1) // (count - 1)]
        (item,) = run_rows(run, [row], stack)
        if not isinstance(item, Exception) or _is_of_input(item):
            return
        errors.append(item)
        if repr(item) != repr(errors[0]):
            return
    raise MachineError(f"{errors[0]} ({count} different inputs failed alike)") from errors[0]
