"""The comparisons with CTranslate2: the faster library counts, and equal work is a condition."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
import bench
import engine_columns
import machine
import speech_columns


def figures(alone, tokens_per_second, peak=100, tokens=640):
    return {
        "alone_seconds": [alone, 2 * alone],
        "tokens_per_second_rounds": [tokens_per_second, 2 * tokens_per_second],
        "peak_mb": peak,
        "tokens": tokens,
    }


def test_the_better_library_counts_in_each_cell():
    ours, backends = figures(2, 60), [figures(3, 20, peak=90), figures(5, 30, peak=80)]
    for anchors in (backends, backends[::-1]):
        assert engine_columns.ratios(ours, anchors) == {
            "latency_times_ctranslate2": 1.5,
            "throughput_times_ctranslate2": 2,
            "memory_times_ctranslate2": 1.25,
        }


@pytest.mark.parametrize("tokens, compared", [(640, True), (650, True), (660, False)])
def test_different_work_has_no_ratio(tokens, compared):
    found = engine_columns.ratios(figures(2, 60), [figures(3, 20), figures(3, 20, tokens=tokens)])
    assert bool(found) == compared == bench.same_work(640, tokens)


@pytest.mark.parametrize("words, ratio", [(214, "2.00"), (309, "-")])
def test_rows_with_other_words_have_no_ratio(words, ratio):
    row = {"precision": "int8", "beam width": 5, "peak MB": 400, "words": 214}
    rows = [
        {**row, "engine": "keras_transformer", "times real time": 8.0},
        {**row, "engine": "faster-whisper", "times real time": 3.0},
        {**row, "engine": "faster-whisper, MKL", "times real time": 4.0, "words": words},
    ]
    last = speech_columns.whisper_speed({"speed": {"rows": rows}}).splitlines()[-1]
    assert f"| 8.00 | 4.00 | {ratio} |" in last


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux pins processes")
@pytest.mark.parametrize("pinned", [False, True])
def test_busy_cores_are_loops_that_end(monkeypatch, pinned):
    started, popen = [], machine.subprocess.Popen

    def start(*args, **options):
        started.append(popen(*args, **options))
        return started[-1]

    monkeypatch.setattr(machine.subprocess, "Popen", start)
    with machine.busy_cores(1, pinned):
        assert started[0].poll() is None
        assert not pinned or os.sched_getaffinity(started[0].pid) == {0}
    assert started[0].poll() is not None


def test_the_line_on_speed_gives_the_range_of_all_rows_of_free_cores():
    row = {"engine": "ours", "search": "beam 4", "precision": "int8", "case": "base, words"}
    rows = [{**row, "throughput_times_ctranslate2": ratio} for ratio in (1.26, 1.0, 1.19)]
    rows.append({**row, "throughput_times_ctranslate2": 0.5, "busy": 1})
    rows.append({**row, "throughput_times_ctranslate2": 0.4, "engine": "ours, before"})
    tiny = {**row, "case": "tiny, words"}
    rows.append({**tiny, "throughput_times_ctranslate2": 6.0})
    rows.append({**tiny, "precision": "float32", "throughput_times_ctranslate2": 0.71})
    rows.append({**row, "precision": "float32", "throughput_times_ctranslate2": 1.1})
    machine = {"threads": 2, "processor": "Intel(R) Xeon(R) Processor"}
    report = {"rows": rows, "machine": machine, "date": "2026-11-28"}
    line = " ".join(engine_columns.speed_line(report).split())
    assert "**1.0 to 1.3 times the speed of CTranslate2 in int8 and 1.1 times in float32**" in line
    assert "random weights and forced lengths" in line
    assert "2 threads of an Intel Xeon, 2026-11-28" in line
    assert "0.7 times at a tiny size in float32" in line
