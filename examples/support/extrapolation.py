"""Continues clips by the motion between two frames, without learning.

Shapes: N clips, F frames, S height and width of a frame.
"""

import numpy as np
from support.sets.clips import GIVEN, NEXT, SIDE, placed

LAGS = 1, 2, 3, 5  # numbers of frames over which the motion is measured


def displacements(before, after):
    """Finds how far pictures moved, by the largest cross-correlation.

    Args:
        before, after: float (N, S, S).

    Returns:
        int (N, 2), rows and columns.

    Example:

    >>> before = np.zeros((1, 32, 32))
    >>> before[0, 3:6, 7:9] = 1
    >>> displacements(before, np.roll(before, (2, -1), axis=(1, 2)))
    array([[ 2, -1]])
    """
    side = before.shape[-1]
    first, second = (np.fft.rfft2(frames, (2 * side, 2 * side)) for frames in (before, after))
    products = np.fft.irfft2(second * first.conj()).reshape(len(before), -1)
    found = np.stack(np.divmod(products.argmax(axis=1), 2 * side), axis=1)
    return (found + side) % (2 * side) - side  # the second half is negative


def shifted(frames, lag, parts):
    """Shifts the last frame again and again as far as it moved in `lag` frames.

    Args:
        frames: float (N, F, 32, 32).
        lag: int, below F.
        parts: bool, whether to shift only the moving part: the part that is brighter than the
            darkest value of each pixel.

    Returns:
        float32 (N, NEXT, 32, 32).
    """
    still = frames.min(axis=1, keepdims=True) * parts
    moving = frames - still
    speed = displacements(moving[:, -1 - lag], moving[:, -1])[:, None] / lag
    middles = (SIDE - 1) / 2 + speed * np.arange(1, NEXT + 1)[:, None]
    sides = np.full((len(frames), NEXT), SIDE)
    return np.maximum(placed(moving[:, -1], middles, sides), still)


def errors(frames, clips):
    """Returns the mean squared error of the next frames of each clip, (N,)."""
    return np.square(frames - clips.frames[:, GIVEN:]).mean(axis=(1, 2, 3))


def continued(valid, test, parts):
    """Returns `shifted` frames of the clips `test`, with the best of `LAGS` for `valid`."""
    tried = [errors(shifted(valid.frames[:, :GIVEN], lag, parts), valid).mean() for lag in LAGS]
    return shifted(test.frames[:, :GIVEN], LAGS[np.argmin(tried)], parts)
