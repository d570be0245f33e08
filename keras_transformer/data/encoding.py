"""Lines to rows of ids, many at once, for all kinds of examples."""

import numpy as np

from keras_transformer.data.batches import Ragged
from keras_transformer.special_ids import END_ID

_CHUNK = 65536  # lines tokenised at once: bounds the memory that Python's lists of ids take


def encode_rows(tokenizer, lines, alpha=None, rng=None):
    """Ids of lines, each with the end token: a list of int32 arrays.

    Args:
        tokenizer: `Tokenizer`.
        lines: list of N strings.
        alpha: float or None. If given, segmentations are drawn at random; see `Tokenizer.encode`.
        rng: `numpy.random.Generator` of the seeds of the draws.
    """
    rows = []
    for begin in range(0, len(lines), _CHUNK):
        chunk = lines[begin : begin + _CHUNK]
        options = {}
        if alpha is not None:
            options = {"sample": True, "alpha": alpha, "seed": int(rng.integers(2**32))}
        for row in tokenizer.encode(chunk, **options):
            row.append(END_ID)
            rows.append(np.array(row, np.int32))
    return rows


def sample_rng(seed, epoch):
    """The generator of an epoch's samples; the order of the epoch has another one."""
    return np.random.default_rng([seed, epoch, 1])


def fitting(drawn, best, longest):
    """`Ragged` of the rows that were drawn, or the best one where that is longer than `longest`."""
    pairs = zip(drawn, best, strict=True)
    return Ragged([row if len(row) <= longest else shorter for row, shorter in pairs])


def lengths_of(rows):
    """(N,) numbers of ids."""
    return np.fromiter(map(len, rows), np.int64, len(rows))
