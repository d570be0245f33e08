"""Boolean attention masks. True means "may attend".

Shapes: B batch, T target (query) length, S source (key) length, H heads.
"""

from keras import ops

from keras_transformer.special_ids import PAD_ID
from keras_transformer.types import Shape, Tensor

# Added to the scores of masked pairs. The float32 softmax then gives them exactly 0.
FORBIDDEN = -1e9


def padding_mask(ids: Tensor, pad_id: int = PAD_ID) -> Tensor:
    """Returns a mask of the tokens of a padded batch.

    Args:
        ids: integer tensor (B, S) of token ids.
        pad_id: id of the padding. Defaults to 0.

    Returns:
        Boolean tensor (B, S), True where `ids` holds a token.

    Example:

    >>> padding_mask(keras.ops.array([[5, 3, 0]]))
    array([[ True,  True, False]])
    """
    return ops.not_equal(ids, pad_id)


def causal_mask(
    length: int | Tensor, offset: int | Tensor = 0, num_keys: int | Tensor | None = None
) -> Tensor:
    """Returns a mask that lets position i attend to positions up to i only (section 3.2.3).

    Args:
        length: T, number of queries; an integer or a scalar tensor.
        offset: number of keys before the first query. Defaults to 0.
        num_keys: S. Defaults to `None`: offset + T.

    Returns:
        Boolean tensor (1, T, S), lower triangular if `offset` is 0.

    Example:

    >>> causal_mask(3)[0]
    array([[ True, False, False],
           [ True,  True, False],
           [ True,  True,  True]])
    """
    num_keys = length + offset if num_keys is None else num_keys
    queries = ops.arange(length, dtype="int32")[:, None] + offset  # (T, 1)
    keys = ops.arange(num_keys, dtype="int32")[None, :]  # (1, S)
    return ops.expand_dims(queries >= keys, 0)  # (1, T, S)


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """Combines masks: attention is allowed where all of them allow it.

    Args:
        *masks: boolean tensors that broadcast against each other. `None` restricts nothing.

    Returns:
        Boolean tensor, or `None` if all masks are `None`.
    """
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def attention_shape(mask: Tensor | None, scores_shape: Shape) -> Tensor | None:
    """Expands a mask to the rank of attention scores (B, H, T, S).

    Args:
        mask: boolean tensor. (B, S) says which keys are tokens, (B, T, S) which query may attend to
            which key, and (B, H, T, S) the same for each head. Any axis but the last may be 1.
            `None` passes through.
        scores_shape: static (B, H, T, S). A size of `None` accepts any size of the mask.

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
            "An attention mask must be boolean (True = may attend), but its dtype is "
            f"{ops.dtype(mask)}. Pass `mask != 0`, or `mask == 0` if 1 marks what to hide."
        )
    shape = tuple(mask.shape)
    batch, _, targets, sources = scores_shape
    if len(shape) == 2:
        axes, expected, mask = "(B, S)", (batch, sources), mask[:, None, None, :]
    elif len(shape) == 3:
        axes, expected, mask = "(B, T, S)", (batch, targets, sources), mask[:, None, :, :]
    elif len(shape) == 4:
        axes, expected = "(B, H, T, S)", tuple(scores_shape)
    else:
        raise ValueError(
            "An attention mask must have shape (B, S), (B, T, S) or (B, H, T, S), but it has rank "
            f"{len(shape)}: {shape}."
        )
    for axis, (size, wanted) in enumerate(zip(shape, expected, strict=True)):
        broadcasts = size == 1 and axis < len(shape) - 1
        if None not in (size, wanted) and size != wanted and not broadcasts:
            raise ValueError(
                f"An attention mask of shape {shape} was passed, but here {axes} is {expected}: T "
                "is the length of `query`, S the length of `value`. Any axis but the last may be 1."
            )
    return mask  # (B, H, T, S), (B, 1, T, S) or (B, 1, 1, S)
