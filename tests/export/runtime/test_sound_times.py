"""The times of a file: gaps and late starts are silence, and false time stamps are not believed."""

import itertools
import tracemalloc

import numpy as np
import pytest
from helpers import recordings, tiers

from keras_transformer.sound.features import FeatureReader
from keras_transformer.sound.samples import SAMPLE_RATE, read_blocks

CLOCKED = ["webm", "mkv", "mp4", "fmp4", "ts"]
UNTIMED = ["webm", "mkv", "mp4", "ogg"]  # time stamps begin at 0
SOUND, AT_16K = recordings.chirp(8), recordings.chirp(8, SAMPLE_RATE)


def part(first, last, rate=48_000):
    return SOUND[round(first * rate) : round(last * rate)]


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


@pytest.mark.full("webm-starts5")
@pytest.mark.parametrize("kind, starts", tiers.quick(itertools.product(CLOCKED, STARTS), *QUICK))
def test_gaps_are_silent_and_later_sounds_keep_their_times(kind, starts):
    data = recordings.written(kind, [(start, part(i, i + 1)) for i, start in enumerate(starts)])
    samples = recordings.read(data)
    assert len(samples) / SAMPLE_RATE == pytest.approx(starts[-1] + 1, abs=0.08)
    for i, start in enumerate(starts):
        place, score = recordings.place_of(AT_16K[i * SAMPLE_RATE :][3000:13_000], samples)
        assert score > 0.7 and abs(place - 3000 / SAMPLE_RATE - start) < 0.05
    if starts[1] >= 1.5:
        (_, end), (begin, _) = loud(samples)[:2]
        assert begin - end == pytest.approx(starts[1] - 1, abs=0.1)


def test_joined_broadcasts_with_another_picture():
    first = recordings.written("ts", [(0, part(0, 2))])
    second = recordings.written("ts", [(0, part(2, 5))], picture_at=0)
    for parts, seconds in (((first, second), 5), ((first, second, first), 7)):
        found = recordings.read(b"".join(parts))
        assert len(found) / SAMPLE_RATE == pytest.approx(seconds, abs=0.2)


def test_gaps_of_ogg_are_exact_to_a_page():
    data = recordings.written("ogg", [(0, part(0, 1)), (4, part(1, 2)), (6, part(2, 3))])
    samples = recordings.read(data)
    assert len(samples) / SAMPLE_RATE == pytest.approx(7, abs=0.05)
    place, score = recordings.place_of(AT_16K[33_000:45_000], samples)
    assert score > 0.9 and place == pytest.approx(4 + 33 / 16, abs=0.05)


@pytest.mark.parametrize(
    "kind, start, picture_at, seconds",
    [
        *((kind, start, None, start + 1) for kind in UNTIMED for start in (0.5, 2, 30)),
        *((kind, 1.5, 0, None) for kind in CLOCKED),
        *((kind, 30 if kind == "ts" else 90, 0, None) for kind in CLOCKED),
        *((kind, 3000, None, 1) for kind in (*UNTIMED, "ts")),  # a part of a long recording
    ],
)
def test_a_late_start_is_silent(kind, start, picture_at, seconds):
    """A broadcast has other times: only a picture shows that it starts late."""
    samples = recordings.read(
        recordings.written(kind, [(start, part(0, 1))], picture_at=picture_at)
    )
    if seconds is not None:
        assert len(samples) / SAMPLE_RATE == pytest.approx(seconds, abs=0.1)
    assert loud(samples)[0][0] == pytest.approx(0 if start == 3000 else start, abs=0.1)


@pytest.mark.parametrize("kind", recordings.KINDS)
def test_files_without_gaps_are_read_as_they_are(kind):
    samples = recordings.read(recordings.written(kind, [(0, part(0, 3))]))
    assert len(samples) / SAMPLE_RATE == pytest.approx(3, abs=0.06)
    place, score = recordings.place_of(AT_16K[SAMPLE_RATE:][:8000], samples)
    assert score > 0.9 and place == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("kind", ["webm", "mkv"])
def test_jitter_of_the_time_stamps_adds_no_silence(kind):
    parts = [(i / 50 + (i % 3) * 0.006, part(i / 50, (i + 1) / 50)) for i in range(100)]
    samples = recordings.read(recordings.written(kind, parts))
    assert len(samples) / SAMPLE_RATE == pytest.approx(2, abs=0.05)


# Time stamps that are wrong, or an attack. A block has 20 ms.


def blocks(first, last, start=None):
    """Returns blocks from one second of the tone to another, whose times begin at `start`."""
    size, start = SAMPLE_RATE // 50, first if start is None else start
    starts = range(round(first * SAMPLE_RATE), round(last * SAMPLE_RATE), size)
    return [(start * 1000 + i * 20, AT_16K[place:][:size]) for i, place in enumerate(starts)]


def speed(factor):
    """Returns eight seconds with time stamps that are too large by a factor."""
    return [(time * factor, samples) for time, samples in blocks(0, 8)]


HOUR = 3600
FORGED = {  # block times and samples; the fewest and the most seconds
    **{
        f"{hours} hours": ([*blocks(0, 0.1), *blocks(0.1, 0.2, hours * HOUR)], 0.2, 0.2)
        for hours in (2, 100, 4000, 10**6)
    },
    "many gaps": ([x for i in range(100) for x in blocks(0, 0.04, 1000 * i)], 3000, 3610),
    "a long gap": ([*blocks(0, 1), *blocks(1, 2, 3000)], 3001, 3001),
    **{f"back to {x}": ([*blocks(0, 2), *blocks(2, 4, x)], 4, 4) for x in (0, 0.5, 1.9)},
    "all equal": ([(700, samples) for _, samples in blocks(0, 3)], 3.67, 3.73),
    "back, then a gap": ([*blocks(0, 1, 100), *blocks(1, 2, 0), *blocks(2, 3, 4)], 6, 6),
    "0.1 % slow": (speed(1.001), 8, 8),
    "1 % slow": (speed(1.01), 8.05, 8.11),
}


@pytest.mark.parametrize("name", FORGED)
def test_wrong_time_stamps_lose_no_sound_and_make_little_silence(name, caplog):
    """Gaps are filled up to an hour together, in constant memory."""
    found, least, most = FORGED[name]
    data = recordings.matroska(found)
    tracemalloc.start()
    count = sum(map(len, read_blocks(data)))
    peak = tracemalloc.get_traced_memory()[1] - len(data)
    tracemalloc.stop()
    assert least - 1e-6 <= count / SAMPLE_RATE <= most + 1e-6 and peak < 2**24
    skips = "hours" in name or name == "many gaps"
    assert skips is ("which are not filled with silence" in caplog.text)


def test_the_limit_of_the_service_counts_silence():
    data = recordings.matroska([*blocks(0, 1), *blocks(1, 2, 300)])
    with pytest.raises(ValueError, match="longer than 60 seconds"):
        FeatureReader(data, 5, most_seconds=60)


@pytest.mark.parametrize("wrong", [0, 1.2, 9, 1000, 99_999])
@pytest.mark.parametrize("number", [0, 1, 70, 148])
def test_a_single_wrong_time_stamp_changes_nothing(wrong, number):
    found = blocks(0, 3)
    found[number] = (wrong * 1000, found[number][1])
    samples, expected = (recordings.read(recordings.matroska(x)) for x in (found, blocks(0, 3)))
    np.testing.assert_array_equal(samples, expected)


@pytest.mark.parametrize("other", [11, 15, 100, 140])
def test_blocks_that_change_places_move_no_others(other):
    found = blocks(0, 3)
    found[10], found[other] = found[other], found[10]
    samples = recordings.read(recordings.matroska(found)).reshape(150, -1)
    kept = np.setdiff1d(np.arange(150), [10, other])
    expected = AT_16K[: samples.size].reshape(150, -1)[kept]
    np.testing.assert_allclose(samples[kept], expected, atol=1e-4)
