"""Speech in noise, spectra of it, classical filters, and the score."""

import numpy as np
import pytest
from support import filters
from support.scores.separation import si_sdr
from support.sets import noisy_speech
from support.sets.noisy_speech import (
    NOISES,
    made_voices,
    mixtures,
    split_voices,
    with_other_speeds,
)
from support.sets.sound import read_wav, write_wav
from support.sets.spoken_digits import Recording


@pytest.fixture(scope="module")
def voices():
    return made_voices(speakers=3)


@pytest.mark.parametrize("kind", ["babble", *NOISES])
def test_noise_has_its_level(kind, voices):
    made = mixtures(np.random.default_rng(7), voices.train, voices.test, [kind], 5)
    noise = made.noisy - made.clean
    levels = 20 * np.log10(made.clean.std(axis=1) / noise.std(axis=1))
    np.testing.assert_allclose(levels, made.levels, atol=1e-3)
    assert made.levels == [0, 5, 10, 0, 5] and made.kinds == [kind] * 5
    np.testing.assert_allclose(made.noisy.std(axis=1), 1, atol=1e-5)
    assert len(made.texts) == 5 and all(made.texts)
    assert np.abs(np.diff(noise, axis=0)).max() > 0.1  # the noises differ


def test_a_text_has_all_words_of_its_sound_and_no_word_is_cut():
    draw, sizes = np.random.default_rng(1), {"one": 3000, "two": 5000, "three": 9000}
    spoken = [Recording(1 + draw.normal(size=n), word, "Eva") for word, n in sizes.items()]
    for _ in range(20):
        sound, text = noisy_speech.utterance(draw, spoken)
        inside = np.diff(np.concatenate([[0], sound != 0, [0]]))
        found = np.flatnonzero(inside < 0) - np.flatnonzero(inside > 0)
        assert found.tolist() == [sizes[word] for word in text.split()]
    long = spoken[0]._replace(samples=draw.normal(size=40000))
    sound, text = noisy_speech.utterance(draw, [long])
    assert text == "one" and sound[-1] != 0 and len(sound) == noisy_speech.LENGTH


def test_babble_has_no_recording_of_the_speaker(voices):
    loud = [one._replace(samples=np.sin(np.arange(3000.0))) for one in voices.test]
    others = [one for one in loud if one.speaker != "voice 0"]
    speech = [one for one in voices.train if one.speaker == "voice 0"]
    same, fewer = (
        mixtures(np.random.default_rng(3), speech, some, ["babble"], 1) for some in (loud, others)
    )
    np.testing.assert_array_equal(same.noisy, fewer.noisy)


def test_speakers_and_kinds_of_noise_are_in_one_set_only():
    kinds = [*noisy_speech.TRAIN_KINDS, *noisy_speech.VALID_KINDS, *noisy_speech.TEST_KINDS]
    assert sorted(kinds) == sorted(["babble", *NOISES])
    voices = split_voices(made_voices(), "voice 0")
    speakers = [{one.speaker for one in speech} for speech, _ in voices.values()]
    known = {
        f"voice {number}{speed}" for number in (1, 2, 3, 4) for speed in ("", " 0.85", " 1.18")
    }
    assert speakers == [known, {"voice 5"}, {"voice 0"}]
    used = [{id(one) for one in speech + others} for speech, others in voices.values()]
    assert sum(map(len, used)) == len(set.union(*used))


def test_a_copy_at_another_speed_has_another_pitch():
    tone = Recording(np.sin(2 * np.pi * 400 * np.arange(8000) / 8000), "one", "Eva")
    same, fast = with_other_speeds([tone], speeds=[1.25])
    assert same is tone and fast.speaker == "Eva 1.25" and len(fast.samples) == 6400
    assert np.abs(np.fft.rfft(fast.samples)).argmax() / len(fast.samples) * 8000 == 500


def test_spectra_agree_with_scipy_and_invert():
    from scipy.signal import stft

    sounds = np.random.default_rng(5).normal(size=(3, 7 * filters.HOP))
    found = filters.spectra(sounds)
    options = dict(nperseg=2 * filters.HOP, boundary=None, padded=False, scaling="spectrum")
    padded = np.pad(sounds, ((0, 0), (filters.HOP, filters.HOP)))
    expected = stft(padded, window=filters.WINDOW, **options)[2] * filters.WINDOW.sum()
    np.testing.assert_allclose(found, expected.transpose(0, 2, 1), atol=1e-3)
    np.testing.assert_allclose(filters.sounds_of(found), sounds, atol=1e-5)


@pytest.mark.parametrize("method", [filters.spectral_subtraction, filters.wiener_filter])
def test_a_filter_removes_steady_noise(method, voices):
    made = mixtures(np.random.default_rng(11), voices.train, voices.test, ["white"], 6)
    sounds = filters.sounds_of(method(filters.spectra(made.noisy)))
    gain = si_sdr(sounds, made.clean) - si_sdr(made.noisy, made.clean)
    assert gain.min() > 2


def test_a_written_sound_is_read_again(tmp_path):
    samples = np.random.default_rng(17).normal(size=1009)
    write_wav(tmp_path / "a.wav", samples, 8000)
    found, rate = read_wav(tmp_path / "a.wav")
    assert rate == 8000
    np.testing.assert_allclose(found, 0.9 * samples / np.abs(samples).max(), atol=1e-4)
