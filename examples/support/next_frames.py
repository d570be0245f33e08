"""Predicts the next frames of a clip as moved parts of the last one.

Shapes: B clips, N next frames, S height and width of a frame in pixels, P patches of a frame, p
height and width of a patch, D size of a vector.
"""

import math

import numpy as np
from keras import layers, ops


def moved(last, moves):
    """Returns parts of the last frame, with bilinear weights (arXiv 1506.02025).

    Args:
        last: float (B, S, S).
        moves: float (B, P, N, 3), from a patch of a next frame to the place that it shows: rows,
            columns, and the logarithm of the scale. Zeros show the patch itself.

    Returns:
        (B, P, N, p, p).

    Example, one patch, moved by a row and half a column:

    >>> moves = np.array([1, 0.5, 0], "float32").reshape(1, 1, 1, 3)
    >>> found = moved(ops.reshape(ops.arange(16, dtype="float32"), (1, 4, 4)), moves)
    >>> ops.convert_to_numpy(found)[0, 0, 0, 0]
    array([4.5, 5.5, 6.5, 3.5], dtype=float32)
    """
    side, (_, patches, count, _) = last.shape[-1], moves.shape
    grid = math.isqrt(patches)
    size = side // grid
    pixels = np.arange(side, dtype="float32")
    inside = pixels[:size] - (size - 1) / 2
    weights = []
    for axis, cell in enumerate(np.indices((grid, grid), "float32")):
        middles = (cell.reshape(-1, 1, 1) + 0.5) * size - 0.5
        places = ops.exp(moves[..., 2:]) * inside + moves[..., axis : axis + 1] + middles
        nearby = ops.relu(1 - ops.abs(places[..., None] - pixels))  # (B, P, N, p, S)
        weights.append(ops.reshape(nearby, (-1, patches * count, size, side)))
    rows, columns = weights
    x = ops.matmul(ops.reshape(rows, (-1, patches * count * size, side)), last)
    x = ops.reshape(x, (-1, patches * count, size, side))
    x = ops.matmul(x, ops.swapaxes(columns, 2, 3))
    return ops.reshape(x, (-1, patches, count, size, size))


def next_frames(last, x, count):
    """Predicts frames. Each patch is mixed of the patch itself and a moved one, and corrected.

    Args:
        last: (B, S, S), the last frame.
        x: (B, P, D), vectors of its patches in reading order.
        count: int, N.

    Returns:
        (B, N, S, S).
    """
    side, patches = last.shape[-1], x.shape[1]
    grid = math.isqrt(patches)
    size = side // grid

    def dense(*shape, **options):
        found = layers.Dense(count * math.prod(shape), **options)(x)
        return ops.reshape(found, (-1, patches, count, *shape))

    same = ops.swapaxes(ops.reshape(last, (-1, grid, size, grid, size)), 2, 3)
    same = ops.reshape(same, (-1, patches, 1, size, size))
    # At first, places and sizes change steadily. Sizes change slowly.
    steps = np.arange(1, count + 1, dtype="float32")[:, None]
    moves = dense(3) * (steps * np.array([1, 1, 0.1], "float32"))
    mixed = same + ops.sigmoid(dense(size, size)) * (moved(last, moves) - same)
    mixed = mixed + dense(size, size, kernel_initializer="zeros")
    mixed = ops.reshape(mixed, (-1, grid, grid, count, size, size))
    return ops.reshape(ops.transpose(mixed, (0, 3, 1, 4, 2, 5)), (-1, count, side, side))
