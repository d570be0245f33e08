"""Sound files of all formats, rates and channels give samples at 16 kHz, or a clear error."""

import numpy as np
import pytest
from helpers import recordings, tiers

from keras_transformer.sound.features import FeatureReader
from keras_transformer.sound.samples import SAMPLE_RATE, in_windows, read_blocks

pytest.importorskip("av")
soundfile = pytest.importorskip("soundfile")
SECONDS = 23


def tone(rate):
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(SECONDS * rate) / rate)).astype("float32")


def read(path, size=7 * SAMPLE_RATE):
    windows = list(in_windows(read_blocks(path), size))
    assert all(len(window) == size for window in windows[:-1])
    return np.concatenate(windows)


@pytest.mark.parametrize(
    "suffix, rate, channels, error",
    [
        ("wav", 16_000, 1, 1e-4),
        ("wav", 8_000, 2, 1e-3),
        ("flac", 44_100, 2, 1e-3),
        ("ogg", 22_050, 1, 0.05),
        ("mp3", 48_000, 2, 0.05),
        ("wav", 16_000, 9, 1e-3),  # FFmpeg has no layout of 9 channels
    ],
)
def test_formats_rates_and_channels(tmp_path, suffix, rate, channels, error):
    path = tmp_path / f"a.{suffix}"
    scale = np.linspace(0.5, 1.5, channels) if channels > 1 else np.ones(1)  # of mean 1
    soundfile.write(path, tone(rate)[:, None] * scale, rate)
    found = read(path)
    assert abs(len(found) - SECONDS * SAMPLE_RATE) <= 2
    inner = slice(SAMPLE_RATE, -SAMPLE_RATE)
    size = min(len(found), SECONDS * SAMPLE_RATE)
    gap = np.abs(found[:size] - tone(SAMPLE_RATE)[:size])[inner]
    assert gap.max() < error


@pytest.mark.parametrize("channels", tiers.quick([2, 3, 7, 8, 9, 20], 3, 9))
def test_channels_without_a_layout_are_averaged(channels):
    samples = np.stack([tone(48_000)] * channels)
    samples = samples * np.linspace(0.5, 1.5, channels)[:, None]
    data = recordings.written("webm", [(0, samples.astype("float32"))])
    found = np.concatenate(list(read_blocks(data)))
    size = min(len(found), SECONDS * SAMPLE_RATE)
    gap = np.abs(found[:size] - tone(SAMPLE_RATE)[:size])[SAMPLE_RATE:-SAMPLE_RATE]
    assert abs(len(found) - SECONDS * SAMPLE_RATE) <= 1000 and gap.max() < 0.05


@pytest.mark.parametrize("kinds", [[(44_100, 2), (22_050, 1)], [(16_000, 1), (48_000, 2)]])
def test_joined_files_may_differ_in_rate_and_channels(tmp_path, kinds):
    data = b""
    for rate, channels in kinds:
        soundfile.write(tmp_path / "part.mp3", np.stack([tone(rate)] * channels, axis=1), rate)
        data += (tmp_path / "part.mp3").read_bytes()
    (tmp_path / "whole.mp3").write_bytes(data)
    found = read(tmp_path / "whole.mp3")
    assert abs(len(found) / SAMPLE_RATE - 2 * SECONDS) < 0.3
    for start in (2, SECONDS + 2):  # both parts have the same tone
        part = found[start * SAMPLE_RATE :][: 4 * SAMPLE_RATE]
        assert np.abs(np.fft.rfft(part)).argmax() == 4 * 440


def test_a_relative_path_may_have_a_colon(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "at 10:30.wav", tone(8_000), 8_000)
    monkeypatch.chdir(tmp_path)
    assert len(read("at 10:30.wav")) > SAMPLE_RATE
    with pytest.raises(FileNotFoundError, match="no file 'at 11:30.wav'"):
        read("at 11:30.wav")


def test_a_file_that_becomes_shorter_while_it_is_read_has_a_clear_error(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(16_000), 16_000)
    reader = FeatureReader(tmp_path / "a.wav", 5)
    soundfile.write(tmp_path / "a.wav", tone(16_000)[:99_999], 16_000)
    with pytest.raises(ValueError, match="became shorter while it was read"):
        reader.window(0, reader.frames)


def test_files_that_hold_no_sound_have_a_clear_error(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="empty"):
        read(path)
    path.write_bytes(b"no sound at all" * 99)
    with pytest.raises(ValueError, match="cannot be read as sound"):
        read(path)
    soundfile.write(path, np.zeros(0, "float32"), 16_000)
    with pytest.raises(ValueError, match="no samples"):
        read(path)
    with pytest.raises(FileNotFoundError, match="no file"):
        read(tmp_path / "missing.wav")
