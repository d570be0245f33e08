"""Captions such as "a small boot above a large bag", pictures of them, and rules that compare both.

A scene is five integers: size, class, relation, size, class. Size 0 is small, 1 is large. A board
has 11 x 11 cells of 4 x 4 pixels. Small items take 3 x 3 cells, large ones 5 x 5.

Shapes: N scenes, I items, C classes.
"""

import itertools

import numpy as np
from support.sets.scenes import without_margin

CELL, BOARD = 4, 11  # pixels of a cell's side, cells of a board's side
SIDE = CELL * BOARD  # of a picture, in pixels
CELLS = np.array([3, 5])  # of a small and of a large item's side
FRAME = CELL * CELLS.max()  # side of the largest item in pixels
SIZES = ("small", "large")
RELATIONS = ("above", "below", "left of", "right of")
DARKEST = 0.2  # darker pixels do not count as parts of an item


def captions(scenes, labels):
    """Returns a caption for each scene.

    >>> captions([[0, 1, 2, 1, 0]], ("bag", "boot"))
    ['a small boot left of a large bag']
    """
    return [
        f"a {SIZES[a]} {labels[b]} {RELATIONS[c]} a {SIZES[d]} {labels[e]}"
        for a, b, c, d, e in np.asarray(scenes).tolist()
    ]


def reversed_scenes(scenes):
    """Names the second item first: "a boot above a bag" becomes "a bag below a boot"."""
    scenes = np.asarray(scenes)
    return np.stack([*scenes[:, 3:].T, scenes[:, 2] ^ 1, *scenes[:, :2].T], axis=1)


def split_scenes(classes):
    """Returns the scenes for training, validation and test: 80, 10 and 10 % of all.

    A scene and its reverse are in the same part. Every call returns the same parts.

    Args:
        classes: int, C.

    Returns:
        Three int arrays (N, 5).
    """
    sizes, kinds = range(len(SIZES)), range(classes)
    every = np.array([*itertools.product(sizes, kinds, (0, 2), sizes, kinds)])
    np.random.default_rng(0).shuffle(every)
    ends = len(every) * 8 // 10, len(every) * 9 // 10
    return [np.concatenate([part, reversed_scenes(part)]) for part in np.split(every, ends)]


class Items:
    """Items in both sizes.

    Args:
        pixels: float (I, height, width, 1), from 0 to 1, one item each, on black.
        classes: int (I,).
        darkest: float, darker pixels become black.

    Attributes:
        pixels: a uint8 array (I, side, side) for each size.
        classes: int (I,), without the empty pictures.
    """

    def __init__(self, pixels, classes, darkest):
        import tensorflow as tf

        pixels = np.where(pixels < darkest, 0, pixels)
        kept = pixels.any(axis=(1, 2, 3))
        pixels, self.classes = pixels[kept], np.asarray(classes)[kept]
        boxes = np.array([_square(picture[..., 0]) for picture in pixels])
        self.pixels = []
        for side in CELL * CELLS:
            parts = []
            for some in np.array_split(np.arange(len(pixels)), max(1, len(pixels) // 5000)):
                cut = tf.image.crop_and_resize(
                    pixels[some], boxes[some], np.arange(len(some)), (2 * side, 2 * side)
                )
                scaled = cut.numpy().reshape(len(some), side, 2, side, 2).mean(axis=(2, 4))
                parts.append(np.rint(255 * scaled).astype(np.uint8))
            self.pixels.append(np.concatenate(parts))
        self._places = [np.flatnonzero(self.classes == n) for n in range(self.classes.max() + 1)]

    def frames(self, most):
        """Returns the first `most` items in frames, uint8 (I, 20, 20), and their classes.

        Small and large items alternate.
        """
        sizes = np.arange(len(self.classes))[:most] % len(SIZES)
        frames = [framed(self.pixels[size][item]) for item, size in enumerate(sizes)]
        return np.array(frames), self.classes[:most]

    def draw(self, scenes, random):
        """Draws pictures: the items at random places, at least a cell apart.

        Args:
            scenes: int (N, 5).
            random: `numpy.random.Generator`.

        Returns:
            uint8 (N, 44, 44).
        """
        pictures = np.zeros((len(scenes), SIDE, SIDE), np.uint8)
        for picture, (*first, relation, size, kind) in zip(pictures, scenes, strict=True):
            pair = [tuple(first), (size, kind)]
            if relation % 2:  # the other item comes first in reading order
                pair.reverse()
            cells = CELLS[[size for size, _ in pair]]
            start = random.integers(BOARD - cells.sum())
            along = start, random.integers(start + cells[0] + 1, BOARD - cells[1] + 1)
            across = random.integers(BOARD - cells + 1)
            for item, (size, kind) in enumerate(pair):
                place = CELL * np.array([along[item], across[item]])
                top, left = place if relation < 2 else place[::-1]
                which = random.choice(self._places[kind])
                side = CELL * CELLS[size]
                picture[top : top + side, left : left + side] = self.pixels[size][which]
        return pictures


def _square(picture):
    """Returns the smallest square around an item: y1, x1, y2, x2 as `crop_and_resize` takes it."""
    rows, columns = (np.flatnonzero(picture.any(axis=axis)) for axis in (1, 0))
    middle = np.array([rows[0] + rows[-1], columns[0] + columns[-1]]) / 2
    half = max(np.ptp(rows), np.ptp(columns)) / 2
    corners = np.concatenate([middle - half, middle + half])
    return corners / (len(picture) - 1)


def framed(picture):
    """Moves an item to the middle of a black frame of 20 x 20 pixels; a larger one is cut."""
    item = without_margin(picture)[:FRAME, :FRAME]
    frame = np.zeros((FRAME, FRAME), picture.dtype)
    top, left = (np.array(frame.shape) - item.shape) // 2
    frame[top : top + item.shape[0], left : left + item.shape[1]] = item
    return frame


def two_parts(picture, relation):
    """Cuts a picture at its widest empty stripe.

    Args:
        picture: uint8 (44, 44).
        relation: int, selects the direction of the stripe, and the order of the parts.

    Returns:
        The two parts in the order of a caption with this relation, or `None` without a stripe
        between two parts.
    """
    picture = np.where(picture < 255 * DARKEST, 0, picture)
    rows = np.flatnonzero(picture.any(axis=1 if relation < 2 else 0))
    steps = np.diff(rows)
    if not len(steps) or steps.max() < 2:
        return None
    cut = rows[steps.argmax()] + 1
    parts = (picture[:cut], picture[cut:]) if relation < 2 else (picture[:, :cut], picture[:, cut:])
    return parts[::-1] if relation % 2 else parts


def size_of(part):
    """Returns 0 for a small item, 1 for a large one, -1 for neither."""
    side = max(without_margin(part).shape)
    return int(np.argmin(abs(CELL * CELLS - side))) if 8 < side <= 24 else -1


def right_parts(pictures, scenes, classify):
    """Compares pictures with their scenes.

    Args:
        pictures: uint8 (N, 44, 44).
        scenes: int (N, 5).
        classify: function from items in frames, uint8 (N, 20, 20), to class numbers (N,).

    Returns:
        Dict of boolean arrays (N,): "both right" for pictures with the right items in the right
        sizes and places, and "items" and "sizes" for one of these.
    """
    cut = [two_parts(picture, scene[2]) for picture, scene in zip(pictures, scenes, strict=True)]
    known = np.array([parts is not None for parts in cut])
    kinds, sizes = np.full((2, len(cut), 2), -1)
    pairs = [parts for parts in cut if parts is not None]
    if pairs:
        frames = np.array([[framed(part) for part in parts] for parts in pairs])
        kinds[known] = classify(frames.reshape(-1, FRAME, FRAME)).reshape(-1, 2)
        sizes[known] = [[size_of(part) for part in parts] for parts in pairs]
    scenes = np.asarray(scenes)
    classes = (kinds == scenes[:, [1, 4]]).all(axis=1)
    sizes = (sizes == scenes[:, [0, 3]]).all(axis=1)
    return {"both right": classes & sizes, "items": classes, "sizes": sizes}
