"""What a row of the table of kinds is: a model with random weights, and inputs for it.

Shapes: B batch, S length.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

VOCABULARY = 97
# (B, S, side of the padding); of inputs without a length only B counts.
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
        name: what the table calls it.
        build: function without arguments that gives the model.
        inputs: function from a random generator and `real`, boolean (B, S), to a dict of arrays;
            padding stands where `real` is False.
        search: function without arguments that gives a search, or `None` for the forward pass.
        sides: where padding must change nothing: "right", "left", both or none of them.
        sequence: whether inputs have a length at all.
        left: whether inputs may be padded on the left; a prompt, which text follows, may not.
        blank: whether a row may be padding only.
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
        """Inputs of several sizes, with rows of different length."""
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
    """Boolean (B, S): row i is shorter by 2 i than the first, but has one place at least."""
    lengths = np.maximum(1, length - 2 * np.arange(batch))[:, None]
    places = np.arange(length)[None]
    return places < lengths if side == "right" else places >= length - lengths


def ids(rng, real, low=4, high=VOCABULARY):
    """Ids (B, S) int32, 0 where nothing is real."""
    return (rng.integers(low, high, real.shape) * real).astype("int32")


def prompts(rng, real):
    """Ids that start with the begin token."""
    found = ids(rng, real)
    found[np.arange(len(real)), real.argmax(axis=1)] = 2
    return found * real.astype("int32")


def segments(real):
    """Segment ids (B, S): the first text takes the first half of the real places."""
    order = real.cumsum(axis=1)
    second = 2 * order > real.sum(axis=1, keepdims=True) + 1
    return ((1 + second) * real).astype("int32")


def frames(rng, real, channels):
    """Frames (B, S, channels) float32, zeros where nothing is real."""
    numbers = rng.standard_normal((*real.shape, channels))
    return (numbers * real[..., None]).astype("float32")


def longer(real, more=3):
    """`real` with more places in each row, for an input with a length of its own."""
    return np.concatenate([real[:, :1].repeat(more, axis=1), real], axis=1)


def images(rng, real, size=32):
    """Pictures (B, size, size, 3) of 16 coloured areas and some noise, with pixels from 0 to 1.

    Noise alone would look the same everywhere after a few strides. Batch norms then make the rest
    of the difference large, and with it Keras' own rounding.
    """
    areas = rng.random((len(real), 4, 4, 3), "float32")
    pixels = areas.repeat(size // 4, axis=1).repeat(size // 4, axis=2)
    return 0.8 * pixels + 0.2 * rng.random(pixels.shape, "float32")
