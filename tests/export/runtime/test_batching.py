"""Batches of rows, run by a function instead of a model."""

import numpy as np
import pytest

from keras_transformer.export.artefact.results import Row
from keras_transformer.export.runtime.batching import (
    LEAST_TOKENS,
    PROBES,
    MachineError,
    batches,
    explained,
    in_batches,
    part_tokens,
    run_rows,
)
from keras_transformer.export.runtime.input_readers import stack_rows

SIZES = {"a": 7, "b": 1, "c": 3, "d": 2, "e": 23, "f": 3}
ROWS = {key: Row({}, size) for key, size in SIZES.items()}


def rows_of(ids):
    """Returns rows of one id each."""
    return [Row({"ids": [token]}, 1) for token in ids]


def refusing(reason):
    """Returns a model that returns its ids, or raises what `reason` returns for them."""

    def run(rows):
        ids = np.array([row.inputs["ids"][0] for row in rows])
        if (error := reason(ids)) is not None:
            raise error
        return (ids,)

    return run


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("workers", [2, 8])
def test_equal_rows_are_divided_equally(count, workers):
    rows, seen = {key: Row({}, 7) for key in range(count)}, []
    in_batches(lambda part: seen.append(len(part)) or part, rows, 2048, workers, divides=True)
    assert max(seen) == -(-count // workers) and sum(seen) == count


GROUPS = {key: row._replace(group=((row.size % 2,),)) for key, row in ROWS.items()}


@pytest.mark.parametrize(
    ("rows", "tokens", "expected"),
    [
        (ROWS, 6, [["b", "d"], ["c", "f"], ["a"], ["e"]]),
        (ROWS, 10_007, [["b", "d", "c", "f", "a", "e"]]),
        ({}, 6, []),
        (GROUPS, 10_007, [["d"], ["b", "c", "f", "a", "e"]]),
    ],
)
def test_batches_hold_similar_rows_within_their_bound(rows, tokens, expected):
    assert list(batches(rows, tokens)) == expected


@pytest.mark.parametrize("workers", [1, 3])
def test_every_key_gets_the_answer_of_its_row(workers):
    found = in_batches(lambda rows: [row.size for row in rows], ROWS, 6, workers)
    assert found == SIZES and in_batches(None, {}, 6, workers) == {}


@pytest.mark.parametrize("workers", [2, 3])
def test_each_worker_gets_an_equal_part_of_a_batch(workers):
    rows = {number: Row({}, 13) for number in range(31)}
    first, *_, last = parts = list(batches(rows, part_tokens(rows, 2048, workers)))
    assert len(parts) == workers and len(first) - len(last) <= workers
    assert part_tokens(rows, 31, workers) <= 31 and part_tokens(rows, 2048, 64) <= LEAST_TOKENS
    assert part_tokens({}, 1, workers) == 1


def test_rows_are_padded_on_the_right():
    rows = [Row({"ids": [5, 6]}, 2), Row({"ids": [7]}, 1)]
    found = stack_rows(rows, [{"name": "ids", "dtype": "int64", "axes": ["batch", 3]}])["ids"]
    assert (found.tolist(), found.dtype) == ([[5, 6, 0], [7, 0, 0]], np.int64)


@pytest.mark.parametrize("bad", [[0], [11], [5, 6], [0, 1, 2, 3], [0, 22], list(range(1, 23))])
def test_neighbours_of_bad_rows_are_answered(bad):
    error = RuntimeError("the same for all")
    found = run_rows(
        refusing(lambda ids: error if set(ids) & set(bad) else None), rows_of(range(23))
    )
    assert found == [error if place in bad else (place,) for place in range(23)]


def test_a_batch_too_large_for_the_memory_is_run_in_parts():
    run = refusing(lambda ids: MemoryError() if len(ids) > 7 else None)
    assert run_rows(run, rows_of(range(101))) == [(i,) for i in range(101)]


def test_equal_errors_of_different_rows_are_a_machine_error():
    runs = []

    def run(rows):
        runs.append(len(rows))
        raise RuntimeError("the device is gone")

    with pytest.raises(MachineError, match="the device is gone"):
        run_rows(run, rows_of(range(211)))
    assert runs == [211] + [1] * PROBES


class InvalidArgument(Exception):  # noqa: N818 - as ONNX Runtime names it
    pass


@pytest.mark.parametrize(
    ("error", "ids"),
    [
        (InvalidArgument("the same for all"), range(53)),  # an error that inputs cause
        (RuntimeError("the same for all"), [0, 0, 0, 3, *[0] * 49]),  # copies of one row
    ],
)
def test_a_good_row_is_run_wherever_the_bad_ones_are(error, ids):
    found = run_rows(refusing(lambda ids: error if set(ids) - {3} else None), rows_of(ids))
    assert found == [(3,) if place == 3 else error for place in range(53)]


def test_a_failed_run_on_a_short_input_is_explained():
    words = "Non-zero status code ... Conv ... Invalid input shape: {1}"
    reason = "shorter than the window of a convolution; pad it. Non-zero"
    assert reason in explained(RuntimeError(words))
    assert explained(RuntimeError("no memory")) == "the model failed: no memory"
