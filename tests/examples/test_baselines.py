"""Strong simple methods: each learns a rule that a constant answer cannot, and breaks no length."""

import math

import numpy as np
import pytest
from support import baselines


def test_tags_depend_on_the_word_its_ending_and_the_tag_before():
    words = [["the", "run"], ["they", "run"], ["the", "walk"], ["they", "walk"], ["they", "talked"]]
    tags = [["D", "N"], ["P", "V"], ["D", "N"], ["P", "V"], ["P", "V"]]
    others = [["the", "walk"], ["they", "run"], [], ["they", "jumped"], ["the", "", "run"]]
    *found, last = baselines.word_tags(words, tags, others)
    assert found == [["D", "N"], ["P", "V"], [], ["P", "V"]]
    assert len(last) == 3 and last[0] == "D"


@pytest.mark.parametrize("width", [1, 4, 5])
def test_a_window_that_training_never_saw_has_the_largest_distance(width):
    wave = np.sin(np.arange(200) * 2 * np.pi / 20)[:, None]
    series = wave[:90].copy()
    series[40:44] += 2
    distances = baselines.nearest_window_distances(wave, series, width)
    assert distances.shape == (90,)
    assert 40 <= distances.argmax() < 44
    assert distances[:30].max() < 1e-6 and distances[60:].max() < 1e-6


def test_a_policy_follows_the_log():
    states = np.random.default_rng(5).normal(size=(300, 3))
    policy = baselines.StatePolicy(states, (states[:, 1] > 0).astype(int))
    assert policy(np.array([[0, 2, 0], [0, -2, 0.0]])).tolist() == [1, 0]


def test_counts_with_back_off_follow_witten_and_bell():
    def contexts(sequence, place):
        return [(), sequence[max(0, place - 1) : place]]

    # Three symbols and one unknown. "a" was seen 2 times of 3, with 2 different symbols.
    single = (2 + 2 * (1 / 3)) / (3 + 2)
    # After "b", "a" was seen once, with one symbol; at the start (no symbol before), once.
    expected = -math.log((1 + 1 * single) / 2)
    assert baselines.backoff_nats(["aba"], ["ba"], contexts) != expected  # "b" first costs more
    first = (0 + 1 * (1 + 2 * (1 / 3)) / 5) / 2
    both = baselines.backoff_nats(["aba"], ["ba"], contexts)
    assert both == pytest.approx((-math.log(first) + expected) / 2)
