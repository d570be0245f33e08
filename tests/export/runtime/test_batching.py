"""Batches of rows with a function in the place of a model."""

import numpy as np
import pytest

from keras_transformer.export.runtime.batching import (
    PROBES,
    MachineError,
    batches,
    in_batches,
    run_rows,
)

ROWS = {"a": [5] * 7, "b": [6], "c": [7] * 3, "d": [8] * 2, "e": [9] * 23, "f": [4] * 3}


def test_batches_hold_similar_rows_within_their_bound():
    assert list(batches(ROWS, 6)) == [["b", "d"], ["c", "f"], ["a"], ["e"]]
    assert list(batches(ROWS, 10_007)) == [["b", "d", "c", "f", "a", "e"]]
    assert list(batches({}, 6)) == []


@pytest.mark.parametrize("workers", [1, 3])
def test_every_key_gets_the_answer_of_its_row(workers):
    found = in_batches(lambda rows: [sum(row) for row in rows], ROWS, 6, workers)
    assert found == {key: sum(row) for key, row in ROWS.items()}
    assert in_batches(None, {}, 6, workers) == {}


def test_rows_are_padded_on_the_right_and_outputs_taken_apart():
    seen = []

    def run(ids):
        seen.append(ids.tolist())
        return ids.sum(axis=1), ids[:, 0]

    assert run_rows(run, [[5, 6], [7]]) == [(11, 5), (7, 7)]
    assert seen == [[[5, 6], [7, 0]]]


def test_only_the_row_on_which_it_fails_gets_the_exception():
    def run(ids):
        assert ids.dtype == np.int32
        if (ids == 13).any():
            raise RuntimeError("13")
        return (ids[:, 0],)

    found = run_rows(run, [[5], [13], [7], [11], [13]])
    assert [str(item) if isinstance(item, RuntimeError) else item[0] for item in found] == [
        5,
        "13",
        7,
        11,
        "13",
    ]


@pytest.mark.parametrize("bad", [[0], [11], [5, 6], [0, 1, 2, 3], [0, 22], list(range(1, 23))])
def test_neighbours_of_bad_rows_are_answered(bad):
    def run(ids):
        if set(bad) & set(ids[:, 0] - 5):
            raise RuntimeError("the same for all")
        return (ids[:, 0],)

    found = run_rows(run, [[5 + i] for i in range(23)])
    assert [place for place, item in enumerate(found) if isinstance(item, RuntimeError)] == bad
    assert all(found[i] == (5 + i,) for i in range(23) if i not in bad)


def test_a_batch_too_large_for_the_memory_is_run_in_parts():
    def run(ids):
        if len(ids) > 7:
            raise MemoryError
        return (ids[:, 0],)

    assert run_rows(run, [[5 + i] for i in range(101)]) == [(5 + i,) for i in range(101)]


def test_where_different_rows_fail_alike_the_machine_is_at_fault_and_few_are_run():
    runs = []

    def run(ids):
        runs.append(len(ids))
        raise RuntimeError("the device is gone")

    with pytest.raises(MachineError, match="the device is gone"):
        run_rows(run, [[5 + i] for i in range(211)])
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
    rows = [[place if kind is InvalidArgument or place in good else 0] for place in range(53)]

    def run(ids):
        if set(ids[:, 0]) - good:
            raise kind("the same for all")
        return (ids[:, 0],)

    found = run_rows(run, rows)
    assert [place for place, item in enumerate(found) if isinstance(item, kind)] == sorted(bad)
    assert all(found[place] == (place,) for place in good)
