"""Computes Whisper's log-mel features of sound files, in constant memory.

Shapes: N samples, S frames, M mel bands.
"""

from collections.abc import Iterator

import numpy as np

from keras_transformer.sound.mel import HOP, SAMPLE_RATE, WINDOW, hann_window, mel_filters
from keras_transformer.sound.samples import (
    BLOCK,
    check_length,
    hold,
    in_windows,
    read_blocks,
)
from keras_transformer.sound.voice_activity import VoicedSound
from keras_transformer.types import Array, Sound

FRAMES_PER_SECOND = SAMPLE_RATE // HOP
RANGE = 8.0  # features are clamped at this distance below the loudest one, in powers of 10


class FeatureReader:
    """Reads windows of a file's features.

    The file is read twice. The first pass, in the constructor, finds the length and the loudest
    feature, because OpenAI's Whisper clamps all windows at 8 below the loudest feature of the file.
    The second pass serves `window`.

    Args:
        sound: as in `sound.read_blocks`, or a `VoicedSound`. Arrays must not change meanwhile.
        mels: int, M.
        most_seconds: float, the longest sound. Defaults to `None`: no limit.

    Attributes:
        frames: int, number of whole frames of 10 ms in the file.
        duration: float, their length in seconds.

    Raises:
        FileNotFoundError, ImportError, TypeError, ValueError: as in `sound.read_blocks`.
        ValueError: the sound is too long. It is not read to its end.

    Example:

    >>> FeatureReader("a.wav", 80).window(0, 3000).shape  # doctest: +SKIP
    (3000, 80)
    """

    def __init__(self, sound: Sound | VoicedSound, mels: int, most_seconds: float | None = None):
        filters, loudest = mel_filters(mels), -np.inf
        sound = sound if isinstance(sound, VoicedSound) else hold(sound)
        self.frames: int = 0
        for block in log_mel_blocks(sound, filters):
            loudest = max(loudest, block.max(initial=-np.inf))
            self.frames += len(block)
            check_length(self.frames / FRAMES_PER_SECOND, most_seconds)
        self.duration: float = self.frames / FRAMES_PER_SECOND
        self._lowest = np.float32(loudest - RANGE)
        self._blocks = log_mel_blocks(sound, filters, warn=False)  # it has warned already
        self._first, self._kept = 0, np.zeros((0, mels), np.float32)

    def window(self, start: int, length: int) -> Array:
        """Returns features of frames, float32 (length, M), with zeros after the end of the file.

        Args:
            start: int, the first frame, not before the previous call's first frame.
            length: int, number of frames.
        """
        while self._first + len(self._kept) < min(start + length, self.frames):
            block = next(self._blocks, None)
            if block is None:
                raise ValueError("The sound became shorter while it was read. Read it again.")
            self._kept = np.concatenate([self._kept, block])
            self._drop(start)
        self._drop(start)
        found = self._kept[:length]
        features = np.zeros((length, found.shape[1]), np.float32)
        features[: len(found)] = (np.maximum(found, self._lowest) + 4.0) / 4.0
        return features

    def _drop(self, start: int) -> None:
        """Drops the frames before `start`."""
        count = min(start - self._first, len(self._kept))
        self._first, self._kept = self._first + count, self._kept[count:]


def log_mel_blocks(
    sound: Sound | VoicedSound, filters: Array, warn: bool = True
) -> Iterator[Array]:
    """Yields blocks (S, M) of the base-10 logarithms of mel bands, float32, before clamping.

    Frame i is centred at sample 160 i. The file is reflected at its start and has zeros after its
    end.

    Args:
        sound: as in `FeatureReader`.
        filters: (F, M), from `mel_filters`.
        warn: as in `sound.read_blocks`.
    """
    window, rest, total, done = hann_window(), None, 0, 0
    blocks = sound.blocks() if isinstance(sound, VoicedSound) else read_blocks(sound, warn)
    for samples in in_windows(blocks, BLOCK):
        total += len(samples)
        if rest is None:
            rest = np.pad(samples, (WINDOW // 2, 0), mode="reflect")
        else:
            rest = np.concatenate([rest, samples])
        count = max(0, (len(rest) - WINDOW) // HOP + 1)
        yield _log_mel(rest, count, window, filters)
        rest, done = rest[count * HOP :], done + count
    if rest is None:  # no speech at all
        return
    yield _log_mel(np.pad(rest, (0, WINDOW)), total // HOP - done, window, filters)


def _log_mel(samples: Array, count: int, window: Array, filters: Array) -> Array:
    """Computes log-mel bands (count, M) of the first frames of samples (N,)."""
    if count == 0:
        return np.zeros((0, filters.shape[1]), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP][:count]
    power = np.abs(np.fft.rfft(frames * window).astype(np.complex64)) ** 2
    return np.log10(np.maximum(power @ filters, np.float32(1e-10)))
