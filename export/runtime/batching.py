"""Runs rows in batches of similar length, several at a time, and isolates faulty rows.

Shapes: `B` rows of a batch.
"""

import itertools
import pickle
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from keras_transformer.export.artefact.results import Row

# If several different rows, each run in a separate call, fail with the same error, the machine is
# at fault. 3 to 5 rows are tried.
FEWEST_PROBES, PROBES = 3, 5


class MachineError(RuntimeError):
    """The model fails in the same way for different inputs: the machine is at fault."""


# Tokens of a part of a batch, at least, where many workers divide it. Fewer cost more for each.
LEAST_TOKENS = 256


def in_batches(
    run: Callable[[list[Row]], list[Any]],
    rows: dict[Hashable, Row],
    tokens_per_batch: int,
    workers: int = 1,
    divides: bool = False,
) -> dict[Hashable, Any]:
    """Runs rows in batches, `workers` of them at the same time.

    Args:
        run: function of a list of rows, which returns a list with a result for each. If `workers`
            is more than 1, several threads call it.
        rows: dict from any key to a row.
        tokens_per_batch: int, see `batches`.
        workers: int.
        divides: whether each worker gets a part of each batch, and not a whole one. Defaults to
            `False`.

    Returns:
        Dict from the same keys to results.
    """
    most_rows = None
    if divides:
        most_rows = -(-len(rows) // workers)
        tokens_per_batch = part_tokens(rows, tokens_per_batch, workers)
    keys = list(batches(rows, tokens_per_batch, most_rows))
    lists = [[rows[key] for key in batch] for batch in keys]
    if min(workers, len(lists)) < 2:
        results = map(run, lists)
    else:
        with ThreadPoolExecutor(workers) as pool:
            # The longest rows come first, so that none of them runs alone at the end.
            results = reversed([*pool.map(run, reversed(lists))])
    return dict(zip(itertools.chain(*keys), itertools.chain(*results), strict=True))


def batches(
    rows: dict[Hashable, Row], tokens_per_batch: int, most_rows: int | None = None
) -> Iterator[list[Hashable]]:
    """Yields lists of keys of `rows`, short rows first. The rows of a list fit into a batch.

    Args:
        rows: dict from any key to a row. Only rows of equal groups share a batch.
        tokens_per_batch: int, maximum number of tokens of a batch, padding included. A longer row
            is a batch alone.
        most_rows: int, maximum number of rows of a batch. Defaults to `None`: no limit.
    """
    order = {key: (row.group, row.size) for key, row in rows.items()}
    batch, last = [], None
    for key in sorted(order, key=order.get):
        group, longest = order[key]  # rows come sorted
        is_full = (len(batch) + 1) * longest > tokens_per_batch or len(batch) == most_rows
        if batch and (group != last or is_full):
            yield batch
            batch = []
        batch.append(key)
        last = group
    if batch:
        yield batch


def part_tokens(rows: dict[Hashable, Row], tokens_per_batch: int, workers: int) -> int:
    """Returns the tokens of a batch for which each of some workers gets an equal part of the rows.

    All parts together are no larger than a batch of `tokens_per_batch`, but a part has at least
    `LEAST_TOKENS`.
    """
    sizes = [row.size for row in rows.values()]
    share = -(-sum(sizes) // workers) + max(sizes, default=0)  # padding takes tokens, too
    largest = max(LEAST_TOKENS, tokens_per_batch // workers)
    return max(1, min(largest, share, tokens_per_batch))


def run_rows(
    run: Callable[[list[Row]], Sequence[Any]], rows: list[Row], probed: bool = False
) -> list[Any]:
    """Returns the model's outputs for each row. A row that fails does not affect other rows.

    All rows run in one call. If it fails, because of a row or the batch size, each half of the rows
    runs in a separate call, and so on. If the machine fails, such as a removed GPU, all calls fail.
    So `run_rows` first runs a few different rows alone, and raises an error if they fail alike.

    Args:
        run: function of a list of rows; returns arrays whose first axis is B.
        rows: list of rows.
        probed: bool, whether the few different rows have already run alone.

    Returns:
        List with one item for each row: a tuple of its part of the arrays, or the exception that
        `run` raises for this row alone.

    Raises:
        MachineError: `FEWEST_PROBES` to `PROBES` different rows fail alone with the same error, and
            ONNX Runtime does not blame the input.
    """
    try:
        return list(zip(*run(rows), strict=True))
    except Exception as error:  # onnxruntime's errors have no common base below Exception
        if len(rows) == 1:
            return [error]
        if not probed and not _is_of_input(error):
            _check_machine(run, rows)
    half = len(rows) // 2
    return [*run_rows(run, rows[:half], probed=True), *run_rows(run, rows[half:], probed=True)]


def explained(error: Exception) -> str:
    """Returns the reason of a failed run. ONNX Runtime's words for a short input name no reason."""
    short = "Invalid input shape" in str(error)
    reason = "the input is shorter than the window of a convolution; pad it. " if short else ""
    return f"the model failed: {reason}{error}"


def _is_of_input(error: Exception) -> bool:
    """Returns whether ONNX Runtime blames the input, such as an id outside of a table."""
    return type(error).__name__ == "InvalidArgument"


def _check_machine(run: Callable[[list[Row]], Sequence[Any]], rows: list[Row]) -> None:
    """Raises `MachineError` if different rows fail alone with the same error."""
    different = list({pickle.dumps(row): row for row in rows}.values())
    count = min(PROBES, len(different))
    if count < FEWEST_PROBES:
        return
    errors = []
    for place in range(count):
        row = different[place * (len(different) - 1) // (count - 1)]
        (item,) = run_rows(run, [row])
        if not isinstance(item, Exception) or _is_of_input(item):
            return
        errors.append(item)
        if repr(item) != repr(errors[0]):
            return
    raise MachineError(f"{errors[0]} ({count} different inputs failed alike)") from errors[0]
