"""Log-mel features of sound, tones and silence, against `transformers`."""

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


@pytest.mark.parametrize("mels", [80, 128])
def test_features_match_transformers(mels):
    extractor = pytest.importorskip("transformers").WhisperFeatureExtractor(feature_size=mels)
    expected = [extractor._np_extract_fbank_features(row[None], "cpu")[0].T for row in sounds()]
    found = numpy64(LogMel(mels)(sounds()))
    assert found.shape == (3, LENGTH // 160, mels)
    np.testing.assert_allclose(found, expected, atol=1e-4)


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
