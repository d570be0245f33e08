"""Rows of a vocabulary in our order: padding 0, unknown 1, begin 2, end 3, then all others.

Elsewhere the special tokens have other ids, and one may play two parts: Marian begins with its
padding, GPT-2 begins and ends with one token. Then the row is copied. Only one of the copies may
count among the logits; the others, and rows that the origin lacks, get the bias `NEVER`.

Shapes: V our number of ids, U the origin's, D d_model.
"""

import numpy as np

from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID

NONE = -1  # in an order: a row that the origin does not have
# The bias of what must never be generated. e^-100 of a probability is 0 in float32. More would ruin
# losses with smoothed labels, and the spread of the logits that exports are held to.
NEVER = -100.0


def row_order(size, pad, unknown, begin, end, copies=0):
    """The origin's id of each of our rows, (V,) integers.

    Args:
        size: U, how many ids the origin has.
        pad, unknown, begin, end: their ids there, or `None` for one that it does not have. Begin
            may be the same as another.
        copies: how many more copies of the unknown token follow, for pieces of text that the origin
            takes for unknown. Defaults to 0.

    Raises:
        ValueError: an id is not among the U.

    Example, the order of Marian's Hugging Face folders, whose padding is the last id:

    >>> row_order(6, pad=5, unknown=1, begin=5, end=0).tolist()
    [5, 1, 5, 0, 2, 3, 4]
    """
    special = [NONE if id is None else id for id in (pad, unknown, begin, end)]
    outside = [id for id in special if not NONE <= id < size]
    if outside:
        raise ValueError(f"Special ids {outside} are not among the {size} ids of the vocabulary.")
    others = [id for id in range(size) if id not in special]
    return np.array(special + others + [unknown] * copies)


def our_ids(order):
    """`{the origin's id: ours}`. Of a token with several parts this is the end, then the begin."""
    ours = {}
    for row in (END_ID, BEGIN_ID, UNKNOWN_ID, PAD_ID, *range(4, len(order))):
        ours.setdefault(int(order[row]), row)
    return {theirs: row for theirs, row in ours.items() if theirs != NONE}


def rows(array, order):
    """Rows (V, ...) of the origin's (U, ...) in our order; zeros where it has none."""
    extended = np.concatenate([array, np.zeros_like(array[:1])])  # NONE is the last
    return extended[order]


def logit_bias(order, bias=None, never=NEVER):
    """The bias (V,) of our logits from the origin's (U,), or from none.

    Softmax over ours is then softmax over the origin's: each of its ids counts once, and a row that
    does not count gets the bias `never`.
    """
    bias = np.zeros(len(order), np.float32) if bias is None else rows(bias, order)
    kept = set(our_ids(order).values())
    silent = [row for row in range(len(order)) if row not in kept]
    bias[silent] = never
    return bias
