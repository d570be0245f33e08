"""Labelled series, logged episodes, and the plot of attention over a series."""

import numpy as np
import pytest
from support.plots import plot_series_attention
from support.sets import episodes, labelled_series
from support.sets.labelled_series import LabelledSeries, folds, made_gestures, standardise


def test_gestures_have_several_lengths_and_are_the_same_in_every_call():
    train, test = made_gestures()
    assert (len(train.series), len(test.series)) == (320, 120)
    assert {len(one) for one in train.series} == set(range(20, 61))
    assert {one.shape[1] for one in test.series} == {2} and test.series[0].dtype == np.float32
    assert {*train.labels} == {*test.labels} == {"circle", "eight", "line", "square"}
    np.testing.assert_array_equal(made_gestures()[1].series[2], test.series[2])
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


def test_the_step_of_the_largest_weight_is_darkest():
    series = [np.arange(6.0).reshape(3, 2), np.ones((2, 1))]
    figure = plot_series_attention(series, [[0.1, 0.4, 0.2], [0, 0]], ["a -> b", "c -> c"])
    first, second = figure.axes
    assert [panel.get_title() for panel in (first, second)] == ["a -> b", "c -> c"]
    np.testing.assert_array_equal([line.get_ydata() for line in first.lines], series[0].T)
    np.testing.assert_allclose(first.images[0].get_array(), [[0.25, 1, 0.5]])
    assert not np.asarray(second.images[0].get_array()).any()
    for weights, labels in (([[1], [1, 1]], ["a", "b"]), ([[1] * 3, [1] * 2], [])):
        with pytest.raises(ValueError, match="a weight for each step"):
            plot_series_attention(series, weights, labels)


def test_a_policy_reads_remaining_return_time_state_and_last_action():
    rows = episodes.step_features(np.array([[7.0], [8], [9]]), [1, 0], [500, 400, 250], 2)
    expected = [[1, 0, 7, 0, 0], [0.8, 0.002, 8, 0, 1], [0.5, 0.004, 9, 1, 0]]
    np.testing.assert_allclose(rows, expected, rtol=1e-6)


def test_windows_are_parts_of_episodes_with_the_remaining_return():
    rewards = np.float32([1, 2, 4, 8])
    one = episodes.Episode(np.float32([[3], [5], [7], [9]]), np.int32([0, 1, 1, 0]), rewards)
    inputs, labels = episodes.training_windows([one], 40, 3, actions=2)
    assert inputs.shape == (40, 3, 5) and {tuple(row) for row in labels} == {(0, 1, 1), (1, 1, 0)}
    (window,) = np.unique(inputs[labels[:, 0] == 1], axis=0)
    np.testing.assert_allclose(window[:, 0] * 500, [14, 12, 8], rtol=1e-6)
    np.testing.assert_array_equal(window[:, 2:], [[5, 1, 0], [7, 0, 1], [9, 0, 1]])
    short, labels = episodes.training_windows([one], 1, 6, actions=2, use_returns=False)
    assert not short[0, 4:].any() and labels[0].tolist() == [0, 1, 1, 0, -1, -1]
    assert not short[..., 0].any()


def test_logged_episodes_are_of_mixed_quality():
    pytest.importorskip("gymnasium")
    found = episodes.logged_episodes("CartPole-v1", 20)
    returns = [one.rewards.sum() for one in found]
    assert min(returns) < 60 and max(returns) > 200
    again = episodes.logged_episodes("CartPole-v1", 1)[0]
    np.testing.assert_array_equal(again.states, found[0].states)
    assert again.states.shape == (len(again.actions), 4) and {*again.actions} <= {0, 1}
    with pytest.raises(ValueError, match="none for 'Pong-v1'"):
        episodes.logged_episodes("Pong-v1", 1)
