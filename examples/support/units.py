"""Speech without a model: recordings of a speaker's words are joined, or their means.

Shapes: S frames, F bands.
"""

import numpy as np
from support.sets.sound import WINDOW, log_bands, sound_of


def units(recordings):
    """Groups recordings by speaker and word, and by word.

    Args:
        recordings: list of `Recording`.

    Returns:
        Dict from pairs (speaker, word), and from words, to lists of `Recording`.

    Example:

    >>> from support.sets.spoken_digits import dialled_digits
    >>> found = units(dialled_digits().train)
    >>> len(found["line 0", "one"]), len(found["one"])
    (10, 30)
    """
    found = {}
    for one in recordings:
        for key in ((one.speaker, one.word), one.word):
            found.setdefault(key, []).append(one)
    return found


def unit(found, part):
    """Returns the value of a dict with the keys of `units` for the speaker and word of `part`.

    If the speaker never says the word, it is the value of the word.

    Example:

    >>> from support.sets.spoken_digits import Recording
    >>> unit({("Eva", "one"): 3, "one": 7}, Recording(None, "one", "Ada"))
    7
    """
    return found.get((part.speaker, part.word), found[part.word])


def mean_frames(recordings):
    """Computes the mean spectrogram of recordings, stretched to their mean length.

    Args:
        recordings: list of `Recording`.

    Returns:
        (S, 128), as `log_bands` with 128 bands.

    Example:

    >>> from support.sets.spoken_digits import dialled_digits
    >>> mean_frames(dialled_digits().train[:10]).shape[1]
    128
    """
    every = [log_bands(one.samples, WINDOW // 2) for one in recordings]
    steps = np.linspace(0, 1, round(np.mean([len(frames) for frames in every])))
    return np.mean([frames[np.rint(steps * (len(frames) - 1)).astype(int)] for frames in every], 0)


def joined_units(recordings, drawn, random):
    """Joins recordings of the words of sequences, or means of all recordings of a word.

    If a speaker never says a word, it is taken from the others.

    Args:
        recordings: list of `Recording`, also of pauses.
        drawn: list of N sequences of `spoken_digits.sequences`, whose words are spoken.
        random: `np.random.Generator`, chooses recordings.

    Returns:
        Dict from a method to the list of N sounds: "training recordings" joins random ones, "mean
        recordings" joins mean spectrograms, and "mean spectra" repeats a mean spectrum of each
        word.

    Example:

    >>> from support.sets.spoken_digits import dialled_digits
    >>> train = dialled_digits().train
    >>> sounds = joined_units(train, [[train[0]], [train[9]]], np.random.default_rng(0))
    >>> len(sounds["mean spectra"])
    2
    """
    found = units(recordings)
    means = {key: mean_frames(some) for key, some in found.items()}
    flat = {key: np.tile(some.mean(axis=0), (len(some), 1)) for key, some in means.items()}

    def joined(choose):
        return [np.concatenate([choose(part) for part in parts]) for parts in drawn]

    def any_recording(part):
        some = unit(found, part)
        return some[random.integers(len(some))].samples

    frames = {"mean recordings": means, "mean spectra": flat}
    return {"training recordings": joined(any_recording)} | {
        name: [sound_of(some) for some in joined(lambda part, table=table: unit(table, part))]
        for name, table in frames.items()
    }
