"""Recordings in the containers of FFmpeg, written with PyAV."""

import io
import struct
from fractions import Fraction

import numpy as np
import pytest

from keras_transformer.sound.samples import read_blocks

av = pytest.importorskip("av")

# Formats of samples that an encoder takes.
_SAMPLES = {"pcm_s16le": "s16", "flac": "s16"}
# Fragments of half a second. Other MP4 files have their table at the end.
_OPTIONS = {"fmp4": {"movflags": "frag_keyframe+empty_moov", "frag_duration": "500000"}}
# FFmpeg's container, and an encoder for it.
KINDS = {
    "wav": ("wav", "pcm_s16le"),
    "flac": ("flac", "flac"),
    "mp3": ("mp3", "libmp3lame"),
    "ogg": ("ogg", "libopus"),
    "mp4": ("mp4", "aac"),
    "fmp4": ("mp4", "aac"),
    "webm": ("webm", "libopus"),
    "mkv": ("matroska", "pcm_s16le"),
    "ts": ("mpegts", "aac"),
    "aac": ("adts", "aac"),
}


def chirp(seconds, rate=48_000, seed=0):
    """Returns a rising tone in faint noise, (N,) float32: each moment of it sounds different."""
    time = np.arange(round(seconds * rate)) / rate
    phase = 2 * np.pi * (200 * time + 100 * time**2)
    noise = np.random.default_rng(seed).normal(0, 0.01, len(time))
    return (0.4 * np.sin(phase) + noise).astype("float32")


def written(kind, parts, rate=48_000, picture_at=None, size=960):
    """Returns the bytes of a file.

    Args:
        kind: key of `KINDS`.
        parts: list of pairs: the time of the first sample in seconds, and samples (N,); in WebM
            also (channels, N), for which FFmpeg then has no layout.
        rate: int, samples per second.
        picture_at: float, time of a picture in seconds. Defaults to `None`: no video.
        size: int, samples of a frame.
    """
    file, (container_format, codec) = io.BytesIO(), KINDS[kind]
    options = _OPTIONS.get(kind, {})
    with av.open(file, "w", container_format, container_options=options) as container:
        channels = parts[0][1].shape[:-1]
        settings = {"mapping_family": "255"} if channels else {}
        stream = container.add_stream(codec, rate=rate, options=settings)
        stream.layout = f"{channels[0]} channels" if channels else "mono"
        if picture_at is not None:
            _write_picture(container, "libvpx" if kind == "webm" else "mpeg4", picture_at)
        for start, samples in parts:
            for first in range(0, samples.shape[-1], size):
                frame = _frame(samples[..., first : first + size], _SAMPLES.get(codec))
                frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
                frame.pts = round(start * rate) + first
                container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def _frame(samples, form):
    if samples.ndim == 2:
        packed = np.ascontiguousarray(samples.T).reshape(1, -1)
        return av.AudioFrame.from_ndarray(packed, "flt", f"{len(samples)} channels")
    if form is None:
        return av.AudioFrame.from_ndarray(samples[None], "fltp", "mono")
    return av.AudioFrame.from_ndarray((samples[None] * 32767).astype("int16"), form, "mono")


def _write_picture(container, codec, time):
    stream = container.add_stream(codec, rate=25)
    stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
    frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), "uint8"), "rgb24")
    frame.pts, frame.time_base = round(time * 25), Fraction(1, 25)
    container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def packets(data):
    """Returns the place and size of each packet of sound in a file, a list of pairs."""
    with av.open(io.BytesIO(data)) as file:
        found = [packet for packet in file.demux(audio=0) if packet.size]
        places = [data.find(bytes(packet), max(packet.pos or 0, 0)) for packet in found]
    return [(place, packet.size) for place, packet in zip(places, found, strict=True) if place >= 0]


def place_of(part, whole, rate=16_000):
    """Returns where a part of a sound stands in the whole, in seconds; and the correlation."""
    size = 1 << (len(whole) + len(part)).bit_length()
    product = np.fft.rfft(whole, size) * np.conj(np.fft.rfft(part, size))
    found = np.fft.irfft(product, size)[: len(whole) - len(part) + 1]
    total = np.r_[0.0, np.cumsum(whole.astype(float) ** 2)]
    power = total[len(part) :] - total[: len(total) - len(part)]
    scores = found / np.sqrt(np.maximum(power, 1e-9) * max(float((part**2).sum()), 1e-9))
    best = int(scores.argmax())
    return best / rate, float(scores[best])


def matroska(blocks, rate=16_000):
    """Returns the bytes of a Matroska file whose blocks have any times.

    Args:
        blocks: list of pairs: a time in milliseconds, and samples (N,), float32.
        rate: int, samples per second.
    """
    kind = [_element("B5", struct.pack(">d", rate)), _number("9F", 1), _number("6264", 16)]
    track = [_number("D7", 1), _number("73C5", 1), _number("83", 2), _element("E1", *kind)]
    tracks = _element("1654AE6B", _element("AE", *track, _element("86", b"A_PCM/INT/LIT")))
    info = _element("1549A966", _number("2AD7B1", 1_000_000))  # nanoseconds of a millisecond
    clusters = []
    for time, samples in blocks:
        block = _element("A3", b"\x81\0\0\x80", (samples * 32767).astype("<i2").tobytes())
        clusters.append(_element("1F43B675", _number("E7", round(time)), block))
    versions = [_number("4287", 4), _number("4285", 2)]
    header = _element("1A45DFA3", _element("4282", b"matroska"), *versions)
    return header + _element("18538067", info, tracks, *clusters)


def _element(name, *contents):
    data = b"".join(contents)
    return bytes.fromhex(name) + (2**56 | len(data)).to_bytes(8, "big") + data


def _number(name, value):
    return _element(name, value.to_bytes(8, "big"))


def read(sound):
    """Returns all samples of a sound."""
    return np.concatenate(list(read_blocks(sound)))
