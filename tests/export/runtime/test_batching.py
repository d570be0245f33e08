"""Batches of rows with a function in the place of a model."""

import numpy as np
import pytest

from keras_transformer.export.runtime.batching import batches, in_batches, run_rows

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


def test_where_all_rows_fail_alike_few_are_run():
    runs = []

    def run(ids):
        runs.append(len(ids))
        raise RuntimeError("the device is gone")

    found = run_rows(run, [[5]] * 211)
    assert len(found) == 211 and {str(item) for item in found} == {"the device is gone"}
    assert len(runs) == 4
