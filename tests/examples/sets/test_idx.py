"""Files in the IDX format: what was written comes back, and what does not fit is told."""

import gzip

import numpy as np
import pytest
from support.sets.idx import read_idx


def idx(array, code):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, code, array.ndim]) + sizes + array.tobytes()


@pytest.mark.parametrize("name", ["a.idx", "a.idx.gz"])
@pytest.mark.parametrize("code, kind", [(8, "u1"), (0x0B, ">i2"), (0x0D, ">f4")])
def test_an_array_comes_back(tmp_path, name, code, kind):
    array = np.arange(30).reshape(2, 3, 5).astype(kind)
    data = idx(array, code)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found = read_idx(tmp_path / name)
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype


@pytest.mark.parametrize("data", [b"", b"RIFF....", b"\0\0\x07\1\0\0\0\0"])
def test_other_formats_are_refused(tmp_path, data):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError, match="is not in the IDX format"):
        read_idx(tmp_path / "a")


@pytest.mark.parametrize("length", [7, 13])
def test_a_file_that_is_cut_off_is_refused(tmp_path, length):
    (tmp_path / "a").write_bytes(idx(np.zeros((2, 3), "u1"), 8)[:length])
    with pytest.raises(ValueError, match="is not whole"):
        read_idx(tmp_path / "a")
