"""Labelled series of several channels: sets that aeon ships, and synthetic gestures.

Shapes: S steps of one series, C channels.
"""

from importlib import import_module
from typing import NamedTuple

import numpy as np


class LabelledSeries(NamedTuple):
    """Series of one set.

    Attributes:
        series: list of N float32 arrays (S, C); their lengths S may differ.
        labels: list of N str.
    """

    series: list[np.ndarray]
    labels: list[str]


def aeon_module(name):
    """Imports a module of the package aeon.

    Raises:
        ValueError: aeon is not installed.
    """
    try:
        return import_module(f"aeon.{name}")
    except ModuleNotFoundError as error:
        raise ValueError(
            f"the real series and ROCKET need aeon, and {error.name} is not installed. Install it "
            "in a separate environment, because it needs an older NumPy than "
            "constraints.txt names: pip install aeon"
        ) from error


def read_uea(name, limit=None):
    """Reads a set of the UEA archive (Bagnall et al. 2018) that aeon ships with its package.

    Args:
        name: str, such as "JapaneseVowels" or "BasicMotions".
        limit: int, number of series used per set. Defaults to `None`: all.

    Returns:
        Two `LabelledSeries`, for training and test. Channels are standardised: mean 0 and standard
        deviation 1 in the training set.

    Raises:
        ValueError: aeon is not installed.

    Example:

    >>> train, test = read_uea("JapaneseVowels")  # doctest: +SKIP
    >>> len(train.series), train.series[0].shape  # doctest: +SKIP
    (270, (20, 12))
    """
    datasets, sets = aeon_module("datasets"), []
    for part in ("train", "test"):
        series, labels = datasets.load_classification(name, split=part)
        arrays = [np.asarray(one, np.float64).T for one in series[:limit]]
        # Some sets pad series to one length with NaN.
        arrays = [one[~np.isnan(one).any(axis=1)] for one in arrays]
        sets.append(LabelledSeries(arrays, [str(label) for label in labels[:limit]]))
    return standardise(*sets)


def standardise(train, *others):
    """Scales sets to mean 0 and standard deviation 1 of each channel in the first one."""
    rows = np.concatenate(train.series)
    mean, deviation = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-8)
    return [
        LabelledSeries(
            [((one - mean) / deviation).astype("float32") for one in some.series], some.labels
        )
        for some in (train, *others)
    ]


def folds(labels, count, seed=0):
    """Assigns examples to folds, each label as evenly as possible.

    Args:
        labels: list of N str.
        count: int, number of folds.
        seed: int. Defaults to 0.

    Returns:
        int array (N,), a fold in 0 ... `count` - 1 for each example.

    Example:

    >>> sorted(folds(["a", "a", "b", "b"], 2)[:2].tolist())
    [0, 1]
    """
    draw, found = np.random.default_rng(seed), np.zeros(len(labels), int)
    for label in sorted({*labels}):
        places = np.flatnonzero([one == label for one in labels])
        found[draw.permutation(places)] = (np.arange(len(places)) + draw.integers(count)) % count
    return found


SHAPES = ("circle", "eight", "line", "square")


def made_gestures(limit=None):
    """Makes two-dimensional movements of a hand, of 20 to 60 steps, the same in every call.

    Each has a random speed, place, size and angle, with noise.

    Args:
        limit: int, number of series used per set. Defaults to `None`: all, 320 for training and
            120 for the test.

    Returns:
        Two `LabelledSeries` with two channels.
    """
    draw, series, labels = np.random.default_rng(0), [], []
    for number in range(440):
        label = SHAPES[number % len(SHAPES)]
        angle = 2 * np.pi * np.linspace(0, 1, draw.integers(20, 61)) + draw.uniform(0, 2 * np.pi)
        x, y = np.cos(angle), np.sin(angle)
        if label == "eight":
            y = np.sin(2 * angle)
        elif label == "line":
            y = 0.2 * np.cos(2 * angle)
        elif label == "square":
            x, y = (one / np.maximum(np.abs(x), np.abs(y)) for one in (x, y))
        turn, size = draw.uniform(-0.5, 0.5), draw.uniform(0.6, 1.4)
        path = (
            size
            * np.stack([x, y], axis=1)
            @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        )
        path += draw.normal(0, 0.3, 2) + draw.normal(0, 0.08, path.shape)
        series.append(path)
        labels.append(label)
    parts = (series[:320], labels[:320]), (series[320:], labels[320:])
    return standardise(*(LabelledSeries(some[:limit], names[:limit]) for some, names in parts))
