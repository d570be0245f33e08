"""Marian's binary files: written files are read, and damaged files are refused."""

import numpy as np
import pytest
from helpers.bergamot_model import candidates, shortlist_bytes
from helpers.checks import normal
from support.marian_writer import write_model

from keras_transformer.importers.marian_binary import read_model, read_settings
from keras_transformer.importers.marian_shortlist import _checksum, read_shortlist

CONFIG = {"depth": 2, "rate": 0.5, "tied": True, "cell": "ssru", "none": "", "sizes": [3, 5]}


@pytest.fixture
def path(tmp_path):
    arrays = {"Wemb": normal(7, 4), "l1_W": normal(4, 6), "l1_b": normal(1, 6)}
    arrays["l1_W_QuantMultA"] = np.ones((1, 1))  # multipliers of activations are left out
    write_model(tmp_path / "model.bin", arrays, {**CONFIG, "empty": []})
    return tmp_path / "model.bin"


def test_matrices_are_rounded_to_eight_bits_and_the_rest_is_kept(path):
    arrays, config = read_model(path)
    assert config == {**CONFIG, "empty": []} and list(arrays) == ["Wemb", "l1_W", "l1_b"]
    np.testing.assert_array_equal(arrays["l1_b"], normal(1, 6))
    for name, array in (("Wemb", normal(7, 4)), ("l1_W", normal(4, 6))):
        assert arrays[name].dtype == np.float32
        step = np.abs(array).max() / 127
        np.testing.assert_allclose(arrays[name], array, rtol=0, atol=step / 2 * 1.001)


def test_the_bytes_of_a_matrix_follow_the_format(path):
    """All but the embeddings have one row per output, followed by the scale."""
    data = path.read_bytes()
    matrix = normal(4, 6)
    scale = np.float32(127 / np.abs(matrix).max())
    payload = np.rint(matrix * scale).astype("i1").T.tobytes() + scale.tobytes()
    assert data.count(payload) == 1 and data.index(payload) % 256 == 0
    headers = np.frombuffer(data, "<u8", 2 + 4 * 5)
    assert headers[:2].tolist() == [1, 5]
    assert headers[3::4].tolist() == [0x4101, 0x4101, 0x404, 0x404, 0x101]


def cut(length):
    return lambda data: data[:length]


def replaced(old, new):
    """Returns a function that replaces bytes, once."""
    return lambda data: data.replace(old, new, 1)


SCALE = np.float32(127 / np.abs(normal(7, 4)).max()).tobytes()
TRUNCATED = "is truncated: .* ends at byte|more than its bytes can hold"


@pytest.mark.parametrize(
    "change, message",
    [
        *((cut(length), TRUNCATED) for length in (0, 9, 100, 600, 1100, -1)),
        (lambda data: b"\x1f\x8b" + data[2:], "not with the version 1 of Marian's"),
        (
            lambda data: data[:24] + b"\x07" + data[25:],
            "has the number type 0x4107|number type 0x7",
        ),
        (replaced(SCALE, b"\0\0\0\0"), "'Wemb' has the scale 0.0"),
        (replaced(b"special:model.yml", b"special:nodel.yml"), "number type 0x101"),
        (
            replaced(np.array([7, 4], "<i4").tobytes(), np.array([700, 4], "<i4").tobytes()),
            r"'Wemb' has shape \(700, 4\), 2,804 bytes, but the file",
        ),
        (replaced(b"Wemb", b"W\xff\xfeb"), r"model\.bin cannot be read as a model: .*codec"),
    ],
)
def test_a_damaged_model_is_refused(change, message, path):
    data = path.read_bytes()
    path.write_bytes(change(data))
    assert path.read_bytes() != data
    with pytest.raises(ValueError, match=message):
        read_model(path)


def test_a_transposed_matrix_is_refused(tmp_path):
    write_model(tmp_path / "model.bin", {"out_Wt": normal(3, 2)}, CONFIG)
    with pytest.raises(ValueError, match="'out_Wt' is a transposed matrix"):
        read_model(tmp_path / "model.bin")


def test_settings_are_read_as_they_are_written():
    text = 'a: 1\nb:\n  - x\n  - 2\nc: ""\nd: []\ne: true\nf: 1e-6\n# comment\ng: "q"\n'
    expected = {"a": 1, "b": ["x", 2], "c": "", "d": [], "e": True, "f": 1e-6, "g": "q"}
    assert read_settings(text) == expected
    assert read_settings("a:\n" + "  - 5\n" * 100_003)["a"] == [5] * 100_003
    with pytest.raises(ValueError, match="the setting 'a' is both a value and a list"):
        read_settings("a: 5\n  - 7\n")


def test_a_shortlist_gives_the_candidates_of_a_sentence(tmp_path):
    path = tmp_path / "lex.bin"
    path.write_bytes(shortlist_bytes())
    shortlist = read_shortlist(path)
    assert candidates(shortlist, [0], 20).tolist() == [0, 1, 2, 3, 4, 5, 6, 9]  # filled up to 8
    assert candidates(shortlist, [2, 0], 20).tolist() == [0, 1, 2, 3, 4, 5, 7, 9]


def without_offsets(data):
    words = np.frombuffer(data[:48], "<u8").copy()
    words[4:] = 0  # neither offsets nor ids
    words[1] = _checksum(words[2:])
    return words.tobytes()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda data: b"\0" + data[1:], "is no lexical shortlist"),
        (cut(-5), "is truncated"),
        (lambda data: data[:49] + b"\1" + data[50:], "its checksum differs"),
        (without_offsets, r"lex\.bin cannot .* offsets beyond its ids"),
    ],
)
def test_a_damaged_shortlist_is_refused(change, message, tmp_path):
    path = tmp_path / "lex.bin"
    path.write_bytes(change(shortlist_bytes()))
    with pytest.raises(ValueError, match=message):
        read_shortlist(path)
