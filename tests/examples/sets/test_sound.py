"""From WAV files to frames: frequencies end up in their bands, and what does not fit is told."""

import io
import wave

import numpy as np
import pytest
from support.sets.sound import log_bands, read_wav


def wav(samples, channels=1, width=2, rate=8000):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(np.asarray(samples, "<i2").tobytes())
    return file.getvalue()


def test_samples_come_back(tmp_path):
    data = wav([0, 2**14, -(2**15)], rate=16000)
    (tmp_path / "a.wav").write_bytes(data)
    for file in (tmp_path / "a.wav", io.BytesIO(data)):
        samples, rate = read_wav(file)
        np.testing.assert_array_equal(samples, np.array([0, 0.5, -1], "float32"))
        assert rate == 16000 and samples.dtype == np.float32


@pytest.mark.parametrize("options", [{"channels": 2}, {"width": 1}])
def test_other_kinds_of_sound_are_refused(options):
    with pytest.raises(ValueError, match="one channel and 2 bytes a sample"):
        read_wav(io.BytesIO(wav([1, 2], **options)))


@pytest.mark.parametrize("data", [b"", b"no sound at all"])
def test_other_files_are_refused(data):
    with pytest.raises(ValueError, match="no WAV file that can be read"):
        read_wav(io.BytesIO(data))


@pytest.mark.parametrize("band", [0, 7, 23])
def test_a_tone_is_loudest_in_its_band(band):
    width = 4000 * (5 / 128)  # 24 bands of 5 frequencies each, of 128
    tone = np.sin(2 * np.pi * (band + 0.6) * width * np.arange(4000) / 8000)
    frames = log_bands(tone)
    assert frames.shape == (1 + (4000 - 256) // 80, 24) and frames.dtype == np.float32
    assert (frames.argmax(axis=1) == band).all()


def test_silence_and_short_sound_have_frames_that_are_not_zero():
    for samples in (np.zeros(500), np.zeros(0), np.ones(10)):
        frames = log_bands(samples, bands=8)
        assert len(frames) >= 1 and frames.any(axis=1).all() and np.isfinite(frames).all()


@pytest.mark.parametrize("samples, bands", [(np.zeros((2, 300)), 24), (np.zeros(300), 129)])
def test_other_samples_and_bands_are_refused(samples, bands):
    with pytest.raises(ValueError, match="samples must have one axis"):
        log_bands(samples, bands)
