"""Scores of tasks, compared with counts by hand, and times of layers."""

import time

import numpy as np
import pytest
import tensorflow as tf
from support.scores.anomalies import anomaly_scores, moving_mean, moving_z_score
from support.scores.entities import entities, entity_outcomes, entity_scores
from support.scores.retrieval import recall_at
from support.scores.rouge import rouge
from support.scores.word_errors import word_error_rate
from support.timing import milliseconds

SCORES = np.array([[0.9, 0.1, 0.2], [0.8, 0.7, 0.1], [0.5, 0.6, 0.4]])


def test_rouge_is_f1_of_stemmed_words_pairs_and_the_longest_common_sequence():
    # Of four words, three are common; of three pairs, one; in order, three.
    scores = rouge(["a clock that runs"], ["a clock which runs"])
    assert scores == pytest.approx({"rouge1": 3 / 4, "rouge2": 1 / 3, "rougeL": 3 / 4})
    assert rouge(["running clocks", "x"], ["runs clock", "y"])["rouge1"] == pytest.approx(0.5)
    assert rouge([""], ["a clock"])["rougeL"] == 0


def test_recall_is_measured_in_both_directions():
    # Ranks of the right candidate: 1, 2, 3 along the rows, 1, 1, 1 along the columns.
    assert [recall_at(SCORES, k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1])
    assert recall_at(SCORES.T) == 1
    assert recall_at(np.ones((3, 3))) == 0  # equal scores are no success
    assert recall_at(np.ones((3, 3)), k=3) == 1


@pytest.mark.parametrize(
    "text, edits",
    [
        ("a b c", 0),
        ("a c", 1),  # one is missing
        ("a b b c", 1),  # one is too many
        ("a x c", 1),  # one is wrong
        ("b c a", 2),
        ("", 3),
        ("x y z a b c", 3),
        ("c b a", 2),
    ],
)
def test_edits_of_words_are_counted(text, edits):
    assert word_error_rate([text], ["a b c"]) == pytest.approx(edits / 3)
    assert word_error_rate([text, "a"], ["a b c", "a"]) == pytest.approx(edits / 4)  # of all texts


# Expected entities are from seqeval 1.2.2.
@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O I-a I-a B-a", [("a", 1, 3), ("a", 3, 4)]),
        ("B-a I-b I-b O I-c-d", [("a", 0, 1), ("b", 1, 3), ("c-d", 4, 5)]),
        ("B-a B-a I-a", [("a", 0, 1), ("a", 1, 3)]),
        ("O O", []),
        ("", []),
    ],
)
def test_entities_equal_seqeval(tags, expected):
    assert entities(tags.split()) == expected


def test_an_entity_is_right_if_its_type_and_all_its_words_are():
    true = ["B-a I-a O B-b O B-a".split(), "B-b I-b B-b B-a".split()]
    found = ["B-a I-a O B-a O O".split(), "B-b O B-b O".split()]
    scores = entity_scores(found, true)
    assert scores == {"f1": 2 * 2 / (4 + 6), "precision": 2 / 4, "recall": 2 / 6}
    assert entity_outcomes(found, true) == {
        "a": {"right": 1, "missed": 2},
        "b": {"other type": 1, "other words": 1, "right": 1},
    }
    assert entity_scores([["O"]], [["O"]])["f1"] == 0


def test_roc_auc_is_the_share_of_pairs_in_the_right_order():
    draw = np.random.default_rng(7)
    scores, labels = draw.integers(0, 5, 61).astype(float), draw.random(61) < 0.3
    pairs = np.sign(scores[labels][:, None] - scores[~labels])
    f1 = [
        2 * (labels & (scores >= least)).sum() / ((scores >= least).sum() + labels.sum())
        for least in range(5)
    ]
    expected = {"roc auc": (1 + pairs.mean()) / 2, "best f1": max(f1)}
    assert anomaly_scores(scores, labels) == pytest.approx(expected)
    assert anomaly_scores(labels, labels) == {"roc auc": 1, "best f1": 1}
    assert anomaly_scores(np.zeros(61), labels)["roc auc"] == 0.5


def test_moving_means_and_z_scores_have_fewer_steps_at_the_ends():
    np.testing.assert_allclose(moving_mean([3, 0, 0, 6], 3), [1.5, 1, 2, 3])
    np.testing.assert_allclose(moving_mean([3, 0], 5), [1.5, 1.5])
    series = np.array([[0.0, 5], [2, 5], [0, 5], [2, 5], [9, 5]])
    assert moving_z_score(series, 4)[-1] == 4  # the mean of both channels


def test_times_of_layers_exclude_tracing(monkeypatch):
    traced = []
    read_clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: read_clock() + 3600 * len(traced))

    def slow_to_trace(x):
        traced.append(tuple(x.shape))  # an hour passes
        return x + 1

    times = milliseconds({"plain": tf.nn.relu, "slow": slow_to_trace}, [2, 5], size=3, rounds=2)
    assert traced == [(1, 2, 3), (1, 5, 3)]
    assert [len(some) for some in times.values()] == [2, 2]
    assert all(0 < some < 3.6e6 for row in times.values() for some in row)
