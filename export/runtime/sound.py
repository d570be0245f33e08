"""Reads sound files as samples at 16 kHz, block by block, in constant memory.

PyAV decodes WAV, FLAC, OGG, MP3 and other formats of FFmpeg. FFmpeg mixes the channels, resamples
and rounds to 16 bits, as in OpenAI's Whisper.

Sound can also be bytes in memory, such as an upload. FFmpeg then reads only `UPLOADS`, because its
playlist formats open other files and addresses.
"""

import io
import itertools
import operator
import os
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

from keras_transformer.mel import SAMPLE_RATE
from keras_transformer.types import Array, StrPath

Sound: TypeAlias = StrPath | bytes
BLOCK = 30 * SAMPLE_RATE  # samples that are processed together
# FFmpeg's names of the formats that are read from bytes.
UPLOADS = "aac,aiff,amr,asf,caf,flac,matroska,mov,mp3,mpeg,mpegts,ogg,w64,wav,webm"


def in_windows(blocks: Iterable[Array], size: int) -> Iterator[Array]:
    """Yields blocks of samples as windows of `size` samples. The last may be shorter."""
    waiting: list[Array] = []
    for block in blocks:
        waiting.append(block)
        if sum(map(len, waiting)) >= size:
            samples = np.concatenate(waiting)
            whole = len(samples) // size * size
            yield from samples[:whole].reshape(-1, size)
            waiting = [samples[whole:]]
    samples = np.concatenate(waiting) if waiting else np.zeros(0, np.float32)
    if len(samples):
        yield samples


def check_length(seconds: float, most_seconds: float | None) -> None:
    """Raises `ValueError` if a sound is longer than `most_seconds`; `None` is no limit."""
    if most_seconds is not None and seconds > most_seconds:
        raise ValueError(f"The sound is longer than {most_seconds:g} seconds. Send it in parts.")


def read_blocks(sound: Sound) -> Iterator[Array]:
    """Reads the samples of a sound file, mixed to one channel.

    Args:
        sound: str or path-like, a sound file; or bytes, its content.

    Returns:
        Iterator of float32 arrays of any length.

    Raises:
        FileNotFoundError: there is no such file.
        ImportError: PyAV is missing.
        ValueError: the file is empty, damaged, without samples or of an unknown format.
    """
    av, count, options = _library(), 0, {}
    if isinstance(sound, bytes):
        name, size, source = "The sound", len(sound), io.BytesIO(sound)
        options = {"format_whitelist": UPLOADS, "protocol_whitelist": ""}
    else:
        source = os.path.abspath(sound)  # FFmpeg reads a relative path with a colon as an address
        name = repr(os.fspath(sound))
        if not os.path.isfile(source):
            raise FileNotFoundError(f"There is no file {name}.")
        size = os.path.getsize(source)
    if size == 0:
        raise ValueError(f"{name} is empty: 0 bytes. Copy the recording again.")
    try:
        with av.open(source, options=options, metadata_errors="ignore") as file:
            frames = file.decode(audio=0) if file.streams.audio else ()
            for part in _resampled(frames):
                samples = part.to_ndarray()[0].astype(np.float32) / 2**15
                count += len(samples)
                yield samples
    except av.FFmpegError as error:
        raise ValueError(
            f"{name} cannot be read as sound: {error.strerror}. Pass a complete WAV, FLAC, OGG "
            "or MP3 file."
        ) from error
    if not count:
        raise ValueError(f"{name} holds no sound: it has no samples. Record it again.")


def _resampled(frames: Iterable[Any]) -> Iterator[Any]:
    """Yields the frames of a sound with one channel at 16 kHz.

    In joined files, the rate and the channels change within a sound.
    """
    av = _library()
    kind = operator.attrgetter("format.name", "layout.name", "sample_rate")
    for _, equal in itertools.groupby(map(_averaged, frames), kind):
        resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
        for frame in itertools.chain(equal, [None]):
            yield from resampler.resample(frame)


def _averaged(frame: Any) -> Any:
    """Averages the channels of a frame if FFmpeg has no layout for their number, such as 9."""
    count = frame.layout.nb_channels
    if frame.layout.name != f"{count} channels":
        return frame
    samples = frame.to_ndarray()
    samples = samples if frame.format.is_planar else samples.reshape(-1, count).T
    mean = samples.mean(axis=0, keepdims=True).astype(samples.dtype)
    averaged = _library().AudioFrame.from_ndarray(mean, frame.format.name, "mono")
    averaged.sample_rate = frame.sample_rate
    return averaged


def _library() -> Any:
    try:
        import av
    except ImportError as error:
        raise ImportError(
            "Sound files need the package av. Install the extra: "
            "pip install keras-transformer-onnx[audio]"
        ) from error
    return av
