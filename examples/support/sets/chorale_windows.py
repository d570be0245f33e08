"""Windows of chorales: inputs and labels of a language model.

Shapes: N windows, T tokens per window, four for each sixteenth.
"""

import numpy as np
from support.sets.chorales import SILENCE, SIXTEENTHS, VOICES, to_ids, transpose, transpositions

from keras_transformer.special_ids import BEGIN_ID


def training_windows(chorales, window, count, seed):
    """Yields endless batches of windows from any beat, in any key that the voices can sing.

    Each window is transposed so that each voice stays between its lowest and highest note in all
    chorales. Long chorales are drawn more often.

    Args:
        chorales: list of int arrays (S, 4), each at least as long as a window.
        window: int, sixteenths of a window.
        count: int, N.
        seed: int.

    Yields:
        Inputs and labels, int32 (N, T) each.

    Raises:
        ValueError: a chorale is shorter than a window.
    """
    shortest = min(map(len, chorales))
    if shortest < window:
        raise ValueError(f"a window has {window} sixteenths, but a chorale has only {shortest}.")
    draw = np.random.default_rng(seed)
    sung = np.ma.masked_equal(np.concatenate(chorales), SILENCE)
    keys = [transpositions(one, sung.min(axis=0), sung.max(axis=0)) for one in chorales]
    shares = np.array([len(one) for one in chorales]) / len(sung)
    while True:
        rows = []
        for i in draw.choice(len(chorales), count, p=shares):
            beats = (len(chorales[i]) - window) // SIXTEENTHS
            start = SIXTEENTHS * draw.integers(beats + 1)
            part = chorales[i][start : start + window]
            rows.append(to_ids(transpose(part, draw.choice(keys[i]))))
        yield _with_begin(np.stack(rows)), np.stack(rows)


def all_notes(chorales, window):
    """Returns windows that label each note of the chorales once.

    Windows start every half window. The labels of a window are its second half, so that the model
    reads at least half a window before them. The first window of a chorale has all labels.

    Args:
        chorales: list of int arrays (S, 4).
        window: int, sixteenths of a window, a multiple of 8.

    Returns:
        Inputs and labels, int32 (N, T) each. Label 0 is masked out.

    Example:

    >>> inputs, labels = all_notes([np.full((20, 4), 60)], window=16)
    >>> (labels > 0).sum(axis=1)
    array([64, 16])
    """
    windows, labels, size, half = [], [], len(VOICES) * window, window // 2
    for one in chorales:
        ids = to_ids(one)
        for start in range(0, max(len(one) - window, 0) + half, half):
            row = ids[len(VOICES) * start :][:size]
            windows.append(np.pad(row, (0, size - len(row))))
            labels.append(windows[-1].copy())
            if start:
                labels[-1][: size // 2] = 0
    return _with_begin(np.stack(windows)), np.stack(labels)


def _with_begin(ids):
    """Returns the inputs of targets (N, T): the begin token, then all but the last target."""
    return np.insert(ids[:, :-1], 0, BEGIN_ID, axis=1)
