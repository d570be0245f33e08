"""Sounds of single digits, and sequences of them."""

import io
import tarfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from support.sets.sound import read_wav

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PAUSE = ","  # the word of a pause
RATE = 8000  # samples per second
TEST, VALID = range(5), range(5, 10)  # numbers of recordings; the test set is the official one
# Tones of a telephone's keys, in hertz (ITU-T Q.23): one by the row, one by the column.
ROWS, COLUMNS = (697, 770, 852, 941), (1209, 1336, 1477)


class Recording(NamedTuple):
    """The sound of one digit.

    Attributes:
        samples: float32 array from -1 to 1, 8,000 a second.
        word: str, the digit in letters.
        speaker: str.
    """

    samples: np.ndarray
    word: str
    speaker: str


class RecordingSets(NamedTuple):
    """Lists of `Recording` for training, validation and test."""

    train: list[Recording]
    valid: list[Recording]
    test: list[Recording]


def spoken_digits(folder):
    """Reads the Free Spoken Digit Dataset: six speakers say each digit 50 times.

    The first five recordings of each are the official test set, the next five the validation set.

    Args:
        folder: folder of "fsdd-recordings.tar", an archive of files `DIGIT_SPEAKER_NUMBER.wav`.

    Returns:
        `RecordingSets`.

    Raises:
        ValueError: a file has another name or another kind of sound, or a set is empty.
        OSError: there is no such archive, or it cannot be read.

    Example:

    >>> len(spoken_digits("speech").test)  # doctest: +SKIP
    300
    """
    path, numbered = Path(folder, "fsdd-recordings.tar"), []
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            if member.name.endswith(".wav"):
                numbered.append(_recording(member.name, archive.extractfile(member).read()))
    return _sets(numbered, path)


def _recording(name, data):
    digit, _, rest = Path(name).stem.partition("_")
    speaker, _, number = rest.rpartition("_")
    if not (digit.isdecimal() and number.isdecimal() and int(digit) < 10 and speaker):
        raise ValueError(f"{name} must be called DIGIT_SPEAKER_NUMBER.wav.")
    try:
        samples, rate = read_wav(io.BytesIO(data))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if rate != RATE:
        raise ValueError(f"{name} has {rate} samples a second, but must have {RATE}.")
    return int(number), Recording(samples, WORDS[int(digit)], speaker)


def _sets(numbered, path):
    parts = RecordingSets([], [], [])
    for number, recording in numbered:
        part = "test" if number in TEST else "valid" if number in VALID else "train"
        getattr(parts, part).append(recording)
    if not all(parts):
        counts = ", ".join(f"{name}: {len(part)}" for name, part in parts._asdict().items())
        raise ValueError(f"{path} has no recordings for some of the sets: {counts}.")
    return parts


def dialled_digits():
    """Makes tones of a telephone's keys in noise instead of speech, the same in every call.

    Returns:
        `RecordingSets`; each "speaker" is a line with a level of noise.
    """
    draw, numbered = np.random.default_rng(0), []
    for line, noise in enumerate((0.01, 0.03, 0.1)):
        for digit, word in enumerate(WORDS):
            row, column = divmod(digit - 1, 3) if digit else (3, 1)
            for number in range(20):
                seconds = np.arange(int(draw.uniform(0.1, 0.3) * RATE)) / RATE
                tones = [np.sin(2 * np.pi * f * seconds) for f in (ROWS[row], COLUMNS[column])]
                samples = 0.3 * sum(tones) + draw.normal(0, noise, len(seconds))
                samples = samples.clip(-1, 1).astype("float32")
                numbered.append((number, Recording(samples, word, f"line {line}")))
    return _sets(numbered, "")


def sequences(recordings, count, shortest, longest, seed=0):
    """Draws sequences of digits, each by one speaker, with short pauses of faint noise.

    Args:
        recordings: list of `Recording`, to draw from.
        count: int, number of sequences.
        shortest, longest: int, least and greatest number of digits in a sequence.
        seed: int; the same seed draws the same sequences.

    Returns:
        List of lists of `Recording`. Each second one is a pause, whose word is ",".

    Raises:
        ValueError: there are no recordings, or not 1 <= shortest <= longest.

    Example:

    >>> (parts,) = sequences(dialled_digits().test, 1, shortest=3, longest=3)
    >>> [part.word == PAUSE for part in parts]
    [False, True, False, True, False]
    """
    if not recordings or not 1 <= shortest <= longest:
        raise ValueError(
            f"There must be recordings, and 1 <= shortest <= longest, but there are "
            f"{len(recordings)} recordings, shortest {shortest}, longest {longest}."
        )
    draw = np.random.default_rng(seed)
    speakers = {}
    for recording in recordings:
        speakers.setdefault(recording.speaker, []).append(recording)
    names, found = sorted(speakers), []
    for _ in range(count):
        of_one = speakers[names[draw.integers(len(names))]]
        chosen = draw.integers(len(of_one), size=draw.integers(shortest, longest + 1))
        parts = []
        for number in chosen:
            pause = draw.normal(0, 10 ** draw.uniform(-4, -2), draw.integers(400, 2000))
            one = of_one[number]
            parts += [Recording(pause.astype("float32"), PAUSE, one.speaker), one]
        found.append(parts[1:])  # no pause before the first
    return found


def joined(recordings, count, shortest, longest, seed=0):
    """Makes the sounds of `sequences`, with the same arguments and errors.

    Returns:
        List of float32 arrays of samples, and list of str, such as "two seven one".

    Example:

    >>> sounds, texts = joined(dialled_digits().test, 2, shortest=3, longest=5)
    >>> len(texts[0].split()) in (3, 4, 5)
    True
    """
    drawn = sequences(recordings, count, shortest, longest, seed)
    sounds = [np.concatenate([part.samples for part in parts]) for parts in drawn]
    return sounds, [" ".join(part.word for part in parts[::2]) for parts in drawn]
