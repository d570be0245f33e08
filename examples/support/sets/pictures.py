"""Labelled sets of pictures.

Shapes: N pictures.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from support.sets.idx import read_idx

CLOTHES = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
)
VALID = 5000  # pictures of the training set for validation
SIZE = 28  # height and width in pixels


class PictureSets(NamedTuple):
    """Pictures and their classes for training, validation and test.

    Attributes:
        train, valid, test: two arrays each: pixels (N, 28, 28, 1), float32 from 0 to 1, and class
            numbers (N,), int32.
        labels: tuple of str, the names of the classes.
    """

    train: tuple[np.ndarray, np.ndarray]
    valid: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    labels: tuple[str, ...]


def fashion_mnist(folder, limit=None):
    """Reads Fashion-MNIST: 70,000 pictures of clothes (Xiao et al. 2017, arXiv 1708.07747).

    In every call, the same 5,000 of the 60,000 training pictures are the validation set.

    Args:
        folder: folder of the four files, under their original names.
        limit: int, number of pictures used per set. Defaults to `None`: all.

    Returns:
        `PictureSets`.

    Raises:
        ValueError: a file is damaged, or holds other data.
        OSError: a file is missing.

    Example:

    >>> fashion_mnist("images").train[0].shape  # doctest: +SKIP
    (55000, 28, 28, 1)
    """
    pixels, classes = _read(Path(folder), "train")
    order = np.random.default_rng(0).permutation(len(pixels))
    valid, train = order[:VALID][:limit], order[VALID:][:limit]
    test = _read(Path(folder), "t10k")
    return PictureSets(
        (_scaled(pixels[train]), classes[train]),
        (_scaled(pixels[valid]), classes[valid]),
        (_scaled(test[0][:limit]), test[1][:limit]),
        CLOTHES,
    )


def _read(folder, part):
    pixels = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    classes = read_idx(folder / f"{part}-labels-idx1-ubyte.gz").astype("int32")
    if pixels.shape != (len(classes), SIZE, SIZE) or classes.max() >= len(CLOTHES):
        raise ValueError(
            f"{folder} does not hold Fashion-MNIST: {part} has pictures {pixels.shape}, "
            f"classes {classes.shape}, the largest {classes.max()}."
        )
    return pixels, classes


def _scaled(pixels):
    return (pixels[..., None] / 255).astype("float32")


def grey_levels(pixels, size, levels):
    """Shrinks pictures and reduces grey levels: each pixel is the mean of a block of pixels.

    Args:
        pixels: (N, height, width, 1) from 0 to 1, height and width divisible by `size`.
        size: int, S, height and width of the result.
        levels: int, number of grey levels.

    Returns:
        int32 (N, S, S), from 0 for black to `levels` - 1 for white.

    Example:

    >>> grey_levels(np.array([0.0, 0.5, 1.0, 1.0]).reshape(1, 2, 2, 1), 1, 16)
    array([[[9]]], dtype=int32)
    """
    count, height, width, _ = pixels.shape
    blocks = pixels.reshape(count, size, height // size, size, width // size)
    return np.rint(blocks.mean(axis=(2, 4)) * (levels - 1)).astype("int32")


def made_pictures(count=3000, limit=None):
    """Draws shapes of random place and size in noise, which need no files.

    Every call draws the same pictures: two thirds for training, a sixth each for validation and
    test.

    Args:
        count: int, total number of pictures, at least 6.
        limit: int, number of pictures used per set. Defaults to `None`: all.

    Returns:
        `PictureSets`.

    Raises:
        ValueError: `count` is too small.

    Example:

    >>> made_pictures().labels
    ('disc', 'ring', 'square', 'frame', 'cross')
    """
    if count < 6:
        raise ValueError(f"count must be at least 6, got {count}.")
    draw = np.random.default_rng(0)
    labels = tuple(SHAPES)
    classes = draw.integers(len(labels), size=count).astype("int32")
    radius = draw.uniform(5, 10, (count, 1, 1))
    middle = draw.uniform(radius, SIZE - 1 - radius, (2, count, 1, 1))
    y, x = np.mgrid[:SIZE, :SIZE][:, None] - middle  # (N, 28, 28) each
    shown = np.select(
        [(classes == n)[:, None, None] for n in range(len(labels))],
        [inside(x, y, radius) for inside in SHAPES.values()],
    )
    pixels = 0.7 * shown + draw.uniform(0, 0.3, shown.shape)
    pixels = pixels[..., None].astype("float32")
    parts = np.split(np.arange(count), [count * 2 // 3, count * 5 // 6])
    return PictureSets(*((pixels[part[:limit]], classes[part[:limit]]) for part in parts), labels)


# Functions from the distances of pixels from the middle to the mask of a shape.
SHAPES = {
    "disc": lambda x, y, radius: np.hypot(x, y) <= radius,
    "ring": lambda x, y, radius: np.abs(np.hypot(x, y) - radius + 1) <= 1.2,
    "square": lambda x, y, radius: np.maximum(np.abs(x), np.abs(y)) <= radius * 0.85,
    "frame": lambda x, y, radius: (
        np.abs(np.maximum(np.abs(x), np.abs(y)) - radius * 0.85 + 1) <= 1.2
    ),
    "cross": lambda x, y, radius: (
        (np.minimum(np.abs(x), np.abs(y)) <= 1.2) & (np.maximum(np.abs(x), np.abs(y)) <= radius)
    ),
}
