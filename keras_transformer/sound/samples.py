"""Reads sounds as samples at 16 kHz, block by block, in constant memory.

PyAV decodes WAV, FLAC, OGG, MP3 and other formats of FFmpeg. FFmpeg mixes the channels, resamples
and rounds to 16 bits, as in OpenAI's Whisper.

The samples keep the times of the file: silence fills the gaps between its time stamps. Damaged
packets are left out.

Sound can also be bytes in memory, such as an upload. FFmpeg then reads only `UPLOADS`, because its
playlist formats open other files and addresses. An array holds samples at 16 kHz.
"""

import dataclasses
import functools
import io
import itertools
import logging
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.sound.mel import SAMPLE_RATE
from keras_transformer.startup import install
from keras_transformer.types import Array, Sound, StrPath

logger: logging.Logger = logging.getLogger("keras_transformer.export")
BLOCK = 30 * SAMPLE_RATE  # samples that are processed together
# FFmpeg's names of the formats that are read from bytes.
UPLOADS = "aac,aiff,amr,asf,caf,flac,matroska,mov,mp3,mpeg,mpegts,ogg,w64,wav,webm"
# Formats whose time stamps begin at 0. A broadcast, for example, begins at any time.
FROM_0 = ("matroska", "mov", "ogg")
GUESSED = ("aac", "mp3")  # FFmpeg guesses the duration from the size
MOST_START = 60.0  # seconds; a later start belongs to a part of a longer recording
LEAST_RATE = 4000  # samples a second; fewer hold no speech, and a small file would be hours long
GAP = 0.02  # seconds; shorter gaps are jitter
BACK = 1.0  # seconds; time stamps that go back further belong to another recording
MOST_SILENCE = 3600.0  # seconds of a file's gaps together, because time stamps can be wrong
MOST_FAILURES = 100  # of the demuxer, one after the other
LOUDEST = 10.0  # more than floating-point samples from -1 to 1 reach by accident


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


def hold(sound: Sound) -> StrPath | bytes | Array:
    """Returns a sound as a path, bytes or an array, which can be read more than once.

    A file object is read from its position to its end, into memory.

    Args:
        sound: as in `read_blocks`.

    Raises:
        TypeError: `sound` has another type, a file is open as text, or samples are neither
            floating-point numbers nor int16.
        ValueError: an array does not have one axis, or nothing is left to read in a file object.
    """
    if isinstance(sound, (str, os.PathLike, bytes)):
        return sound
    if isinstance(sound, (bytearray, memoryview)):
        return bytes(sound)
    if hasattr(sound, "__array__"):
        samples = np.asarray(sound)
        if samples.dtype.kind != "f" and (samples.dtype.kind, samples.itemsize) != ("i", 2):
            raise TypeError(
                f"Samples must be int16, or floating-point numbers from -1 to 1, got "
                f"{samples.dtype}. Divide integers by their greatest value."
            )
        if samples.ndim != 1:
            raise ValueError(
                f"Samples must have one axis, got the shape {samples.shape}. Pass one sound with "
                "one channel, such as the mean of its channels."
            )
        return samples
    if not hasattr(sound, "read"):
        raise TypeError(
            "A sound is a path, bytes, a file object or an array of samples at 16 kHz, got "
            f"{type(sound).__name__}."
        )
    data = "" if isinstance(sound, io.TextIOBase) else sound.read()
    if not isinstance(data, bytes):
        raise TypeError(f"{sound!r} does not read bytes. Open sound files with the mode 'rb'.")
    if not data:
        raise ValueError(f"{sound!r} has no bytes after its position. Call seek(0) first.")
    return data


def read_blocks(sound: Sound, warn: bool = True) -> Iterator[Array]:
    """Reads the samples of a sound, mixed to one channel.

    Packets that cannot be decoded are left out. Silence keeps the times of the others, in formats
    with time stamps: it fills gaps of more than 20 ms, up to an hour in a file. It also fills the
    time before a late start in MP4, Matroska, WebM and Ogg, and if a video starts earlier.

    Args:
        sound: str or path-like, a sound file; or bytes or a binary file object, its content; or an
            array (N,), samples at 16 kHz, int16 or floating-point numbers from -1 to 1.
        warn: bool, whether a warning is logged if a part of the sound is lost. Defaults to `True`.

    Returns:
        Iterator of float32 arrays of any length.

    Raises:
        FileNotFoundError: there is no such file.
        ImportError: PyAV is missing.
        TypeError: as in `hold`.
        ValueError: as in `hold`; or the sound is empty, has an unknown format, or has no samples
            that can be read; or a sample is not finite or far above 1.

    Example:

    >>> sum(map(len, read_blocks(np.zeros(8000, "int16"))))
    8000
    """
    sound = hold(sound)
    name = repr(os.fspath(sound)) if isinstance(sound, (str, os.PathLike)) else "The sound"
    count = 0
    for samples in _samples(sound) if isinstance(sound, np.ndarray) else _file(sound, name, warn):
        count += len(samples)
        yield samples
    if not count:
        raise ValueError(f"{name} holds no sound: it has no samples. Record it again.")


def _samples(samples: Array) -> Iterator[Array]:
    """Yields the samples of an array."""
    scale = np.float32(2**15 if samples.dtype.kind == "i" else 1)
    for start in range(0, len(samples), BLOCK):
        block = samples[start : start + BLOCK] / scale
        wrong = np.flatnonzero(~(np.abs(block) <= LOUDEST))  # NaN, too
        if len(wrong):
            raise ValueError(
                f"Samples must be numbers from -1 to 1, but number {start + wrong[0]} is "
                f"{block[wrong[0]]}. Divide 16-bit values by 32768."
            )
        yield block.astype(np.float32)


def _file(sound: StrPath | bytes, name: str, warn: bool) -> Iterator[Array]:
    """Yields the samples of a file or of its content."""
    av, options, faults = _library(), {}, _Faults()
    if isinstance(sound, bytes):
        size, source = len(sound), io.BytesIO(sound)
        options = {"format_whitelist": UPLOADS, "protocol_whitelist": ""}
    else:
        source = os.path.abspath(sound)  # FFmpeg reads a relative path with a colon as an address
        if not os.path.isfile(source):
            raise FileNotFoundError(f"There is no file {name}.")
        size = os.path.getsize(source)
    if size == 0:
        raise ValueError(f"{name} is empty: 0 bytes. Copy the recording again.")
    count = 0
    try:
        with av.open(source, options=options, metadata_errors="ignore") as file:
            placed = _placed(_frames(file, faults), _start(file), faults)
            for samples in _resampled(placed, faults):
                count += len(samples)
                yield samples.astype(np.float32) / 2**15
            whole = 0 if file.format.name in GUESSED else (file.duration or 0) / av.time_base
        if faults.error and not count:
            raise faults.error
    except av.FFmpegError as error:
        raise ValueError(
            f"{name} cannot be read as sound: {error.strerror}. Pass a complete WAV, FLAC, OGG "
            "or MP3 file."
        ) from error
    if faults.error and warn:
        lost = max(faults.lost, whole - count / SAMPLE_RATE)
        logger.warning(
            "%s is damaged: about %.2f seconds are lost, and %.2f seconds are read (%s).",
            name,
            lost,
            count / SAMPLE_RATE,
            faults.error.strerror,
        )
    if faults.skipped and warn:
        logger.warning(
            "The time stamps of %s jump by %.0f seconds, which are not filled with silence. Later "
            "times are earlier than in the file.",
            name,
            faults.skipped,
        )


@dataclasses.dataclass
class _Faults:
    """The faults of a file: the last error, seconds that are lost, seconds of gaps not filled."""

    error: Any = None
    lost: float = 0.0
    skipped: float = 0.0

    def attempt(self, function: Callable[[], Iterable[Any]], seconds: float = 0.0) -> Iterable[Any]:
        """Calls a function that returns frames; nothing is returned if it fails."""
        try:
            return function()
        except _library().FFmpegError as error:
            self.error, self.lost = error, self.lost + seconds
            return ()


def _start(file: Any) -> float:
    """Returns the time stamp of time 0, in seconds."""
    start = (file.start_time or 0) / _library().time_base
    from_0 = file.format.name.partition(",")[0] in FROM_0
    return 0.0 if from_0 and start <= MOST_START else start


def _frames(file: Any, faults: _Faults) -> Iterator[Any]:
    """Decodes the first sound of a file, packet by packet."""
    failures = 0 if file.streams.audio else MOST_FAILURES
    while failures < MOST_FAILURES:
        try:
            for packet in file.demux(audio=0):
                failures = 0
                seconds = float((packet.duration or 0) * packet.time_base)
                for frame in faults.attempt(packet.decode, seconds):
                    yield from faults.attempt(functools.partial(_averaged, frame))
            return
        except IndexError:  # PyAV, at the end of a file in which another stream appeared
            return
        except _library().FFmpegError as error:  # of the demuxer, which can go on
            failures, faults.error = failures + 1, error


class _Placed(NamedTuple):
    """A frame, its time in seconds, and the number of gaps before it."""

    frame: Any
    time: float
    part: int


def _placed(frames: Iterable[Any], start: float, faults: _Faults) -> Iterator[_Placed]:
    """Finds the times of frames.

    A frame follows the one before it, unless its time stamp and the next one are both later. A
    single wrong time stamp thus changes nothing. No frame is left out if time stamps go back.

    Args:
        frames: frames of PyAV.
        start: the time stamp of time 0, in seconds.
        faults: receives the seconds of gaps that are too long.
    """
    time, part, left = 0.0, 0, MOST_SILENCE
    for frame, following in itertools.pairwise(itertools.chain(frames, [None])):
        if frame.sample_rate < LEAST_RATE:
            raise ValueError(
                f"the sound has {frame.sample_rate} samples a second, and speech needs at least "
                f"{LEAST_RATE}. Record it again, or write its rate into the file."
            )
        seconds = frame.samples / frame.sample_rate
        here = _gap(frame, start + time, 0.0)
        gap = sorted((0.0, here, _gap(following, start + time + seconds, here)))[1]
        if gap > left or gap < -BACK:  # another recording, or a wrong time stamp
            start += gap
            faults.skipped += max(gap, 0.0)
        elif gap > GAP:
            time, part, left = time + gap, part + 1, left - gap
        yield _Placed(frame, time, part)
        time += seconds


def _gap(frame: Any, expected: float, otherwise: float) -> float:
    """Returns how many seconds a frame comes after the expected time."""
    return otherwise if frame is None or frame.time is None else frame.time - expected


def _resampled(placed: Iterable[_Placed], faults: _Faults) -> Iterator[Array]:
    """Yields samples of one channel at 16 kHz, int16, with silence in the gaps.

    In joined files, the rate and the channels change within a sound.
    """
    kind = operator.attrgetter("part", "frame.format.name", "frame.layout.name", "frame.rate")
    count = 0
    for _, equal in itertools.groupby(placed, kind):
        first = next(equal)
        while (missing := round(first.time * SAMPLE_RATE) - count) > 0:
            count += (size := min(missing, BLOCK))
            yield np.zeros(size, np.int16)
        resampler = _library().AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
        frames = (each.frame for each in itertools.chain([first], equal))
        for frame in itertools.chain(frames, [None]):
            for part in faults.attempt(functools.partial(resampler.resample, frame)):
                samples = part.to_ndarray()[0]
                count += len(samples)
                yield samples


def _averaged(frame: Any) -> list[Any]:
    """Returns the frame, with one channel if FFmpeg has no layout for their number, such as 9."""
    count = frame.layout.nb_channels
    if frame.layout.name != f"{count} channels":
        return [frame]
    av, form = _library(), frame.format.packed.name
    # PyAV reads the planes of more than 7 channels beyond the end of their table.
    packed = av.AudioResampler(form, frame.layout.name, frame.sample_rate).resample(frame)
    samples = np.concatenate([part.to_ndarray()[0] for part in packed]).reshape(-1, count)
    mean = samples.mean(axis=1).astype(samples.dtype)[None]
    averaged = av.AudioFrame.from_ndarray(mean, form, "mono")
    averaged.sample_rate = frame.sample_rate
    averaged.time_base, averaged.pts = frame.time_base, frame.pts
    return [averaged]


def _library() -> Any:
    try:
        import av
    except ImportError as error:
        raise ImportError(
            "Sound files need the package av. Install the extra: " + install("service")
        ) from error
    return av
