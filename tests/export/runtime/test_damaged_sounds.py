"""Damaged sound files: the rest is read at its own times, and a warning says what is lost."""

import io
import logging

import numpy as np
import pytest
from helpers import recordings

from keras_transformer.sound.features import FeatureReader
from keras_transformer.sound.samples import SAMPLE_RATE, read_blocks

SECONDS = 5
TONE = recordings.chirp(SECONDS)
# Reference: the same tone at 16 kHz.
WHOLE = recordings.chirp(SECONDS, SAMPLE_RATE)
TAG = b"ID3\x04\x00\x00\x00\x00\x0f\x76" + bytes(2038)


def made(kind):
    return recordings.written(kind, [(0, TONE)])


def read(data, caplog):
    """Returns the samples, and the warnings."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "keras_transformer.export"):
        samples = np.concatenate(list(read_blocks(data)))
    return samples, [record.getMessage() for record in caplog.records]


def inverted(data, first, last):
    return data[:first] + bytes(byte ^ 255 for byte in data[first:last]) + data[last:]


def zeroed(data, first, last):
    return data[:first] + bytes(last - first) + data[last:]


def packet_zeroed(data, *numbers):
    places = recordings.packets(data)
    for number in numbers:
        place, size = places[number]
        data = zeroed(data, place, place + size)
    return data


def packet_inverted(data, *numbers):
    places = recordings.packets(data)
    for number in numbers:
        place, size = places[number]
        data = inverted(data, place, place + size)
    return data


def joined_with_tag(data):
    return data + TAG + data


# Name: kind, damage, seconds that are read at least, seconds at most.
CASES = {
    "two joined, the second with a tag": ("mp3", joined_with_tag, 9.9, 10.3),
    "three joined, with two tags": ("mp3", lambda x: x + TAG + x + TAG + x, 14.8, 15.5),
    "two tags in front": ("mp3", lambda x: TAG + TAG + x, 4.9, 5.3),
    "400 damaged bytes": ("mp3", lambda x: inverted(x, 6000, 6400), 4.8, 5.1),
    "the same, twice": ("mp3", lambda x: inverted(inverted(x, 6000, 6400), 16000, 16400), 4.7, 5.2),
    "zeros added": ("mp3", lambda x: x[: len(x) // 2] + bytes(3000) + x[len(x) // 2 :], 4.8, 5.3),
    "zeros instead": ("mp3", lambda x: zeroed(x, 20_000, 23_000), 4.6, 5.2),
    "cut in a packet": ("mp3", lambda x: x[: len(x) // 2 + 100], 2.4, 2.7),
    "FLAC cut off": ("flac", lambda x: x[: len(x) * 2 // 3], 3.0, 3.5),
    "FLAC, damaged bytes": (
        "flac",
        lambda x: inverted(x, len(x) // 2, len(x) // 2 + 400),
        4.7,
        5.1,
    ),
    "FLAC, zeros": ("flac", lambda x: zeroed(x, len(x) // 2, len(x) // 2 + 9000), 4.5, 5.1),
    "Ogg, damaged packets": (
        "ogg",
        lambda x: inverted(x, len(x) // 2, len(x) // 2 + 400),
        3.5,
        5.1,
    ),
    "Ogg cut off": ("ogg", lambda x: x[: len(x) // 2], 1.4, 3.1),
    "WebM, a damaged packet": ("webm", lambda x: packet_inverted(x, 60, 100), 4.9, 5.1),
    "WebM cut off": ("webm", lambda x: x[: len(x) // 2], 2.0, 3.0),
    "MP4 in fragments, cut off": ("fmp4", lambda x: x[: len(x) // 2], 2.0, 3.0),
    "MP4, damaged packets": ("mp4", lambda x: packet_inverted(x, 50, 51, 120), 4.9, 5.1),
    "MP4, zeros in packets": ("mp4", lambda x: packet_zeroed(x, 50, 51, 120), 4.9, 5.1),
    "MPEG-TS, damaged bytes": ("ts", lambda x: inverted(x, 20_000, 22_000), 4.6, 5.1),
    "AAC, damaged bytes": ("aac", lambda x: inverted(x, 20_000, 22_000), 4.6, 5.1),
    "AAC, zeros": ("aac", lambda x: zeroed(x, 20_000, 22_000), 4.6, 5.1),
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
    np.testing.assert_array_equal(np.concatenate(list(read_blocks(path))), samples)


@pytest.mark.parametrize("kind", ["mp4", "webm", "ts"])
def test_what_follows_damaged_packets_keeps_its_time(kind, caplog):
    data = made(kind)
    if kind == "ts":  # its packets are cut into cells
        damaged = inverted(data, len(data) // 4, len(data) // 2)
    else:
        count = len(recordings.packets(data))
        damaged = packet_inverted(data, *range(count // 4, count // 2))
    samples, _ = read(damaged, caplog)
    for second in (0.5, 3, 4):
        part = WHOLE[round(second * SAMPLE_RATE) :][: SAMPLE_RATE // 2]
        place, score = recordings.place_of(part, samples)
        assert score > 0.8 and abs(place - second) < 0.1, (second, place, score)


def test_a_warning_says_how_many_seconds_are_lost(caplog, tmp_path):
    flac = made("flac")
    (tmp_path / "a.flac").write_bytes(flac[: len(flac) * 2 // 3])
    samples, (message,) = read(tmp_path / "a.flac", caplog)
    lost = SECONDS - len(samples) / SAMPLE_RATE
    assert f"a.flac' is damaged: about {lost:.2f} seconds are lost" in message
    assert read(flac, caplog)[1] == []
    _, (message,) = read(joined_with_tag(made("mp3")), caplog)
    assert message.startswith("The sound is damaged")


def test_one_warning_for_both_passes(caplog):
    flac = made("flac")
    with caplog.at_level(logging.WARNING, "keras_transformer.export"):
        reader = FeatureReader(flac[: len(flac) // 2], 5)
        assert len(caplog.records) == 1
        reader.window(0, reader.frames)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", ["mp3", "flac", "ogg", "mp4", "aac"])
def test_a_file_without_a_packet_that_can_be_read_is_refused(kind):
    data = made(kind)
    for place, size in recordings.packets(data):
        data = data[:place] + b"\xa5" * size + data[place + size :]
    with pytest.raises(ValueError, match="cannot be read as sound|holds no sound"):
        list(read_blocks(data))


def test_an_error_of_a_file_object_is_raised():
    class Failing(io.BytesIO):
        def read(self, size=-1):
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(read_blocks(Failing(made("wav"))))
