"""Reads sound files as samples at 16 kHz, block by block, in constant memory.

soundfile decodes WAV, FLAC, OGG and MP3; soxr resamples.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_transformer.types import Array, StrPath

SAMPLE_RATE = 16_000  # samples per second
BLOCK = 10  # seconds


def read_windows(path: StrPath, size: int) -> Iterator[Array]:
    """Consecutive windows of a sound file, mixed to one channel.

    Args:
        path: str or path-like, a WAV, FLAC, OGG or MP3 file.
        size: int, samples of a window.

    Returns:
        Iterator of float32 arrays (size,). The last one may be shorter.

    Raises:
        FileNotFoundError: there is no such file.
        ImportError: soundfile or soxr is missing.
        ValueError: the file is empty, damaged, without samples or of another format.
    """
    waiting: list[Array] = []
    for block in read_blocks(path):
        waiting.append(block)
        if sum(map(len, waiting)) >= size:
            samples = np.concatenate(waiting)
            whole = len(samples) // size * size
            yield from samples[:whole].reshape(-1, size)
            waiting = [samples[whole:]]
    samples = np.concatenate(waiting) if waiting else np.zeros(0, np.float32)
    if len(samples):
        yield samples


def read_blocks(path: StrPath) -> Iterator[Array]:
    """As `read_windows`, in blocks of any size."""
    soundfile, soxr = _libraries()
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise FileNotFoundError(f"There is no file {name!r}.")
    if os.path.getsize(name) == 0:
        raise ValueError(f"{name!r} is empty: 0 bytes. Copy the recording again.")
    try:
        with soundfile.SoundFile(name) as file:
            rate, count = file.samplerate, 0
            resample = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")
            while len(frames := file.read(BLOCK * rate, dtype="float32", always_2d=True)):
                count += len(frames)
                samples = frames.mean(axis=1)
                yield samples if rate == SAMPLE_RATE else resample.resample_chunk(samples)
            if rate != SAMPLE_RATE:
                yield resample.resample_chunk(np.zeros(0, np.float32), last=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(
            f"{name!r} cannot be read as sound: {error.error_string} Pass a WAV, FLAC, OGG or MP3 "
            "file that is complete."
        ) from error
    if not count:
        raise ValueError(f"{name!r} holds no samples. Record it again.")


def _libraries() -> tuple[Any, Any]:
    try:
        import soundfile
        import soxr
    except ImportError as error:
        raise ImportError(
            f"Sound files need {error.name}. Install the extra: "
            "pip install keras-transformer-onnx[audio]"
        ) from error
    return soundfile, soxr
