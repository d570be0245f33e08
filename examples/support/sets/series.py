"""Time series: split by time, standardised, cut into windows.

Shapes: R rows (steps of time), F series, S steps of the past, T steps to forecast, N windows.
"""

import csv
import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np

MONTH = 30 * 24  # hours; Informer's months have 30 days
ETT_ROWS = (12 * MONTH, 4 * MONTH, 4 * MONTH)


class SeriesSets(NamedTuple):
    """Series for training, validation and test, in the order of time.

    Each series is standardised: mean 0 and standard deviation 1 in the training part.

    Attributes:
        train, valid, test: (R, F), float32.
        names: tuple of F strings.
    """

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    names: tuple[str, ...]

    def windows(self, past, future, limit=None):
        """Returns all pairs of past and future, one for each step of time.

        The past of validation and test windows may reach back into the previous part, but not
        their future.

        Args:
            past: S, int. future: T, int.
            limit: int, number of windows used per set. Defaults to `None`: all.

        Returns:
            Dict from "train", "valid", "test" to two arrays (N, S, F) and (N, T, F).

        Raises:
            ValueError: a part is too short for a window.
        """
        before = self.train[:0]
        parts = {}
        for name in ("train", "valid", "test"):
            rows = np.concatenate([before, getattr(self, name)])
            parts[name] = [part[:limit] for part in windows(rows, past, future)]
            before = rows[len(rows) - past :]
        return parts


def windows(rows, past, future):
    """Returns all pairs of S steps (N, S, F) and the next T steps (N, T, F), N = R - S - T + 1.

    Raises:
        ValueError: there are fewer than S + T rows, or S or T is not positive.

    Example:

    >>> before, after = windows(np.arange(10.0)[:, None], past=4, future=2)
    >>> before[1, :, 0], after[1, :, 0]
    (array([1., 2., 3., 4.]), array([5., 6.]))
    """
    if past < 1 or future < 1 or len(rows) < past + future:
        raise ValueError(
            f"{len(rows)} steps of time hold no window of {past} steps and {future} after them."
        )
    both = np.lib.stride_tricks.sliding_window_view(rows, past + future, axis=0)  # (N, F, S + T)
    both = both.transpose(0, 2, 1)
    return both[:, :past], both[:, past:]


def split(rows, counts, names):
    """Splits series by time into training, validation and test sets.

    Args:
        rows: (R, F).
        counts: three int, numbers of rows; further rows are left out.
        names: F strings.

    Returns:
        `SeriesSets`.

    Raises:
        ValueError: there are fewer rows.
    """
    rows = np.asarray(rows, np.float64)
    if len(rows) < sum(counts):
        raise ValueError(f"{sum(counts)} rows are needed, but there are {len(rows)}.")
    train = rows[: counts[0]]
    rows = (rows - train.mean(axis=0)) / np.maximum(train.std(axis=0), 1e-8)
    parts = np.split(rows[: sum(counts)].astype("float32"), np.cumsum(counts)[:2])
    return SeriesSets(*parts, tuple(names))


def read_table(path):
    """Reads series from a CSV file: names in the first line, dates in the first column.

    Args:
        path: the file; compressed if its name ends with ".gz".

    Returns:
        (R, F) float64, and a tuple of F names.

    Raises:
        ValueError: there is no table, a line has more or fewer columns than the first one, or a
            value is not a finite number.
        OSError: there is no such file, or it cannot be read.

    Example:

    >>> rows, names = read_table("ETTh1.csv.gz")  # doctest: +SKIP
    >>> names  # doctest: +SKIP
    ('HUFL', 'HULL', 'MUFL', 'MULL', 'LUFL', 'LULL', 'OT')
    """
    path = Path(path)
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        lines = [line for line in csv.reader(file) if line]
    if len(lines) < 2 or len(lines[0]) < 2:
        raise ValueError(f"{path} has no table: dates in one column, numbers in others.")
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(lines[0]):
            raise ValueError(
                f"{path}, line {number}: {len(line)} columns, but {len(lines[0])} names."
            )
    try:
        rows = np.array([line[1:] for line in lines[1:]], np.float64)
    except ValueError as error:
        raise ValueError(f"{path}: {error}.") from error
    if not np.isfinite(rows).all():
        raise ValueError(f"{path} has numbers that are not finite.")
    return rows, tuple(lines[0][1:])


def electricity_transformer(folder):
    """Reads ETTh1: two years of loads and oil temperature of a transformer, hour by hour.

    The split is Informer's (Zhou et al. 2021, arXiv 2012.07436): 12 months for training, 4 for
    validation, 4 for the test.

    Args:
        folder: folder of "ETTh1.csv.gz" or "ETTh1.csv".

    Returns:
        `SeriesSets`.

    Raises:
        ValueError, OSError: see `read_table` and `split`.

    Example:

    >>> electricity_transformer("timeseries").test.shape  # doctest: +SKIP
    (2880, 7)
    """
    packed = Path(folder, "ETTh1.csv.gz")
    rows, names = read_table(packed if packed.exists() else Path(folder, "ETTh1.csv"))
    return split(rows, ETT_ROWS, names)


def made_series(days=150):
    """Makes three hourly series with daily and weekly cycles, the same in every call.

    Args:
        days: int, total number of days. A fifth is for validation, another for the test.

    Returns:
        `SeriesSets`.
    """
    draw = np.random.default_rng(0)
    hours = np.arange(24 * days)
    day, week = 2 * np.pi * hours / 24, 2 * np.pi * hours / (24 * 7)
    drift = np.cumsum(draw.normal(0, 0.03, (len(hours), 3)), axis=0)
    work = 1 + 0.5 * np.sign(np.sin(week))[:, None]  # half of the week is busier
    waves = np.stack([np.sin(day), np.sin(day + 1) ** 3, np.cos(day) * np.sin(2 * day)], axis=1)
    rows = work * waves + drift + draw.normal(0, 0.2, (len(hours), 3))
    part = 24 * (days // 5)
    return split(rows, (len(rows) - 2 * part, part, part), ("sun", "load", "wind"))
