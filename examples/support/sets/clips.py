"""Clips: one item moves or changes its size, another one stands still.

Both items have the same distribution of places and sizes in one of the given frames, `SHARED`. This
frame alone therefore tells neither the motion nor which item moves.

Shapes: N clips, F frames, S height and width of an item in pixels.
"""

from typing import NamedTuple

import numpy as np

SIDE = 32  # height and width of a frame in pixels
GIVEN, NEXT = 6, 3  # frames that a model reads, and frames that it predicts
SHARED = 3  # the frame with the same distribution for all motions
MOTIONS = (
    "left",
    "right",
    "up",
    "down",
    "clockwise",
    "anticlockwise",
    "growing",
    "shrinking",
)
ALONG = np.array([[0, -1], [0, 1], [-1, 0], [1, 0]])  # rows and columns of the first four
SIZES = 10, 14  # smallest and largest side of an item in the shared frame
APART = 11  # least distance of the middles of both items in the shared frame


class Clips(NamedTuple):
    """Clips and what happens in them.

    Attributes:
        frames: float32 (N, GIVEN + NEXT, 32, 32), from 0 to 1.
        motions: int (N,), places in `MOTIONS`.
        moving, still: int (N,), classes of the items.
    """

    frames: np.ndarray
    motions: np.ndarray
    moving: np.ndarray
    still: np.ndarray


def placed(pictures, middles, sides):
    """Draws each picture in black frames at several places and sizes.

    A pixel of a frame is the mean over the part of the picture that it covers.

    Args:
        pictures: float (N, S, S).
        middles: float (N, F, 2), row and column of the picture's middle.
        sides: float (N, F), height and width of the picture.

    Returns:
        float32 (N, F, 32, 32).
    """
    size = pictures.shape[-1]
    scale = (size / sides)[..., None, None]
    # Where each row and each column of a frame is in the picture: (N, F, 2, 32, 1).
    places = (np.arange(SIDE) - middles[..., None]) * scale + (size - 1) / 2
    scale, distances = scale[..., None], np.abs(places[..., None] - np.arange(size))
    common = np.clip((1 + scale) / 2 - distances, 0, np.minimum(scale, 1))
    rows, columns = np.moveaxis(common / scale, 2, 0).astype("float32")
    return rows @ pictures[:, None].astype("float32") @ columns.swapaxes(-1, -2)


def draw_clips(pixels, classes, count, random):
    """Draws clips of random items with random motions.

    Args:
        pixels: uint8 (I, S, S), items that fill their squares.
        classes: int (I,).
        count: int, N.
        random: `numpy.random.Generator`.

    Returns:
        `Clips`.
    """
    which = random.integers(len(classes), size=(2, count))
    motions = random.integers(len(MOTIONS), size=count)
    start = random.uniform(SIDE / 4, SIDE * 3 / 4, (2, 40 * count, 2))
    far = np.hypot(*(start[0] - start[1]).T) >= APART
    start = start[:, far][:, :count, None]
    sides = random.uniform(*SIZES, (2, count, 1)) * np.ones(GIVEN + NEXT)
    # Pixels along the path, and the change of the place: (N, F), (N, F, 2).
    steps = random.uniform(1, 2, (count, 1)) * (np.arange(GIVEN + NEXT) - SHARED)
    moved = steps[..., None] * ALONG[np.minimum(motions, 3), None]
    phase, radius = random.uniform(0, 2 * np.pi, (count, 1)), random.uniform(2.5, 3.5, (count, 1))
    angles = phase + np.where(motions == 4, 1, -1)[:, None] * steps / radius
    circle = [radius * (turn(angles) - turn(phase)) for turn in (np.sin, np.cos)]
    moved = np.where((motions < 4)[:, None, None], moved, np.stack(circle, axis=-1))
    change = np.where(motions == 6, 0.05, -0.05)[:, None] * steps
    resized = (motions >= 6)[:, None]
    moving = placed(
        pixels[which[0]] / 255,
        start[0] + np.where(resized[..., None], 0, moved),
        sides[0] * np.exp(np.where(resized, change, 0)),
    )
    still = placed(pixels[which[1]] / 255, start[1], sides[1][:, :1])
    return Clips(np.maximum(moving, still), motions, *classes[which])
