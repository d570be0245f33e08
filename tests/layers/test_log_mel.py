"""Log-mel features of sound, tones and silence, against NumPy and `transformers`."""

import keras
import numpy as np
import pytest
from helpers.checks import numpy64

from keras_transformer import LogMel
from keras_transformer.sound.features import FeatureReader

LENGTH = 16_037


def sounds():
    """Returns fading noise, a tone before silence, and silence: (3, LENGTH)."""
    time = np.arange(LENGTH) / 16_000
    noise = np.random.default_rng(7).normal(size=LENGTH) * np.exp(-7 * time)
    tone = np.sin(2 * np.pi * 440 * time) * (time < 0.5)
    return np.stack([noise, tone, 0 * time]).astype("float32")


def in_numpy(sound, mels):
    """Whisper's features (T, M) of a sound: windows of 25 ms, steps of 10 ms, Slaney's bands."""
    padded = np.pad(sound.astype(float), 200, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    frames = [padded[start : start + 400] * window for start in range(0, len(sound) - 159, 160)]
    power = np.abs(np.fft.rfft(frames)) ** 2  # (T, 201)
    hertz = np.linspace(0, 8000, 201)
    # The scale of mels is linear up to 1,000 Hz, 15 mels, and then 27 mels are a factor of 6.4.
    top = 15 + 27 * np.log(8) / np.log(6.4)
    edges = np.linspace(0, top, mels + 2)
    edges = np.where(edges < 15, edges * 200 / 3, 1000 * 6.4 ** ((edges - 15) / 27))
    bands = [
        np.interp(hertz, edges[i : i + 3], [0, 1, 0], 0, 0) * 2 / (edges[i + 2] - edges[i])
        for i in range(mels)
    ]
    levels = np.log10(np.maximum(power @ np.transpose(bands), 1e-10))
    return (np.maximum(levels, levels.max() - 8) + 4) / 4


def in_transformers(sound, mels):
    extractor = pytest.importorskip("transformers").WhisperFeatureExtractor(feature_size=mels)
    return extractor._np_extract_fbank_features(sound[None], "cpu")[0].T


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("other", [in_numpy, in_transformers])
def test_features_match_other_code(other, mels):
    found = numpy64(LogMel(mels)(sounds()))
    assert found.shape == (3, LENGTH // 160, mels)
    np.testing.assert_allclose(found, [other(row, mels) for row in sounds()], atol=1e-4)


def test_a_saved_layer_keeps_its_bands():
    layer = LogMel.from_config(LogMel(7).get_config())
    assert layer.compute_output_shape((None, None)) == (None, None, 7)
    assert layer(keras.ops.zeros((2, 480))).shape == (2, 3, 7)
    assert not layer.weights
    with pytest.raises(ValueError, match="mels"):
        LogMel(0)


@pytest.mark.parametrize("length", [201, 359, LENGTH, 103 * 160 - 1])
def test_a_window_has_the_frames_of_a_file(length):
    """Zeros follow the sound, and features of 0 its last whole frame, as in `transcribe`."""
    found = LogMel(7, frames=102)(sounds()[:, :length])
    expected = [FeatureReader(row[:length], 7).window(0, 102) for row in sounds()]
    np.testing.assert_allclose(numpy64(found), expected, atol=1e-4)


def test_a_sound_that_does_not_fit_a_window_is_refused():
    layer = LogMel.from_config(LogMel(7, frames=3).get_config())
    assert layer(np.zeros((2, 639))).shape == layer.compute_output_shape((2, None)) == (2, 3, 7)
    for length in (0, 159, 640):
        with pytest.raises(ValueError, match=rf"160 to 480 samples at 16 kHz.*has {length}"):
            layer(np.zeros((1, length)))
    with pytest.raises(ValueError, match="frames"):
        LogMel(7, frames=0)
