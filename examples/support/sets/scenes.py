"""Scenes: pictures of one to five items at random places and sizes, with their boxes.

A box is (middle x, middle y, width, height), each a fraction of the scene's side.

Shapes: N scenes, M objects per scene at most, I items.
"""

from typing import NamedTuple

import numpy as np

SIDE = 64  # height and width of a scene in pixels
MOST = 5  # objects per scene
SIZES = (16, 20, 24, 28)  # height and width of an item in pixels, before its margin is cut off
TRIES = 10  # places to try for an item; without success it is left out
OVERLAP = 0.1  # greatest common area of two boxes, as a part of the smaller one


class Scenes(NamedTuple):
    """Scenes and the objects in them.

    Attributes:
        pixels: float32 (N, 64, 64, 1), from 0 to 1.
        objects: float32 (N, M, 5): class number and box; class -1 is padding.
    """

    pixels: np.ndarray
    objects: np.ndarray


class Items(NamedTuple):
    """Items in several sizes.

    Attributes:
        pixels: for each of `SIZES` a uint8 array (I, size, size).
        classes: int (I,).
    """

    pixels: list[np.ndarray]
    classes: np.ndarray


def make_items(pixels, classes, darkest=0.1):
    """Makes items from pictures of one item each, on black.

    Args:
        pixels: float (I, height, width, 1), from 0 to 1.
        classes: int (I,).
        darkest: float, pixels below it become black. Defaults to 0.1.

    Returns:
        `Items`.
    """
    import tensorflow as tf

    sizes = []
    for size in SIZES:
        parts = np.array_split(pixels, max(1, len(pixels) // 5000))
        parts = [tf.image.resize(part, (size, size), antialias=True).numpy() for part in parts]
        scaled = np.concatenate(parts)[..., 0]
        sizes.append(np.where(scaled < darkest, 0, np.rint(255 * scaled)).astype(np.uint8))
    return Items(sizes, np.asarray(classes))


def draw_scenes(items, count, draw):
    """Draws scenes of one to five items at random places.

    Args:
        items: `Items`.
        count: int, N.
        draw: `numpy.random.Generator`.

    Returns:
        `Scenes`.
    """
    canvas = np.zeros((count, SIDE, SIDE), np.uint8)
    objects = np.full((count, MOST, 5), -1.0, np.float32)
    for scene, found in zip(canvas, objects, strict=True):
        placed = []
        for _ in range(draw.integers(1, MOST + 1)):
            which = draw.integers(len(items.classes))
            item = without_margin(items.pixels[draw.integers(len(SIZES))][which])
            height, width = item.shape
            if not item.size:
                continue
            tops = draw.integers(SIDE - height + 1, size=TRIES)
            lefts = draw.integers(SIDE - width + 1, size=TRIES)
            for top, left in zip(tops.tolist(), lefts.tolist(), strict=True):
                corners = (left, top, left + width, top + height)
                if all(_overlap(corners, other) <= OVERLAP for other in placed):
                    part = scene[top : top + height, left : left + width]
                    np.maximum(part, item, out=part)
                    middle = (left + width / 2, top + height / 2)
                    found[len(placed), 0] = items.classes[which]
                    found[len(placed), 1:] = np.array([*middle, width, height]) / SIDE
                    placed.append(corners)
                    break
    return Scenes((canvas[..., None] / np.float32(255)), objects)


def batches(items, size, seed):
    """Yields endless batches of new scenes: pixels (N, 64, 64, 1) and objects (N, M, 5).

    Args:
        items: `Items`.
        size: int, N.
        seed: int.
    """
    draw = np.random.default_rng(seed)
    while True:
        yield tuple(draw_scenes(items, size, draw))


def without_margin(item):
    """Crops a picture (height, width) to the pixels that are not black."""
    rows, columns = np.flatnonzero(item.any(axis=1)), np.flatnonzero(item.any(axis=0))
    if not len(rows):
        return item[:0, :0]
    return item[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _overlap(a, b):
    """Returns the common area of boxes (left, top, right, bottom) as a part of the smaller one."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return width * height / smaller
