"""Boolean attention masks. True means "may attend", everywhere.

Shapes: B batch, T target (query) length, S source (key) length, H heads.
"""

from keras import ops


def padding_mask(ids, pad_id=0):
    """Marks the real tokens of a padded batch.

    Args:
        ids: integer tensor (B, S) of token ids.
        pad_id: the id that fills up short rows. Defaults to 0.

    Returns:
        Boolean tensor (B, S), True where `ids` holds a token.

    Example:

    >>> padding_mask(keras.ops.array([[5, 3, 0]]))
    array([[ True,  True, False]])
    """
    return ops.not_equal(ids, pad_id)


def causal_mask(length, offset=0):
    """Lets position i attend to positions up to i only (section 3.2.3).

    Args:
        length: T, number of queries; an integer or a scalar tensor.
        offset: number of keys that come before the first query, so that
            S = offset + T. Defaults to 0.

    Returns:
        Boolean tensor (1, T, S), lower triangular when `offset` is 0.

    Example:

    >>> causal_mask(3)[0]
    array([[ True, False, False],
           [ True,  True, False],
           [ True,  True,  True]])
    """
    queries = ops.arange(length)[:, None] + offset  # (T, 1)
    keys = ops.arange(length + offset)[None, :]  # (1, S)
    return ops.expand_dims(queries >= keys, 0)  # (1, T, S)


def combine_masks(*masks):
    """Joins masks: attention is allowed where every one of them allows it.

    Args:
        *masks: boolean tensors that broadcast against each other, or `None`
            for "no restriction".

    Returns:
        Boolean tensor, or `None` when no mask restricts anything.
    """
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def attention_shape(mask, scores_shape=None):
    """Brings a mask to the rank of attention scores (B, H, T, S).

    Args:
        mask: boolean tensor (B, S), which keys hold a token; (B, T, S), which
            query may attend to which key; or (B, H, T, S), the same for each
            head. Any axis but the last may be 1. `None` passes through.
        scores_shape: static (B, H, T, S), sizes that are not known as `None`, to
            hold the mask against. Defaults to `None`: any size will do.

    Returns:
        Boolean tensor of rank 4 that broadcasts to (B, H, T, S), or `None`.

    Raises:
        TypeError: the mask is not boolean.
        ValueError: its rank is not 2, 3 or 4, or it does not fit the scores.
    """
    if mask is None:
        return None
    if not hasattr(mask, "dtype"):
        mask = ops.convert_to_tensor(mask)
    if ops.dtype(mask) != "bool":
        raise TypeError(
            f"An attention mask must be boolean (True = may attend), but its dtype is "
            f"{ops.dtype(mask)}. Pass `mask != 0`, or `mask == 0` if 1 marked what to hide."
        )
    if len(mask.shape) not in (2, 3, 4):
        raise ValueError(
            f"An attention mask must have shape (B, S), (B, T, S) or (B, H, T, S), but it has rank "
            f"{len(mask.shape)}: {tuple(mask.shape)}."
        )
    if scores_shape is not None:
        check_fits(mask, scores_shape)
    if len(mask.shape) == 2:
        return mask[:, None, None, :]  # (B, 1, 1, S)
    if len(mask.shape) == 3:
        return mask[:, None, :, :]  # (B, 1, T, S)
    return mask


def check_fits(mask, scores_shape):
    """Refuses a mask of rank 2, 3 or 4 whose static sizes are not those of the scores."""
    batch, _, targets, sources = scores_shape
    names = {2: "(B, S)", 3: "(B, T, S)", 4: "(B, H, T, S)"}[len(mask.shape)]
    expected = {2: (batch, sources), 3: (batch, targets, sources), 4: scores_shape}
    expected = tuple(expected[len(mask.shape)])
    for axis, (size, wanted) in enumerate(zip(mask.shape, expected, strict=True)):
        spread = size == 1 and axis < len(expected) - 1  # one row for all
        if None not in (size, wanted) and size != wanted and not spread:
            raise ValueError(
                f"An attention mask of shape {tuple(mask.shape)} was passed, but here {names} is "
                f"{expected}: S counts the positions of `value`, T those of `query`. Any axis but "
                "the last may be 1."
            )
