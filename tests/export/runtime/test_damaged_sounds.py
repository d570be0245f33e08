"""Damaged sound files: the rest is read at its own times, and a warning says what is lost."""

import functools
import logging
import types

import numpy as np
import pytest
from helpers import recordings

from keras_transformer.sound.features import FeatureReader
from keras_transformer.sound.samples import SAMPLE_RATE

SECONDS = 5
TONE = recordings.chirp(SECONDS)
# Reference: the same tone at 16 kHz.
WHOLE = recordings.chirp(SECONDS, SAMPLE_RATE)
TAG = b"ID3\x04\x00\x00\x00\x00\x0f\x76" + bytes(2038)


@functools.cache
def made(kind):
    return recordings.written(kind, [(0, TONE)])


def read(data, caplog):
    """Returns the samples, and the warnings."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "keras_transformer.export"):
        samples = recordings.read(data)
    return samples, [record.getMessage() for record in caplog.records]


def changed(change, data, *ranges):
    """Returns data where `change` replaced each range, a pair of the first byte and the last."""
    for first, last in ranges:
        data = data[:first] + change(data[first:last]) + data[last:]
    return data


def inverted(data, *ranges):
    return changed(lambda part: bytes(byte ^ 255 for byte in part), data, *ranges)


def zeroed(data, *ranges):
    return changed(lambda part: bytes(len(part)), data, *ranges)


def packets(data, *numbers):
    """Returns the ranges of some packets, or of all."""
    places = [(place, place + size) for place, size in recordings.packets(data)]
    return [places[number] for number in numbers] if numbers else places


# Name: kind, damage, seconds that are read at least, seconds at most.
CASES = {
    "two joined, the second with a tag": ("mp3", lambda x: x + TAG + x, 9.9, 10.3),
    "three joined, with two tags": ("mp3", lambda x: x + TAG + x + TAG + x, 14.8, 15.5),
    "two tags in front": ("mp3", lambda x: TAG + TAG + x, 4.9, 5.3),
    "400 damaged bytes": ("mp3", lambda x: inverted(x, (6000, 6400)), 4.8, 5.1),
    "the same, twice": ("mp3", lambda x: inverted(x, (6000, 6400), (16000, 16400)), 4.7, 5.2),
    "zeros added": ("mp3", lambda x: x[: len(x) // 2] + bytes(3000) + x[len(x) // 2 :], 4.8, 5.3),
    "zeros instead": ("mp3", lambda x: zeroed(x, (20_000, 23_000)), 4.6, 5.2),
    "cut in a packet": ("mp3", lambda x: x[: len(x) // 2 + 100], 2.4, 2.7),
    "FLAC cut off": ("flac", lambda x: x[: len(x) * 2 // 3], 3.0, 3.5),
    "FLAC, damaged bytes": (
        "flac",
        lambda x: inverted(x, (len(x) // 2, len(x) // 2 + 400)),
        4.7,
        5.1,
    ),
    "FLAC, zeros": ("flac", lambda x: zeroed(x, (len(x) // 2, len(x) // 2 + 9000)), 4.5, 5.1),
    "Ogg, damaged packets": (
        "ogg",
        lambda x: inverted(x, (len(x) // 2, len(x) // 2 + 400)),
        3.5,
        5.1,
    ),
    "Ogg cut off": ("ogg", lambda x: x[: len(x) // 2], 1.4, 3.1),
    "WebM, a damaged packet": ("webm", lambda x: inverted(x, *packets(x, 60, 100)), 4.9, 5.1),
    "WebM cut off": ("webm", lambda x: x[: len(x) // 2], 2.0, 3.0),
    "MP4 in fragments, cut off": ("fmp4", lambda x: x[: len(x) // 2], 2.0, 3.0),
    "MP4, damaged packets": ("mp4", lambda x: inverted(x, *packets(x, 50, 51, 120)), 4.9, 5.1),
    "MP4, zeros in packets": ("mp4", lambda x: zeroed(x, *packets(x, 50, 51, 120)), 4.9, 5.1),
    "MPEG-TS, damaged bytes": ("ts", lambda x: inverted(x, (20_000, 22_000)), 4.6, 5.1),
    "AAC, damaged bytes": ("aac", lambda x: inverted(x, (20_000, 22_000)), 4.6, 5.1),
    "AAC, zeros": ("aac", lambda x: zeroed(x, (20_000, 22_000)), 4.6, 5.1),
    "WAV cut off": ("wav", lambda x: x[: len(x) // 2 + 1], 2.4, 2.6),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rest_of_a_damaged_file_is_read(name, caplog, tmp_path):
    kind, damage, least, most = CASES[name]
    data = damage(made(kind))
    samples, _ = read(data, caplog)
    assert least <= len(samples) / SAMPLE_RATE <= most
    assert np.isfinite(samples).all() and np.abs(samples).max() <= 1
    # The last second that remains.
    end = 4 if most > 4.9 else 1
    place, score = recordings.place_of(WHOLE[end * SAMPLE_RATE :][: SAMPLE_RATE // 2], samples)
    assert score > 0.8
    path = tmp_path / f"a.{kind}"
    path.write_bytes(data)
    np.testing.assert_array_equal(recordings.read(path), samples)


@pytest.mark.parametrize("kind", ["mp4", "webm", "ts"])
def test_what_follows_damaged_packets_keeps_its_time(kind, caplog):
    data = made(kind)
    ranges = packets(data)[len(packets(data)) // 4 : len(packets(data)) // 2]
    if kind == "ts":  # its packets are cut into cells
        ranges = [(len(data) // 4, len(data) // 2)]
    samples, _ = read(inverted(data, *ranges), caplog)
    for second in (0.5, 3, 4):
        part = WHOLE[round(second * SAMPLE_RATE) :][: SAMPLE_RATE // 2]
        place, score = recordings.place_of(part, samples)
        assert score > 0.8 and abs(place - second) < 0.1, (second, place, score)


def test_one_warning_says_how_many_seconds_are_lost(caplog, tmp_path):
    flac, mp3 = made("flac"), made("mp3")
    (tmp_path / "a.flac").write_bytes(flac[: len(flac) * 2 // 3])
    samples, (message,) = read(tmp_path / "a.flac", caplog)
    lost = SECONDS - len(samples) / SAMPLE_RATE
    assert f"a.flac' is damaged: about {lost:.2f} seconds are lost" in message
    assert read(flac, caplog)[1] == []
    _, (message,) = read(mp3 + TAG + mp3, caplog)
    assert message.startswith("The sound is damaged")
    caplog.clear()
    reader = FeatureReader(flac[: len(flac) // 2], 5)
    reader.window(0, reader.frames)  # the second pass
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", ["mp3", "flac", "ogg", "mp4", "aac"])
def test_a_file_without_a_packet_that_can_be_read_is_refused(kind):
    data = changed(lambda part: b"\xa5" * len(part), made(kind), *packets(made(kind)))
    with pytest.raises(ValueError, match="cannot be read as sound|holds no sound"):
        recordings.read(data)


def test_an_error_of_a_file_object_is_raised():
    def fail():
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        recordings.read(types.SimpleNamespace(read=fail))
