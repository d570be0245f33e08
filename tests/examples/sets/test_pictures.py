"""Sets of pictures: read from files, or drawn."""

import gzip

import numpy as np
import pytest
from support.sets import pictures
from support.sets.pictures import fashion_mnist, made_pictures

TRAIN, TEST = pictures.VALID + 3, 7


def write(folder, part, count, size=28):
    """Two files as Fashion-MNIST has; each picture is filled with a number of its own."""
    numbers = np.arange(count)
    pixels = np.repeat((numbers % 256).astype("u1"), size * size)
    header = b"\0\0\x08\3" + b"".join(n.to_bytes(4, "big") for n in (count, size, size))
    labels = b"\0\0\x08\1" + count.to_bytes(4, "big") + (numbers % 10).astype("u1").tobytes()
    for name, data in (("images-idx3", header + pixels.tobytes()), ("labels-idx1", labels)):
        (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(data, 1))


def test_the_validation_set_is_a_part_of_the_training_set(tmp_path):
    write(tmp_path, "train", TRAIN)
    write(tmp_path, "t10k", TEST)
    sets = fashion_mnist(tmp_path)
    assert [len(part[0]) for part in sets[:3]] == [3, pictures.VALID, TEST]
    assert len(sets.labels) == 10
    both = np.concatenate([sets.train[0], sets.valid[0]])[:, 0, 0, 0]
    expected = np.sort(np.arange(TRAIN) % 256) / 255
    np.testing.assert_allclose(np.sort(both), expected, rtol=1e-6)  # each picture once
    for pixels, classes in sets[:3]:
        assert pixels.shape[1:] == (28, 28, 1) and pixels.dtype == np.float32
        assert pixels.min() >= 0 and pixels.max() <= 1
        assert classes.dtype == np.int32 and classes.shape == (len(pixels),)
    np.testing.assert_array_equal(sets.test[1], np.arange(TEST))
    some = fashion_mnist(tmp_path, limit=2)
    assert [len(part[0]) for part in some[:3]] == [2, 2, 2]
    np.testing.assert_array_equal(some.valid[0], sets.valid[0][:2])


def test_other_pictures_are_refused(tmp_path):
    write(tmp_path, "train", 5, size=32)
    with pytest.raises(ValueError, match="does not hold Fashion-MNIST"):
        fashion_mnist(tmp_path)


def test_drawn_pictures_are_the_same_in_every_call():
    one, two = made_pictures(60), made_pictures(60, limit=4)
    assert [len(part[0]) for part in one[:3]] == [40, 10, 10]
    for whole, some in zip(one[:3], two[:3], strict=True):
        np.testing.assert_array_equal(whole[0][:4], some[0])
        np.testing.assert_array_equal(whole[1][:4], some[1])
        assert whole[0].shape[1:] == (28, 28, 1) and 0 <= whole[0].min() <= whole[0].max() <= 1
    assert set(one.train[1]) == set(range(len(one.labels)))


def test_discs_and_squares_are_filled_and_rings_and_frames_are_not():
    sets = made_pictures(600)
    bright = sets.train[0][..., 0].clip(0.5) - 0.5  # what is drawn, without the noise
    covered = {name: bright[sets.train[1] == n].mean() for n, name in enumerate(sets.labels)}
    assert covered["disc"] > 1.3 * covered["ring"]
    assert covered["square"] > 1.3 * covered["frame"] > 1.3 * covered["cross"] > 0


def test_too_few_pictures_are_refused():
    with pytest.raises(ValueError, match="at least 6"):
        made_pictures(5)
