"""Times of layers."""

import time

import tensorflow as tf
from support.timing import milliseconds


def test_there_is_a_time_for_each_length_without_that_of_tracing(monkeypatch):
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
