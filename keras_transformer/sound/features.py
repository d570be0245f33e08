"""Windows of sound files for Whisper in constant memory: log-mel features, or samples.

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


class WindowReader:
    """The base of readers that read windows of a sound.

    The sound is read twice. The first pass, in the constructor, finds its length. The second pass
    serves `window`. A subclass defines `_blocks(warn)`, which yields arrays (A, ...), and sets
    `_per_frame`.

    Args:
        sound: as in `sound.read_blocks`, or a `VoicedSound`. Arrays must not change meanwhile.
        most_seconds: float, the longest sound. Defaults to `None`: no limit.

    Attributes:
        frames: int, number of whole frames of 10 ms in the file.
        duration: float, their length in seconds.

    Raises:
        FileNotFoundError, ImportError, TypeError, ValueError: as in `sound.read_blocks`.
        ValueError: the sound is too long. It is not read to its end.
    """

    _per_frame: int = 1  # entries of the first axis of a block

    def __init__(self, sound: Sound | VoicedSound, most_seconds: float | None = None):
        self._sound = sound if isinstance(sound, VoicedSound) else hold(sound)
        total = 0
        for block in self._blocks(warn=True):
            self._see(block)
            total += len(block)
            check_length(total / self._per_frame / FRAMES_PER_SECOND, most_seconds)
        self._total = total
        self.frames: int = total // self._per_frame
        self.duration: float = self.frames / FRAMES_PER_SECOND
        self._rest = self._blocks(warn=False)  # the first pass has warned
        self._first, self._kept = 0, np.zeros((0,), np.float32)

    def window(self, start: int, length: int) -> Array:
        """Returns the part of the sound that a model reads as a window.

        Args:
            start: int, the first frame, not before the previous call's first frame.
            length: int, number of frames.
        """
        raise NotImplementedError

    def _blocks(self, warn: bool) -> Iterator[Array]:
        raise NotImplementedError

    def _see(self, block: Array) -> None:
        """Learns from a block of the first pass."""

    def _part(self, start: int, stop: int) -> Array:
        """Returns entries of the blocks, up to the end of the sound."""
        while self._first + len(self._kept) < min(stop, self._total):
            block = next(self._rest, None)
            if block is None:
                raise ValueError("The sound became shorter while it was read. Read it again.")
            self._kept = np.concatenate([self._kept, block]) if len(self._kept) else block
            self._drop(start)
        self._drop(start)
        return self._kept[: stop - start]

    def _drop(self, start: int) -> None:
        """Drops the entries before `start`."""
        count = min(start - self._first, len(self._kept))
        self._first, self._kept = self._first + count, self._kept[count:]


class FeatureReader(WindowReader):
    """Reads windows of a file's features.

    OpenAI's Whisper clamps all windows at 8 below the loudest feature of the file. The first pass
    finds it.

    Args:
        sound, most_seconds: as in `WindowReader`.
        mels: int, M.

    Example:

    >>> FeatureReader("a.wav", 80).window(0, 3000).shape  # doctest: +SKIP
    (3000, 80)
    """

    def __init__(self, sound: Sound | VoicedSound, mels: int, most_seconds: float | None = None):
        self._filters, self._loudest = mel_filters(mels), np.float32(-np.inf)
        super().__init__(sound, most_seconds)

    def _blocks(self, warn: bool) -> Iterator[Array]:
        return log_mel_blocks(self._sound, self._filters, warn)

    def _see(self, block: Array) -> None:
        self._loudest = max(self._loudest, block.max(initial=-np.inf))

    def window(self, start: int, length: int) -> Array:
        """Returns features of frames, float32 (length, M), with zeros after the end of the file."""
        found = self._part(start, start + length)
        features = np.zeros((length, self._filters.shape[1]), np.float32)
        lowest = np.float32(self._loudest - RANGE)
        features[: len(found)] = (np.maximum(found, lowest) + 4.0) / 4.0
        return features


class SampleReader(WindowReader):
    """Reads windows of a file's samples, for a model with a `LogMel` that fills its window.

    Example:

    >>> SampleReader(np.zeros(16_000, "int16")).window(60, 3000).shape
    (6400,)
    """

    _per_frame = HOP

    def _blocks(self, warn: bool) -> Iterator[Array]:
        return in_windows(sample_blocks(self._sound, warn), BLOCK)

    def window(self, start: int, length: int) -> Array:
        """Returns the samples of frames, float32 (N,), up to the end of the file.

        The last frame reads the samples after its own, too, so N is at most 160 length + 159.
        """
        return self._part(HOP * start, HOP * (start + length + 1) - 1)


def sample_blocks(sound: Sound | VoicedSound, warn: bool) -> Iterator[Array]:
    """Yields float32 samples (N,) in blocks of any size. Arguments are as in `log_mel_blocks`."""
    return sound.blocks() if isinstance(sound, VoicedSound) else read_blocks(sound, warn)


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
    for samples in in_windows(sample_blocks(sound, warn), BLOCK):
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
