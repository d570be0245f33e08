"""Scores of tasks, compared with counts by hand, and times of layers."""

import time

import numpy as np
import pytest
import tensorflow as tf
from support.scores.bleu import bleu
from support.scores.retrieval import recall_at
from support.scores.rouge import lead, rouge
from support.scores.word_errors import word_error_rate
from support.timing import milliseconds

SCORES = np.array([[0.9, 0.1, 0.2], [0.8, 0.7, 0.1], [0.5, 0.6, 0.4]])


def test_bleu_equals_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    found, wanted = ["eine rote Katze saß", "ein Hund"], ["eine rote Katze saß", "der Hund"]
    score = bleu(found, wanted, "char")
    assert score["bleu"] == sacrebleu.corpus_bleu(found, [wanted], tokenize="char").score
    assert score["exact_match"] == 0.5 and "tok:char" in score["signature"]
    assert score["lengths"] == {"system": 23, "reference": 23} and score["brevity_penalty"] == 1


def test_rouge_is_f1_of_stemmed_words_pairs_and_the_longest_common_sequence():
    # Of four words, three are common; of three pairs, one; in order, three.
    scores = rouge(["a clock that runs"], ["a clock which runs"])
    assert scores == pytest.approx({"rouge1": 3 / 4, "rouge2": 1 / 3, "rougeL": 3 / 4})
    assert rouge(["running clocks", "x"], ["runs clock", "y"])["rouge1"] == pytest.approx(0.5)
    assert rouge([""], ["a clock"])["rougeL"] == 0


def test_the_lead_is_the_first_sentences():
    text = " It is small, e.g. for tests. Is it fast? Yes! No more. "
    assert lead(text, 1) == "It is small, e.g. for tests."
    assert lead(text) == "It is small, e.g. for tests. Is it fast? Yes!"
    assert lead("No end") == "No end" and lead("") == ""


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


@pytest.mark.parametrize(
    "score, arguments, message",
    [
        (bleu, ([], []), "one reference for each"),
        (bleu, (["a"], ["a", "b"]), "one reference for each"),
        (rouge, ([], []), "one reference for each"),
        (rouge, (["a"], ["a", "b"]), "one reference for each"),
        (recall_at, (np.ones((2, 3)),), r"\(N, N\), but it is \(2, 3\)"),
        (recall_at, (np.ones((0, 0)),), r"\(N, N\)"),
        (recall_at, (np.full((2, 2), np.nan),), "NaN or infinite"),
        (recall_at, (np.ones((2, 2)), 0), "at least 1, but it is 0"),
        (word_error_rate, (["a"], []), "1 texts, but 0 references"),
        (word_error_rate, (["a"], [" "]), "references have no words"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(score, arguments, message):
    with pytest.raises(ValueError, match=message):
        score(*arguments)


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
