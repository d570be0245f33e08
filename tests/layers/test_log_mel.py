"""Log-mel features against Whisper features of `transformers`, on sound, tones and silence."""

import keras
import numpy as np
import pytest
from helpers.checks import numpy64

from keras_transformer import LogMel

LENGTH = 16_037


def sounds():
    """Returns fading noise, a tone before silence, and silence: (3, LENGTH)."""
    time = np.arange(LENGTH) / 16_000
    noise = np.random.default_rng(7).normal(size=LENGTH) * np.exp(-7 * time)
    tone = np.sin(2 * np.pi * 440 * time) * (time < 0.5)
    return np.stack([noise, tone, 0 * time]).astype("float32")


def test_features_match_transformers():
    whisper = pytest.importorskip("transformers").WhisperFeatureExtractor
    for mels in (80, 128):
        extract = whisper(feature_size=mels)
        expected = [extract._np_extract_fbank_features(row[None], "cpu") for row in sounds()]
        found = numpy64(LogMel(mels)(sounds()))
        assert found.shape == (3, LENGTH // 160, mels)
        np.testing.assert_allclose(found, np.swapaxes(np.concatenate(expected), 1, 2), atol=1e-4)


def test_a_row_does_not_depend_on_the_batch():
    layer = LogMel()
    alone = [numpy64(layer(row[None]))[0] for row in sounds()]
    np.testing.assert_allclose(numpy64(layer(sounds())), alone, atol=1e-6)


def test_a_saved_layer_keeps_its_bands():
    layer = LogMel.from_config(LogMel(7).get_config())
    assert layer.compute_output_shape((None, None)) == (None, None, 7)
    assert layer(keras.ops.zeros((2, 480))).shape == (2, 3, 7)
    assert not layer.weights
    with pytest.raises(ValueError, match="mels"):
        LogMel(0)
