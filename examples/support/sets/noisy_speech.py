"""Speech in noise, mixed at a level in dB, and synthetic voices.

Shapes: N mixtures, L samples, S frames, F frequencies.
"""

from itertools import product
from typing import NamedTuple

import keras
import numpy as np
from scipy.signal import oaconvolve
from support.filters import rows_of, spectra
from support.sets.spoken_digits import RATE, WORDS, Recording, RecordingSets

LENGTH = 2**14  # samples of a mixture: two seconds
LEVELS = (0, 5, 10)  # dB of the speech above the noise
NOISES = {}  # dict from a kind to a function of a generator and L


def noise(function):
    NOISES[function.__name__] = function
    return function


def slow(draw, size, seconds):
    """Draws a curve (L,) around 0 that changes within about `seconds`."""
    points = draw.normal(size=int(size / RATE / seconds) + 3)
    return np.interp(np.arange(size), np.arange(len(points)) * seconds * RATE, points)


def shaped(draw, size, gain):
    """Draws noise; `gain` is a function of frequencies from 0 to 1."""
    spectrum = np.fft.rfft(draw.normal(size=size))
    return np.fft.irfft(spectrum * gain(np.linspace(1e-3, 1, len(spectrum))), size)


def harmonics(phase, weights):
    """Sums sines of multiples of `phase`, (L,) in cycles."""
    wave, total = np.exp(2j * np.pi * phase), 0
    for weight in weights[::-1]:  # a polynomial of the first wave
        total = (total + weight) * wave
    return total.imag


def clicks(draw, size, rate, low, high):
    """Draws `rate` clicks a second that ring for some ms, at frequencies from low to high."""
    found, time = np.zeros(size), np.arange(400) / RATE
    for _ in range(4):
        ringing = np.exp(-time / draw.uniform(0.001, 0.01))
        ringing *= np.sin(2 * np.pi * draw.uniform(low, high) * time)
        hits = (draw.random(size) < rate / 4 / RATE) * draw.normal(size=size)
        found += oaconvolve(hits, ringing)[:size]
    return found + 1e-3 * draw.normal(size=size)  # there may be no hit


@noise
def white(draw, size):
    return draw.normal(size=size)


@noise
def pink(draw, size):
    return shaped(draw, size, lambda f: f**-0.5)


@noise
def coloured(draw, size):
    gains = 10 ** draw.uniform(-1, 1, size=9)
    swell = np.exp(draw.uniform(0, 1) * slow(draw, size, draw.uniform(0.05, 0.5)))
    return swell * shaped(draw, size, lambda f: np.interp(f, np.linspace(0, 1, 9), gains))


@noise
def hum(draw, size):
    phase = draw.choice([50, 60, 100, 120]) * np.arange(size) / RATE + draw.random()
    return harmonics(phase, draw.normal(size=20) / np.arange(1, 21)) + 0.1 * pink(draw, size) / 5


@noise
def whistles(draw, size):
    tones = 0.01 * draw.normal(size=size)
    for _ in range(draw.integers(1, 4)):
        hertz = draw.uniform(300, 3000) * np.exp(0.2 * draw.random() * slow(draw, size, 0.2))
        tones += harmonics(np.cumsum(hertz) / RATE, [draw.random()])
    return tones


@noise
def knocks(draw, size):
    return clicks(draw, size, draw.uniform(5, 50), 100, 3500)


@noise
def engine(draw, size):
    phase = np.cumsum(draw.uniform(25, 45) * np.exp(0.1 * slow(draw, size, 0.4))) / RATE
    return harmonics(phase, draw.normal(size=30) / np.arange(1, 31) ** 0.5) + pink(draw, size) / 5


@noise
def surf(draw, size):
    return np.exp(slow(draw, size, 0.5)) * pink(draw, size)


@noise
def rain(draw, size):
    return clicks(draw, size, 1500, 1000, 4000) + 0.1 * draw.normal(size=size)


@noise
def siren(draw, size):
    time = np.arange(size) / RATE * draw.uniform(0.5, 2) + draw.random()
    hertz = draw.uniform(500, 700) * (1 + np.abs(time % 2 - 1))  # up and down
    return harmonics(np.cumsum(hertz) / RATE, [1, 0.5, 0.3]) + 0.01 * draw.normal(size=size)


@noise
def wind(draw, size):
    gusts = np.exp(slow(draw, size, 0.3))
    return gusts * shaped(draw, size, lambda f: 1 / f) / 50 + gusts**2 * pink(draw, size) / 50


TRAIN_KINDS = ("babble", "white", "pink", "coloured", "hum", "whistles", "knocks")
VALID_KINDS, TEST_KINDS = ("engine", "surf"), ("rain", "siren", "wind")


class Mixtures(NamedTuple):
    """Sounds with and without noise.

    Attributes:
        noisy, clean: float32 (N, L).
        kinds: list of N str, the kinds of noise.
        levels: list of N int, the dB of the speech above the noise.
        texts: list of N str, such as "two seven one".
    """

    noisy: np.ndarray
    clean: np.ndarray
    kinds: list[str]
    levels: list[int]
    texts: list[str]


def utterance(draw, recordings):
    """Joins recordings at about one loudness, with pauses of silence.

    Args:
        draw: `numpy.random.Generator`.
        recordings: list of `Recording` of one speaker.

    Returns:
        float (L,), and str, its words. Only a first recording that is longer than L is cut.
    """
    sound, words, size = np.zeros(LENGTH), [], 0
    while True:
        one = recordings[draw.integers(len(recordings))]
        gain = draw.uniform(0.7, 1.4) / (one.samples.std() + 1e-6)
        begin = size + draw.integers(400, 2400)
        size = begin + len(one.samples)
        if words and size > LENGTH:
            return sound, " ".join(words)
        sound[begin:size] = gain * one.samples[: LENGTH - begin]
        words.append(one.word)


def mixtures(draw, recordings, others, kinds, count):
    """Mixes speech with noise.

    Args:
        draw: `numpy.random.Generator`.
        recordings: list of `Recording`, the speech.
        others: list of `Recording` for babble: five voices, none of them the speaker.
        kinds: sequence of str, keys of `NOISES` or "babble". Kinds and levels take turns.
        count: int, N.

    Returns:
        `Mixtures`. The noisy sounds have a standard deviation of 1.

    Raises:
        ValueError: a kind is unknown, or there are no recordings for one of the parts.

    Example:

    >>> draw, sets = np.random.default_rng(0), made_voices()
    >>> mixtures(draw, sets.train, sets.test, ["pink"], 2).noisy.shape
    (2, 16384)
    """
    unknown, speakers = {*kinds} - {"babble", *NOISES}, {}
    for recording in recordings:
        speakers.setdefault(recording.speaker, []).append(recording)
    if unknown or not speakers or len({one.speaker for one in others} | {*speakers}) < 2:
        raise ValueError(
            "There must be speech, babble of another speaker, and known kinds of noise, but there "
            f"are {len(recordings)} recordings, {len(others)} others, and the unknown kinds "
            f"{sorted(unknown)}."
        )
    names, turns = sorted(speakers), list(product(kinds, LEVELS))
    turns = [turns[number % len(turns)] for number in range(count)]
    clean = np.empty((count, LENGTH), "float32")
    noisy, texts = np.empty_like(clean), []
    for row, (kind, level) in enumerate(turns):
        speaker = names[draw.integers(len(names))]
        speech, text = utterance(draw, speakers[speaker])
        texts.append(text)
        if kind == "babble":
            voices = [one for one in others if one.speaker != speaker]
            sound = sum(utterance(draw, voices)[0] for _ in range(5))
        else:
            sound = NOISES[kind](draw, LENGTH)
        sound *= speech.std() / sound.std() / 10 ** (level / 20)
        scale = (speech + sound).std()
        clean[row], noisy[row] = speech / scale, (speech + sound) / scale
    kinds, levels = zip(*turns, strict=True)
    return Mixtures(noisy, clean, [*kinds], [*levels], texts)


class FreshMixtures(keras.utils.PyDataset):
    """Batches of new mixtures in each epoch: rows (N, S, 2 F) of noisy and of clean sounds.

    Args:
        voices: tuple of two lists of `Recording`: speech, and others for babble.
        steps: int, batches in an epoch.
        seed: int.
        size: int, N. Defaults to 4.
    """

    def __init__(self, voices, steps, seed, size=4):
        super().__init__()
        self.voices, self.steps, self.seed, self.size, self.epoch = voices, steps, seed, size, 0

    def __len__(self):
        return self.steps

    def __getitem__(self, step):
        draw = np.random.default_rng([self.seed, self.epoch, step])
        kinds = draw.permutation(TRAIN_KINDS)
        return row_pairs(mixtures(draw, *self.voices, kinds, self.size))

    def on_epoch_end(self):
        self.epoch += 1


def row_pairs(made):
    """Returns rows (N, S, 2 F) of noisy and of clean sounds."""
    return tuple(rows_of(spectra(sounds)) for sounds in (made.noisy, made.clean))


def with_other_speeds(recordings, speeds=(0.85, 1.18)):
    """Adds faster and slower copies, which sound like other speakers.

    Args:
        recordings: list of `Recording`.
        speeds: sequence of float. Pitch and formants change by the same factor.

    Returns:
        List of `Recording`. A copy has another speaker, such as "theo 0.85".
    """
    found = list(recordings)
    for speed, (samples, word, speaker) in product(speeds, recordings):
        places = np.arange(0, len(samples) - 1, speed)
        samples = np.interp(places, np.arange(len(samples)), samples).astype("float32")
        found.append(Recording(samples, word, f"{speaker} {speed}"))
    return found


def split_voices(sets, speaker):
    """Divides recordings so that the speakers of the speech differ between the sets.

    The speech of the test is by `speaker`, of the validation by the speaker before in the alphabet,
    of the training by all others, also at other speeds. Babble has other recordings. The speech of
    the test is from the test set, because a recognizer may know the speaker's other recordings.

    Args:
        sets: `RecordingSets`, with the same speakers in each.
        speaker: str.

    Returns:
        Dict from "train", "valid" and "test" to two lists of `Recording`: speech and babble. Only
        training takes both from the same list.

    Raises:
        ValueError: there is no such speaker.
    """
    names = sorted({one.speaker for one in sets.train})
    if speaker not in names:
        raise ValueError(f"speaker must be one of {', '.join(names)}; got {speaker}.")
    valid = names[names.index(speaker) - 1]
    every = [one for some in sets for one in some]
    known = [one for one in sets.train if one.speaker not in (speaker, valid)]
    known = with_other_speeds(known)
    return {
        "train": (known, known),
        "valid": (
            [one for one in every if one.speaker == valid],
            [one for one in sets.valid if one.speaker not in (speaker, valid)],
        ),
        "test": (
            [one for one in sets.test if one.speaker == speaker],
            [one for one in sets.test if one.speaker not in (speaker, valid)],
        ),
    }


def made_voices(speakers=6, times=4):
    """Makes sounds of "digits" instead of speech: harmonics of a pitch, with two formants.

    Args:
        speakers: int. Each one has another pitch. Defaults to 6.
        times: int, how often each says each digit. Defaults to 4.

    Returns:
        `RecordingSets`, with the same speakers in each.
    """
    draw, sets = np.random.default_rng(0), RecordingSets([], [], [])
    for speaker, word, time in product(range(speakers), WORDS, range(times)):
        size, number = draw.integers(2000, 4000), WORDS.index(word)
        pitch = (100 + 25 * speaker) * np.exp(0.1 * slow(draw, size, 0.2))
        formants = np.array([300 + 60 * number, 1000 + 250 * (number * 3 % 10)])
        hertz = np.arange(1, 16)[:, None] * (100 + 25 * speaker)
        weights = np.exp(-np.square((hertz - formants) / 150)).sum(axis=1)
        samples = harmonics(np.cumsum(pitch) / RATE, weights) * np.hanning(size)
        part = sets[(2, 1)[time] if time < 2 else 0]
        part.append(Recording(samples.astype("float32"), word, f"voice {speaker}"))
    return sets
