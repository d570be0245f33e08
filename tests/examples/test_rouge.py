"""ROUGE against counts by hand, and the baseline of first sentences."""

import pytest
from support.scores.rouge import lead, rouge


def test_scores_are_f1_of_words_pairs_and_the_longest_common_sequence():
    # Of four words each, three are common; of three pairs one; in order three.
    scores = rouge(["a clock that runs"], ["a clock which runs"])
    assert scores == pytest.approx({"rouge1": 3 / 4, "rouge2": 1 / 3, "rougeL": 3 / 4})


def test_words_are_stemmed_and_scores_averaged():
    assert rouge(["running clocks", "x"], ["runs clock", "y"])["rouge1"] == pytest.approx(0.5)
    assert rouge([""], ["a clock"])["rougeL"] == 0


@pytest.mark.parametrize("pair", [([], []), (["a"], ["a", "b"])])
def test_there_must_be_a_reference_for_each(pair):
    with pytest.raises(ValueError, match="one reference for each"):
        rouge(*pair)


def test_the_lead_is_the_first_sentences():
    text = " It is small, e.g. for tests. Is it fast? Yes! No more. "
    assert lead(text, 1) == "It is small, e.g. for tests."
    assert lead(text) == "It is small, e.g. for tests. Is it fast? Yes!"
    assert lead("No end") == "No end" and lead("") == ""
