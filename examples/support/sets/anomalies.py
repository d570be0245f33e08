"""Series with labelled anomalies: two that aeon ships, and synthetic ones.

Shapes: S steps of a series, C channels.
"""

from typing import NamedTuple

import numpy as np
from support.sets.labelled_series import aeon_module


class Watched(NamedTuple):
    """A series with known anomalies.

    Attributes:
        series: float32 (S, C).
        labels: bool (S,), whether a step is part of an anomaly.
    """

    series: np.ndarray
    labels: np.ndarray


class AnomalySets(NamedTuple):
    """A training series without anomalies, and series for validation and test.

    All are standardised: mean 0 and standard deviation 1 of each channel of `train`.

    Attributes:
        train: float32 (S, C).
        valid: `Watched`; `None` if the set has none.
        test: `Watched`.
    """

    train: np.ndarray
    valid: Watched | None
    test: Watched


def read_anomalies(name):
    """Reads a set that aeon ships with its package.

    Args:
        name: str. "ecg" is ecg-diff-count-3, a synthetic electrocardiogram of the generator
            GutenTAG (Wenig et al. 2022) with three kinds of anomalies. "bleeding" is number 135 of
            the UCR anomaly archive, InternalBleeding16 (Wu and Keogh 2020, arXiv 2009.13807), with
            one anomaly and no validation series.

    Returns:
        `AnomalySets`.

    Raises:
        ValueError: aeon is not installed, or its version does not ship the set.

    Example:

    >>> read_anomalies("ecg").train.shape  # doctest: +SKIP
    (10000, 1)
    """
    datasets = aeon_module("datasets")
    try:
        if name == "bleeding":
            test, train = datasets.load_kdd_tsad_135(), datasets.load_kdd_tsad_135("train")
            return _standardised(train[0], None, test)
        load = datasets.load_ecg_diff_count_3
    except AttributeError as error:
        raise ValueError(f"this version of aeon does not ship the set: {error}") from error
    *test, train, _ = load("semi-supervised")
    return _standardised(train, load("supervised")[2:], test)


def _standardised(train, *watched):
    """Returns `AnomalySets` of series (S,) or (S, C), and pairs of series and labels or `None`."""
    train = np.reshape(train, (len(train), -1))
    mean, deviation = train.mean(axis=0), np.maximum(train.std(axis=0), 1e-8)

    def scaled(series):
        return ((np.reshape(series, (len(series), -1)) - mean) / deviation).astype("float32")

    pairs = [pair and Watched(scaled(pair[0]), np.asarray(pair[1]) > 0) for pair in watched]
    return AnomalySets(scaled(train), *pairs)


def made_anomalies(steps=3000):
    """Makes noisy waves of two channels, the same in every call.

    A period has 40 steps. In an anomaly of 40 to 80 steps the second channel is late, or the wave
    is twice as fast, or flat.

    Args:
        steps: int, S, at least 1000. Defaults to 3000.

    Returns:
        `AnomalySets`, with six anomalies in `valid` and in `test`.

    Raises:
        ValueError: `steps` is too small.

    Example:

    >>> made_anomalies().test.series.shape
    (3000, 2)
    """
    if steps < 1000:
        raise ValueError(f"steps must be at least 1000, got {steps}.")
    draw = np.random.default_rng(0)

    def one(kinds):
        speed, late, size = np.ones(steps), np.zeros(steps), np.ones(steps)
        labels = np.zeros(steps, bool)
        for number, kind in enumerate(kinds):
            start = (number + 1) * steps // (len(kinds) + 1) + draw.integers(-20, 21)
            place = slice(start, start + draw.integers(40, 81))
            labels[place] = True
            changed, value = {"late": (late, 1.5), "fast": (speed, 2), "flat": (size, 0.1)}[kind]
            changed[place] = value
        angle = np.cumsum(speed) * 2 * np.pi / 40 + draw.uniform(0, 2 * np.pi)
        first = size * (np.sin(angle) + 0.5 * np.sin(3 * angle))
        series = np.stack([first, size * np.cos(angle - late)], axis=1)
        return series + draw.normal(0, 0.2, series.shape), labels

    kinds = ("late", "fast", "flat") * 2
    return _standardised(one(())[0], one(kinds), one(kinds))
