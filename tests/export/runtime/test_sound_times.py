"""The times of a file: gaps and late starts are silence, and false time stamps are not believed."""

import itertools
import logging
import tracemalloc

import numpy as np
import pytest
from helpers import recordings, tiers

from keras_transformer.sound.features import FeatureReader
from keras_transformer.sound.samples import SAMPLE_RATE, read_blocks

CLOCKED = ["webm", "mkv", "mp4", "fmp4", "ts"]
SOUND = recordings.chirp(8)


def part(first, last, rate=48_000):
    return SOUND[round(first * rate) : round(last * rate)]


def read(data):
    return np.concatenate(list(read_blocks(data)))


def loud(samples):
    """Returns the start and end of each part that is not silent, in seconds."""
    size = SAMPLE_RATE // 100
    frames = np.abs(samples[: len(samples) // size * size]).reshape(-1, size).max(axis=1) > 0.05
    edges = np.flatnonzero(np.diff(np.r_[0, frames.astype(int), 0]))
    return (edges.reshape(-1, 2) / 100).tolist()


STARTS = [
    (0, 4),  # a gap of 3 seconds
    (0, 1.5),
    (0, 2, 4, 6),
    (0, 1.1),
    (0, 33),  # longer than a block
    (0, 301),
    (0, 1, 2, 3.5),
    (0, 1.04, 2.08, 3.12),
]
QUICK = [(kind, STARTS[0]) for kind in CLOCKED] + [("webm", starts) for starts in STARTS]


@pytest.mark.parametrize("kind, starts", tiers.quick(itertools.product(CLOCKED, STARTS), *QUICK))
def test_gaps_are_silent_and_later_sounds_keep_their_times(kind, starts):
    data = recordings.written(kind, [(start, part(i, i + 1)) for i, start in enumerate(starts)])
    samples = read(data)
    assert len(samples) / SAMPLE_RATE == pytest.approx(starts[-1] + 1, abs=0.08)
    for i, start in enumerate(starts):
        middle = recordings.chirp(8, SAMPLE_RATE)[i * SAMPLE_RATE :][3000:13_000]
        place, score = recordings.place_of(middle, samples)
        assert score > 0.7 and abs(place - 3000 / SAMPLE_RATE - start) < 0.05
    if starts[1] >= 1.5:
        (_, end), (begin, _) = loud(samples)[:2]
        assert begin - end == pytest.approx(starts[1] - 1, abs=0.1)


def test_joined_broadcasts_with_another_picture():
    first = recordings.written("ts", [(0, part(0, 2))])
    second = recordings.written("ts", [(0, part(2, 5))], picture_at=0)
    for parts, seconds in (((first, second), 5), ((first, second, first), 7)):
        assert len(read(b"".join(parts))) / SAMPLE_RATE == pytest.approx(seconds, abs=0.2)


def test_gaps_of_ogg_are_exact_to_a_page():
    data = recordings.written("ogg", [(0, part(0, 1)), (4, part(1, 2)), (6, part(2, 3))])
    samples = read(data)
    assert len(samples) / SAMPLE_RATE == pytest.approx(7, abs=0.05)
    place, score = recordings.place_of(recordings.chirp(8, SAMPLE_RATE)[33_000:45_000], samples)
    assert score > 0.9 and place == pytest.approx(4 + 33 / 16, abs=0.05)


@pytest.mark.parametrize("kind", ["webm", "mkv", "mp4", "ogg"])
@pytest.mark.parametrize("start", [0.5, 2, 30])
def test_a_late_start_is_silent(kind, start):
    samples = read(recordings.written(kind, [(start, part(0, 1))]))
    assert len(samples) / SAMPLE_RATE == pytest.approx(start + 1, abs=0.08)
    assert loud(samples)[0][0] == pytest.approx(start, abs=0.05)


@pytest.mark.parametrize("kind", CLOCKED)
def test_sound_that_starts_after_the_picture_keeps_its_time(kind):
    for start in (1.5, 30 if kind == "ts" else 90):
        samples = read(recordings.written(kind, [(start, part(0, 1))], picture_at=0))
        assert loud(samples)[0][0] == pytest.approx(start, abs=0.1)


@pytest.mark.parametrize("kind", ["webm", "mkv", "mp4", "ts", "ogg"])
def test_a_part_of_a_long_recording_starts_at_0(kind):
    samples = read(recordings.written(kind, [(3000, part(0, 1))]))
    assert len(samples) / SAMPLE_RATE == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("kind", recordings.KINDS)
def test_files_without_gaps_are_read_as_they_are(kind):
    samples = read(recordings.written(kind, [(0, part(0, 3))]))
    assert len(samples) / SAMPLE_RATE == pytest.approx(3, abs=0.06)
    middle = recordings.chirp(8, SAMPLE_RATE)[SAMPLE_RATE:][:8000]
    place, score = recordings.place_of(middle, samples)
    assert score > 0.9 and place == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("kind", ["webm", "mkv"])
def test_jitter_of_the_time_stamps_adds_no_silence(kind):
    parts = [(i / 50 + (i % 3) * 0.006, part(i / 50, (i + 1) / 50)) for i in range(100)]
    assert len(read(recordings.written(kind, parts))) / SAMPLE_RATE == pytest.approx(2, abs=0.05)


# Time stamps that are wrong, or an attack. A block has 20 ms.

AT_16K = recordings.chirp(8, SAMPLE_RATE)


def blocks(first, last, start=None):
    """Returns blocks from one second of the tone to another, whose times begin at `start`."""
    size, start = SAMPLE_RATE // 50, first if start is None else start
    starts = range(round(first * SAMPLE_RATE), round(last * SAMPLE_RATE), size)
    return [(start * 1000 + i * 20, AT_16K[place:][:size]) for i, place in enumerate(starts)]


def seconds(found):
    """Returns the length of a file in seconds, and the greatest memory to read it, in bytes."""
    data = recordings.matroska(found)
    tracemalloc.start()
    count = sum(map(len, read_blocks(data)))
    most = tracemalloc.get_traced_memory()[1] - len(data)
    tracemalloc.stop()
    return count / SAMPLE_RATE, most


@pytest.mark.parametrize("hours", [2, 100, 4000, 10**6])
def test_a_forged_time_stamp_does_not_make_hours_of_silence(hours, caplog):
    found = [*blocks(0, 0.1), *blocks(0.1, 0.2, hours * 3600)]
    assert len(recordings.matroska(found)) < 8000
    with caplog.at_level(logging.WARNING, "keras_transformer.export"):
        length, most = seconds(found)
    assert length == pytest.approx(0.2) and most < 2**24
    assert "which are not filled with silence" in caplog.text


def test_many_forged_gaps_make_less_than_an_hour_of_silence():
    found = [each for i in range(100) for each in blocks(0, 0.04, 1000 * i)]
    length, most = seconds(found)
    assert 3000 < length < 3610 and most < 2**24


def test_silence_is_made_in_blocks_of_constant_size():
    length, most = seconds([*blocks(0, 1), *blocks(1, 2, 3000)])
    assert length == pytest.approx(3001) and most < 2**24


def test_the_limit_of_the_service_counts_silence():
    data = recordings.matroska([*blocks(0, 1), *blocks(1, 2, 300)])
    with pytest.raises(ValueError, match="longer than 60 seconds"):
        FeatureReader(data, 5, most_seconds=60)


@pytest.mark.parametrize("wrong", [0, 1.2, 9, 1000, 99_999])
@pytest.mark.parametrize("number", [0, 1, 70, 148])
def test_a_single_wrong_time_stamp_changes_nothing(wrong, number):
    found = blocks(0, 3)
    found[number] = (wrong * 1000, found[number][1])
    np.testing.assert_array_equal(
        read(recordings.matroska(found)), read(recordings.matroska(blocks(0, 3)))
    )


@pytest.mark.parametrize("other", [11, 15, 100, 140])
def test_blocks_that_change_places_move_no_others(other):
    found = blocks(0, 3)
    found[10], found[other] = found[other], found[10]
    samples = read(recordings.matroska(found))
    assert len(samples) == 3 * SAMPLE_RATE
    kept = np.setdiff1d(np.arange(150), [10, other])
    np.testing.assert_allclose(
        samples.reshape(150, -1)[kept], AT_16K[: len(samples)].reshape(150, -1)[kept], atol=1e-4
    )


@pytest.mark.parametrize("second", [0, 0.5, 1.9])
def test_no_sound_is_lost_if_time_stamps_go_back(second):
    assert seconds([*blocks(0, 2), *blocks(2, 4, second)])[0] == pytest.approx(4)


def test_no_sound_is_lost_if_all_time_stamps_are_equal():
    assert seconds([(700, samples) for _, samples in blocks(0, 3)])[0] == pytest.approx(
        3.7, abs=0.03
    )


def test_gaps_after_the_time_went_back_are_filled():
    found = [*blocks(0, 1, 100), *blocks(1, 2, 0), *blocks(2, 3, 4)]
    assert seconds(found)[0] == pytest.approx(6)


def test_small_steps_are_no_gaps():
    found = [(time + time // 1000, samples) for time, samples in blocks(0, 8)]  # 0.1 % slow
    assert seconds(found)[0] == pytest.approx(8)
    found = [(time * 1.01, samples) for time, samples in blocks(0, 8)]  # 1 %
    assert seconds(found)[0] == pytest.approx(8.08, abs=0.03)
