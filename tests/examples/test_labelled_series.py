"""Labelled series, series with anomalies, and logged episodes."""

import types

import numpy as np
import pytest
from support.sets import anomalies, episodes, labelled_series
from support.sets.labelled_series import LabelledSeries, folds, made_gestures, standardise


def test_gestures_have_several_lengths():
    train, test = made_gestures()
    assert (len(train.series), len(test.series)) == (320, 120)
    assert {one.shape for one in train.series} == {(length, 2) for length in range(20, 61)}
    assert {*train.labels} == {*test.labels} == {"circle", "eight", "line", "square"}
    assert [len(some.labels) for some in made_gestures(3)] == [3, 3]
    rows = np.concatenate(train.series)
    np.testing.assert_allclose([rows.mean(axis=0), rows.std(axis=0)], [[0, 0], [1, 1]], atol=1e-5)


def test_sets_are_standardised_by_the_first():
    first = LabelledSeries([np.array([[1.0, 5], [3, 5]])], ["a"])
    other = LabelledSeries([np.array([[2.0, 5]])], ["b"])
    (train, test) = standardise(first, other)
    np.testing.assert_allclose(train.series[0], [[-1, 0], [1, 0]])
    np.testing.assert_allclose(test.series[0], [[0, 0]])
    assert test.labels == ["b"]


def test_folds_share_each_label_evenly():
    labels = ["a"] * 10 + ["b"] * 5
    found = folds(labels, 5)
    assert np.bincount(found[:10]).tolist() == [2] * 5
    assert np.bincount(found[10:]).tolist() == [1] * 5
    assert folds(labels, 5, seed=1).tolist() != found.tolist()


def test_the_error_names_the_package_that_is_missing(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="aeon")

    monkeypatch.setattr(labelled_series, "import_module", missing)
    with pytest.raises(ValueError, match="aeon is not installed.*pip install aeon"):
        labelled_series.read_uea("BasicMotions")


def test_made_waves_are_standardised_and_have_anomalies():
    sets = anomalies.made_anomalies()
    assert sets.train.shape == sets.test.series.shape == (3000, 2)
    moments = [sets.train.mean(axis=0), sets.train.std(axis=0)]
    np.testing.assert_allclose(moments, [[0, 0], [1, 1]], atol=1e-5)
    for watched in sets[1:]:
        starts = np.diff(watched.labels.astype(int)) == 1
        assert starts.sum() == 6 and 240 <= watched.labels.sum() <= 480


def test_sets_of_aeon_are_standardised_by_the_training_series(monkeypatch):
    train, test = (np.array([1.0, 3]), np.zeros(2)), (np.array([2.0, 5, 3]), np.array([0, 1, 0]))
    loaders = {
        "load_ecg_diff_count_3": lambda kind: (*test, *(train if kind[1] == "e" else test)),
        "load_kdd_tsad_135": lambda split="test": train if split == "train" else test,
    }
    monkeypatch.setattr(anomalies, "aeon_module", lambda _: types.SimpleNamespace(**loaders))
    for name in ("ecg", "bleeding"):
        sets = anomalies.read_anomalies(name)
        np.testing.assert_allclose(sets.train, [[-1], [1]])
        np.testing.assert_allclose(sets.test.series, [[0], [3], [1]])
        assert sets.test.labels.tolist() == [False, True, False]
        assert (sets.valid is None) == (name == "bleeding")
    del loaders["load_ecg_diff_count_3"]
    with pytest.raises(ValueError, match="does not ship the set.*load_ecg_diff_count_3"):
        anomalies.read_anomalies("ecg")


def test_windows_are_parts_of_episodes_with_the_remaining_return():
    rewards = np.float32([1, 2, 4, 8])
    one = episodes.Episode(np.float32([[3], [5], [7], [9]]), np.int32([0, 1, 1, 0]), rewards)
    inputs, labels = episodes.training_windows([one], 40, 3, actions=2)
    assert inputs.shape == (40, 3, 5) and {tuple(row) for row in labels} == {(0, 1, 1), (1, 1, 0)}
    (window,) = np.unique(inputs[labels[:, 0] == 1], axis=0)
    np.testing.assert_allclose(window[:, 0] * 500, [14, 12, 8], rtol=1e-6)
    np.testing.assert_array_equal(window[:, 2:], [[5, 1, 0], [7, 0, 1], [9, 0, 1]])
    short, labels = episodes.training_windows([one], 1, 6, actions=2, use_returns=False)
    assert labels[0].tolist() == [0, 1, 1, 0, -1, -1]
    assert not short[0, 4:].any() and not short[..., 0].any()


def test_logged_episodes_are_of_mixed_quality():
    pytest.importorskip("gymnasium")
    found = episodes.logged_episodes("CartPole-v1", 20)
    returns = [one.rewards.sum() for one in found]
    assert min(returns) < 60 and max(returns) > 200
    np.testing.assert_equal(episodes.logged_episodes("CartPole-v1", 1)[0], found[0])
    assert found[0].states.shape == (len(found[0].actions), 4) and {*found[0].actions} <= {0, 1}
    with pytest.raises(ValueError, match="none for 'Pong-v1'"):
        episodes.logged_episodes("Pong-v1", 1)
