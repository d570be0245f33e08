"""Sets of anomalies, scores of detectors, and their plot."""

import types

import numpy as np
import pytest
from support.plots import plot_anomalies
from support.scores.anomalies import anomaly_scores, moving_mean, moving_z_score
from support.sets import anomalies


def test_roc_auc_is_the_share_of_pairs_in_the_right_order():
    draw = np.random.default_rng(7)
    scores, labels = draw.integers(0, 5, 61).astype(float), draw.random(61) < 0.3
    pairs = np.sign(scores[labels][:, None] - scores[~labels])
    found = anomaly_scores(scores, labels)
    assert found["roc auc"] == pytest.approx((1 + pairs.mean()) / 2)
    f1 = [
        2 * (labels & (scores >= least)).sum() / ((scores >= least).sum() + labels.sum())
        for least in range(5)
    ]
    assert found["best f1"] == pytest.approx(max(f1))
    assert anomaly_scores(labels, labels) == {"roc auc": 1, "best f1": 1}
    assert anomaly_scores(np.zeros(61), labels)["roc auc"] == 0.5


def test_invalid_scores_and_labels_are_refused():
    for scores, labels in (([1, 2], [True]), ([1, np.nan], [True, False])):
        with pytest.raises(ValueError, match="a finite score and a label"):
            anomaly_scores(scores, labels)
    with pytest.raises(ValueError, match="0 of 2 steps"):
        anomaly_scores([1, 2], [False, False])


def test_moving_means_and_z_scores_have_fewer_steps_at_the_ends():
    np.testing.assert_allclose(moving_mean([3, 0, 0, 6], 3), [1.5, 1, 2, 3])
    np.testing.assert_allclose(moving_mean([3, 0], 5), [1.5, 1.5])
    series = np.array([[0.0, 5], [2, 5], [0, 5], [2, 5], [9, 5]])
    found = moving_z_score(series, 4)
    np.testing.assert_allclose(found[[0, 1, 2, 4]], [0, 0, 0.5, 4])  # the mean of both channels
    with pytest.raises(ValueError, match="at least 2, got 1"):
        moving_z_score(series, 1)


def test_made_waves_are_standardised_and_the_same_in_every_call():
    sets = anomalies.made_anomalies()
    assert sets.train.shape == sets.test.series.shape == (3000, 2)
    np.testing.assert_allclose(
        [sets.train.mean(axis=0), sets.train.std(axis=0)], [[0, 0], [1, 1]], atol=1e-5
    )
    for watched in sets[1:]:
        starts = np.diff(watched.labels.astype(int)) == 1
        assert starts.sum() == 6 and 240 <= watched.labels.sum() <= 480
    np.testing.assert_array_equal(anomalies.made_anomalies().test.series, sets.test.series)
    with pytest.raises(ValueError, match="at least 1000, got 10"):
        anomalies.made_anomalies(10)


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


def test_anomalies_are_shaded_in_every_panel():
    labels = [True, False, False, True, True]
    figure = plot_anomalies(np.zeros((5, 2)), labels, {"a": range(5), "b": range(5)})
    assert [axes.get_ylabel() for axes in figure.axes] == ["series", "a", "b"]
    for axes in figure.axes:
        places = [(patch.get_x(), patch.get_width()) for patch in axes.patches]
        assert places == [(-0.5, 1), (2.5, 2)]
    with pytest.raises(ValueError, match="equally long.*5, 4, 5"):
        plot_anomalies(np.zeros((5, 2)), labels[1:], {"a": range(5)})
