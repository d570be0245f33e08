"""Rows of the table of kinds: a model with random weights, and its inputs.

Shapes: B batch, S length.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

VOCABULARY = 97
# (B, S, side of the padding). Inputs without a length use only B.
CASES = (
    (1, 1, "right"),
    (1, 2, "right"),
    (3, 7, "right"),
    (3, 7, "left"),
    (8, 24, "right"),
    (8, 24, "left"),
    (32, 40, "right"),
)
QUICK_CASES = ((1, 1, "right"), (3, 7, "right"), (3, 7, "left"))


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of task.

    Attributes:
        name: str, shown in the table.
        build: function that returns the model.
        inputs: function from a random generator and `real`, boolean (B, S), to a dict of arrays;
            `real` is False for padding.
        search: function that returns a search, or `None` for the forward pass.
        sides: sides on which padding must change nothing: "right", "left", both or none.
        sequence: whether inputs have a length.
        left: whether inputs may be padded on the left; prompts may not.
        blank: whether a row may contain only padding.
        own: whether the model is made of this package's layers.
    """

    name: str
    build: Callable
    inputs: Callable
    search: Callable = None
    sides: tuple = ("right",)
    sequence: bool = True
    left: bool = True
    blank: bool = True
    own: bool = True

    def cases(self, sizes):
        """Makes inputs of several sizes, with rows of different length."""
        rng = np.random.default_rng(5)
        seen, cases = set(), []
        for batch, length, side in sizes:
            if side == "left" and not self.left:
                continue
            if (batch, self.sequence and (length, side)) in seen:
                continue
            seen.add((batch, self.sequence and (length, side)))
            cases.append(self.inputs(rng, real_places(batch, length, side)))
        if self.sequence and self.blank:
            real = real_places(3, 5, "right")
            real[1] = False
            cases.append(self.inputs(rng, real))
        return cases


def real_places(batch, length, side):
    """Returns boolean (B, S): row i has 2 i positions less than the first, at least one."""
    lengths = np.maximum(1, length - 2 * np.arange(batch))[:, None]
    places = np.arange(length)[None]
    return places < lengths if side == "right" else places >= length - lengths


def ids(rng, real, low=4, high=VOCABULARY):
    """Draws ids (B, S) int32, 0 for padding."""
    return (rng.integers(low, high, real.shape) * real).astype("int32")


def prompts(rng, real):
    """Draws ids that start with the begin token."""
    found = ids(rng, real)
    found[np.arange(len(real)), real.argmax(axis=1)] = 2
    return found * real.astype("int32")


def segments(real):
    """Returns segment ids (B, S): the first half of the real positions is the first text."""
    order = real.cumsum(axis=1)
    second = 2 * order > real.sum(axis=1, keepdims=True) + 1
    return ((1 + second) * real).astype("int32")


def frames(rng, real, channels):
    """Draws frames (B, S, channels) float32, zeros for padding."""
    numbers = rng.standard_normal((*real.shape, channels))
    return (numbers * real[..., None]).astype("float32")


def longer(real, more=3):
    """Lengthens each row of `real` by `more` positions, for an input of another length."""
    return np.concatenate([real[:, :1].repeat(more, axis=1), real], axis=1)


def images(rng, real, size=32):
    """Draws images (B, size, size, 3) of 16 coloured areas and some noise, pixels from 0 to 1.

    Images of pure noise become nearly equal after a few strides. Batch norms then amplify the
    small differences, and the rounding errors of Keras with them.
    """
    areas = rng.random((len(real), 4, 4, 3), "float32")
    pixels = areas.repeat(size // 4, axis=1).repeat(size // 4, axis=2)
    return 0.8 * pixels + 0.2 * rng.random(pixels.shape, "float32")
