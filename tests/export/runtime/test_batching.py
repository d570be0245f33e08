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


def ids_of(rows):
    return np.array([row.inputs["ids"][0] for row in rows])


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("workers", [2, 8])
def test_equal_rows_are_divided_equally(count, workers):
    rows, seen = {key: Row({}, 7) for key in range(count)}, []
    in_batches(lambda part: seen.append(len(part)) or part, rows, 2048, workers, divides=True)
    assert max(seen) == -(-count // workers) and sum(seen) == count


def test_batches_hold_similar_rows_within_their_bound():
    assert list(batches(ROWS, 6)) == [["b", "d"], ["c", "f"], ["a"], ["e"]]
    assert list(batches(ROWS, 10_007)) == [["b", "d", "c", "f", "a", "e"]]
    assert list(batches({}, 6)) == []
    groups = {key: row._replace(group=((row.size % 2,),)) for key, row in ROWS.items()}
    assert list(batches(groups, 10_007)) == [["d"], ["b", "c", "f", "a", "e"]]


@pytest.mark.parametrize("workers", [1, 3])
def test_every_key_gets_the_answer_of_its_row(workers):
    found = in_batches(lambda rows: [row.size for row in rows], ROWS, 6, workers)
    assert found == SIZES
    assert in_batches(None, {}, 6, workers) == {}


@pytest.mark.parametrize("workers", [2, 3])
def test_each_worker_gets_an_equal_part_of_a_batch(workers):
    rows = {number: Row({}, 13) for number in range(31)}
    parts = list(batches(rows, part_tokens(rows, 2048, workers)))
    assert len(parts) == workers
    assert len(parts[0]) - len(parts[-1]) <= workers
    assert part_tokens(rows, 31, workers) <= 31 and part_tokens(rows, 2048, 64) <= LEAST_TOKENS
    assert part_tokens({}, 1, workers) == 1


def test_rows_are_padded_on_the_right_and_outputs_split():
    seen = []

    def run(rows):
        (ids,) = stack_rows(
            rows, [{"name": "ids", "dtype": "int64", "axes": ["batch", 3]}]
        ).values()
        seen.append(ids.tolist())
        assert ids.dtype == np.int64
        return ids.sum(axis=1), ids[:, 0]

    assert run_rows(run, [Row({"ids": [5, 6]}, 2), Row({"ids": [7]}, 1)]) == [(11, 5), (7, 7)]
    assert seen == [[[5, 6, 0], [7, 0, 0]]]


@pytest.mark.parametrize("bad", [[0], [11], [5, 6], [0, 1, 2, 3], [0, 22], list(range(1, 23))])
def test_neighbours_of_bad_rows_are_answered(bad):
    def run(rows):
        ids = ids_of(rows)
        if set(bad) & set(ids - 5):
            raise RuntimeError("the same for all")
        return (ids,)

    found = run_rows(run, rows_of(range(5, 5 + 23)))
    assert [place for place, item in enumerate(found) if isinstance(item, RuntimeError)] == bad
    assert all(found[i] == (5 + i,) for i in range(23) if i not in bad)


def test_a_batch_too_large_for_the_memory_is_run_in_parts():
    def run(rows):
        ids = ids_of(rows)
        if len(ids) > 7:
            raise MemoryError
        return (ids,)

    assert run_rows(run, rows_of(range(5, 5 + 101))) == [(5 + i,) for i in range(101)]


def test_equal_errors_of_different_rows_are_a_machine_error():
    runs = []

    def run(rows):
        ids = ids_of(rows)
        runs.append(len(ids))
        raise RuntimeError("the device is gone")

    with pytest.raises(MachineError, match="the device is gone"):
        run_rows(run, rows_of(range(5, 5 + 211)))
    assert runs == [211] + [1] * PROBES


class InvalidArgument(Exception):  # noqa: N818 - as ONNX Runtime names it
    pass


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (InvalidArgument, {3}, set(range(53)) - {3}),  # an error that inputs cause
        (RuntimeError, {3}, set(range(53)) - {3}),  # copies of one row
    ],
)
def test_good_rows_are_run_wherever_the_bad_ones_are(kind, good, bad):
    rows = rows_of(place if kind is InvalidArgument or place in good else 0 for place in range(53))

    def run(rows):
        ids = ids_of(rows)
        if set(ids) - good:
            raise kind("the same for all")
        return (ids,)

    found = run_rows(run, rows)
    assert [place for place, item in enumerate(found) if isinstance(item, kind)] == sorted(bad)
    assert all(found[place] == (place,) for place in good)


def test_a_failed_run_on_a_short_input_is_explained():
    words = "Non-zero status code ... Conv ... Invalid input shape: {1}"
    assert "shorter than the window of a convolution; pad it. Non-zero" in explained(
        RuntimeError(words)
    )
    assert explained(RuntimeError("no memory")) == "the model failed: no memory"
