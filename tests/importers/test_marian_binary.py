"""Marian's binary files: written files are read, and damaged files are refused."""

import numpy as np
import pytest
from helpers.bergamot_model import candidates, shortlist_bytes
from helpers.checks import normal
from support.marian_writer import write_model

from keras_transformer.importers.marian_binary import read_model, read_settings
from keras_transformer.importers.marian_shortlist import read_shortlist

CONFIG = {"depth": 2, "rate": 0.5, "tied": True, "cell": "ssru", "none": "", "sizes": [3, 5]}


@pytest.fixture
def path(tmp_path):
    arrays = {"Wemb": normal(7, 4), "l1_W": normal(4, 6), "l1_b": normal(1, 6)}
    write_model(tmp_path / "model.bin", arrays, {**CONFIG, "empty": []})
    return tmp_path / "model.bin"


def test_matrices_are_rounded_to_eight_bits_and_the_rest_is_kept(path):
    arrays, config = read_model(path)
    assert config == {**CONFIG, "empty": []}
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
    headers = np.frombuffer(data, "<u8", 2 + 4 * 4)
    assert headers[:2].tolist() == [1, 4]
    assert headers[3::4].tolist() == [0x4101, 0x4101, 0x404, 0x101]


def test_multipliers_of_activations_are_left_out(tmp_path):
    arrays = {"W": normal(3, 2), "W_QuantMultA": np.ones((1, 1))}
    write_model(tmp_path / "model.bin", arrays, CONFIG)
    assert list(read_model(tmp_path / "model.bin")[0]) == ["W"]


def test_a_damaged_model_is_refused(path):
    data = path.read_bytes()

    def refused(changed, message):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=message):
            read_model(path)

    for length in (0, 9, 100, 600, 1100, len(data) - 1):
        refused(data[:length], "is truncated: .* ends at byte|more than its bytes can hold")
    refused(b"\x1f\x8b" + data[2:], "not with the version 1 of Marian's")
    refused(data[:24] + b"\x07" + data[25:], "has the number type 0x4107|number type 0x7")
    scale = data.index(normal(1, 6).astype("<f4").tobytes())
    embeddings = np.float32(127 / np.abs(normal(7, 4)).max()).tobytes()
    refused(data.replace(embeddings, b"\0\0\0\0", 1), "'Wemb' has the scale 0.0")
    assert scale > 0
    refused(data.replace(b"special:model.yml", b"special:nodel.yml"), "number type 0x101")


def test_a_tensor_larger_than_its_bytes_is_refused(path):
    data = bytearray(path.read_bytes())
    at = data.index(np.array([7, 4], "<i4").tobytes())
    data[at : at + 4] = np.array([700], "<i4").tobytes()
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"'Wemb' has shape \(700, 4\), 2,804 bytes, but the file"):
        read_model(path)


def test_a_transposed_matrix_is_refused(tmp_path):
    write_model(tmp_path / "model.bin", {"out_Wt": normal(3, 2)}, CONFIG)
    with pytest.raises(ValueError, match="'out_Wt' is a transposed matrix"):
        read_model(tmp_path / "model.bin")


def test_settings_are_read_as_they_are_written():
    text = 'a: 1\nb:\n  - x\n  - 2\nc: ""\nd: []\ne: true\nf: 1e-6\n# comment\ng: "q"\n'
    expected = {"a": 1, "b": ["x", 2], "c": "", "d": [], "e": True, "f": 1e-6, "g": "q"}
    assert read_settings(text) == expected


def test_a_shortlist_gives_the_candidates_of_a_sentence(tmp_path):
    path = tmp_path / "lex.bin"
    path.write_bytes(shortlist_bytes())
    shortlist = read_shortlist(path)
    assert candidates(shortlist, [0], 20).tolist() == [0, 1, 2, 3, 4, 5, 6, 9]  # filled up to 8
    assert candidates(shortlist, [2, 0], 20).tolist() == [0, 1, 2, 3, 4, 5, 7, 9]


def test_a_damaged_shortlist_is_refused(tmp_path):
    path, data = tmp_path / "lex.bin", shortlist_bytes()
    for changed, message in (
        (b"\0" + data[1:], "is no lexical shortlist"),
        (data[:-5], "is truncated"),
        (data[:49] + b"\1" + data[50:], "its checksum differs"),
    ):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=message):
            read_shortlist(path)
