"""Reads sound files as samples at 16 kHz, block by block, in constant memory.

PyAV decodes WAV, FLAC, OGG, MP3 and other formats of FFmpeg. FFmpeg mixes the channels, resamples
and rounds to 16 bits, as in OpenAI's Whisper.
"""

import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_transformer.mel import SAMPLE_RATE
from keras_transformer.types import Array, StrPath


def read_windows(path: StrPath, size: int) -> Iterator[Array]:
    """Consecutive windows of a sound file, mixed to one channel.

    Args:
        path: str or path-like, a sound file.
        size: int, samples of a window.

    Returns:
        Iterator of float32 arrays (size,). The last one may be shorter.

    Raises:
        FileNotFoundError: there is no such file.
        ImportError: PyAV is missing.
        ValueError: the file is empty, damaged, without samples or of an unknown format.
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
    av, name, count = _library(), os.fspath(path), 0
    if not os.path.isfile(name):
        raise FileNotFoundError(f"There is no file {name!r}.")
    if os.path.getsize(name) == 0:
        raise ValueError(f"{name!r} is empty: 0 bytes. Copy the recording again.")
    try:
        with av.open(name) as file:
            resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
            frames = file.decode(audio=0) if file.streams.audio else ()
            for frame in itertools.chain(frames, [None] if frames else []):
                for part in resampler.resample(frame):
                    samples = part.to_ndarray()[0].astype(np.float32) / 2**15
                    count += len(samples)
                    yield samples
    except av.FFmpegError as error:
        raise ValueError(
            f"{name!r} cannot be read as sound: {error.strerror}. Pass a complete WAV, FLAC, OGG "
            "or MP3 file."
        ) from error
    if not count:
        raise ValueError(f"{name!r} holds no sound: it has no samples. Record it again.")


def _library() -> Any:
    try:
        import av
    except ImportError as error:
        raise ImportError(
            "Sound files need the package av. Install the extra: "
            "pip install keras-transformer-onnx[audio]"
        ) from error
    return av
