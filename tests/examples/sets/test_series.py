"""Time series: windows of past and future, and no window reaches into what comes later."""

import gzip

import numpy as np
import pytest
from support.sets import series
from support.sets.series import electricity_transformer, made_series, split, windows

ROWS = np.arange(60.0).reshape(20, 3) ** 2


def test_windows_are_all_pairs_of_past_and_future():
    rows = np.arange(22).reshape(11, 2)
    before, after = windows(rows, past=5, future=3)
    assert before.shape == (4, 5, 2) and after.shape == (4, 3, 2)
    for start in range(4):
        np.testing.assert_array_equal(before[start], rows[start : start + 5])
        np.testing.assert_array_equal(after[start], rows[start + 5 : start + 8])


@pytest.mark.parametrize("past, future", [(9, 3), (0, 3), (3, 0)])
def test_windows_that_do_not_fit_are_refused(past, future):
    with pytest.raises(ValueError, match="hold no window"):
        windows(np.zeros((11, 2)), past, future)


def test_parts_follow_each_other_and_are_standardised_by_the_first():
    sets = split(ROWS, (10, 4, 5), "abc")
    expected = (ROWS - ROWS[:10].mean(axis=0)) / ROWS[:10].std(axis=0)
    whole = np.concatenate(sets[:3])
    np.testing.assert_allclose(whole, expected[:19], rtol=1e-5)
    assert [len(part) for part in sets[:3]] == [10, 4, 5] and sets.names == ("a", "b", "c")
    assert whole.dtype == np.float32


def test_a_series_that_never_changes_stays_finite():
    assert not split(np.ones((9, 1)), (3, 3, 3), ["a"]).train.any()


def test_forecasts_lie_in_their_own_part_and_the_past_may_lie_before():
    sets = split(ROWS, (10, 4, 5), "abc")
    parts = sets.windows(past=6, future=2)
    assert {name: len(part[0]) for name, part in parts.items()} == {
        "train": 10 - 6 - 2 + 1,
        "valid": 4 - 2 + 1,
        "test": 5 - 2 + 1,
    }
    whole = np.concatenate(sets[:3])
    np.testing.assert_array_equal(parts["valid"][0][0], whole[4:10])
    np.testing.assert_array_equal(parts["valid"][1][-1], whole[12:14])
    np.testing.assert_array_equal(parts["test"][1][0], whole[14:16])
    np.testing.assert_array_equal(parts["test"][1][-1], whole[17:19])
    some = sets.windows(6, 2, limit=1)
    np.testing.assert_array_equal(some["test"][0], parts["test"][0][:1])


def test_the_past_may_be_longer_than_a_part():
    sets = split(ROWS, (10, 4, 5), "abc")
    before, after = sets.windows(past=8, future=2)["test"]
    whole = np.concatenate(sets[:3])
    np.testing.assert_array_equal(before[0], whole[6:14])
    np.testing.assert_array_equal(after[0], whole[14:16])


def test_too_few_rows_are_refused():
    with pytest.raises(ValueError, match="21 rows are needed, but there are 20"):
        split(ROWS, (10, 6, 5), "abc")


@pytest.mark.parametrize("name", ["ETTh1.csv", "ETTh1.csv.gz"])
def test_a_table_is_read_and_split(tmp_path, monkeypatch, name):
    monkeypatch.setattr(series, "ETT_ROWS", (10, 4, 5))
    lines = ["date,HUFL,HULL,OT"]
    lines += [f"2016-07-01 {hour}:00,{a},{b},{c}" for hour, (a, b, c) in enumerate(ROWS)]
    text = "\n".join([*lines, ""]).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    sets = electricity_transformer(tmp_path)
    assert sets.names == ("HUFL", "HULL", "OT")
    for found, expected in zip(sets[:3], split(ROWS, (10, 4, 5), "abc")[:3], strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "has no table"),
        ("date\n1\n", "has no table"),
        ("date,a\n1,2\n1,2,3\n", "line 3: 3 columns, but 2 names"),
        ("date,a\n1,two\n", "could not convert"),
        ("date,a\n1,nan\n", "not finite"),
    ],
)
def test_what_is_no_table_is_told(tmp_path, text, problem):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=problem):
        series.read_table(tmp_path / "a.csv")


def test_made_series_repeat_themselves_daily_and_are_the_same_in_every_call():
    sets = made_series()
    np.testing.assert_array_equal(sets.train, made_series().train)
    rows = np.concatenate(sets[:3])
    assert len(rows) == 24 * 150 and len(sets.valid) == len(sets.test) == 24 * 30
    day = np.square(rows[24:] - rows[:-24]).mean()
    half = np.square(rows[12:] - rows[:-12]).mean()
    assert day < half / 3
