"""The options of a search call. Searches, exporters and the runtime share this table.

The module imports no framework, so that the runtime can check options too.
"""

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.special_ids import UNKNOWN_ID

MOST_SEED = 2**31 - 2  # the smallest is 0
_ABOVE_0 = float(np.finfo("float32").tiny)


class CallOption(NamedTuple):
    """The dtype, rank and range of an option.

    Attributes:
        dtype: name of the dtype.
        rank: int. 0: one number for the whole batch. 1: one number for each sentence, or for all.
            2: ids of each sentence, padded with 0 on the right. 3: words of each sentence.
        meaning: str, the help of a command. If it is empty, commands do not offer the option.
        lowest, highest: the range of its numbers.
        once: whether a search reads it before the first step only.
    """

    dtype: str
    rank: int
    meaning: str
    lowest: float
    highest: float = math.inf
    once: bool = False


_MOST = 2**31 - 1
CALL_OPTIONS: Mapping[str, CallOption] = {
    "max_length": CallOption("int32", 1, "most tokens of an output", 1, _MOST, once=True),
    "min_length": CallOption("int32", 1, "fewest tokens of an output", 0, _MOST),
    "target_prefix": CallOption("int32", 2, "the first words of each output", 0, _MOST, True),
    "beam_width": CallOption(
        "int32", 0, "hypotheses of a beam search, at most the exported number", 1, _MOST
    ),
    "length_penalty": CallOption(
        "float32", 0, "of a beam search; larger numbers favour longer outputs", 0
    ),
    "temperature": CallOption("float32", 0, "of sampling; below 1 sharpens", _ABOVE_0),
    "top_k": CallOption("int32", 0, "of sampling: only the K most likely tokens", 0, _MOST),
    "top_p": CallOption(
        "float32", 0, "of sampling: only the most likely tokens, with this share", _ABOVE_0, 1
    ),
    "word_times": CallOption("int32", 0, "", 0, 1, once=True),
    "seed": CallOption("int32", 0, "", 0, MOST_SEED, once=True),
}

# The same for the arguments of this package's constraints.
CONSTRAINT_OPTIONS: Mapping[str, CallOption] = {
    "no_repeat_ngram_size": CallOption(
        "int32", 0, "length of sequences that may not repeat, at most as exported", 0, _MOST
    ),
    "repetition_penalty": CallOption(
        "float32", 0, "above 1 makes repetition less likely", _ABOVE_0
    ),
    "forbidden_words": CallOption("int32", 3, "words that no output has", 0, _MOST),
    "biased_prefix": CallOption("int32", 2, "first words that become more likely", 0, _MOST),
    "prefix_bias": CallOption("float32", 0, "strength of this bias, from 0 to 1", 0, 1 - 2.0**-24),
    "terms": CallOption("int32", 3, "must be in each output", 0, _MOST),
}

# Options of a call that may be at most the constructor's, with their smallest values.
AT_MOST_DEFAULT: Mapping[str, int] = {"beam_width": 1, "top_k": 1, "no_repeat_ngram_size": 0}
# Options of a call that have no effect without another one.
NEEDS: Mapping[str, str] = {"prefix_bias": "biased_prefix"}


def check_number(
    value: Any, name: str, kind: type, lowest: float, highest: float = math.inf
) -> None:
    """Raises unless `value` is a finite number of this kind, from `lowest` to `highest`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, kind):
        wanted = "an integer" if kind is numbers.Integral else "a number"
        found = f"{repr(value)[:100]} ({type(value).__name__})"
        raise TypeError(f"{name} must be {wanted}, got {found}.")
    if not lowest <= value <= highest or math.isinf(value):
        least = "above 0" if lowest == _ABOVE_0 else f"at least {lowest}"
        most = "finite" if math.isinf(highest) else f"at most {highest}"
        hint = ""
        if name == "temperature":
            hint = " Near 0 it gives the most likely tokens, as GreedySearch does."
        if name in ("max_length", "max_tokens") and lowest > 1:
            hint = " The constraints of the search allow no shorter output."
        raise ValueError(f"{name} must be {least} and {most}, got {value}.{hint}")


def check_option(name: str, value: Any) -> None:
    """Raises `TypeError` or `ValueError` unless `value` fits the option `name`."""
    option = CALL_OPTIONS[name] if name in CALL_OPTIONS else CONSTRAINT_OPTIONS[name]
    kind = numbers.Integral if option.dtype == "int32" else numbers.Real
    check_number(value, name, kind, option.lowest, option.highest)


def bounds(name: str, exported: float) -> tuple[float | None, float | None]:
    """Returns the lowest and the highest number of an option of an exported search.

    Args:
        name: str.
        exported: number, the value of the exported search.

    Returns:
        Two numbers, each `None` if it is not known.

    Example:

    >>> bounds("beam_width", 4)
    (1, 4)
    """
    option = CALL_OPTIONS.get(name) or CONSTRAINT_OPTIONS.get(name)
    if option is None or option.rank > 1:
        return None, None
    if name in AT_MOST_DEFAULT and exported:
        return AT_MOST_DEFAULT[name], exported
    return option.lowest, None if math.isinf(option.highest) else option.highest


def check_needs(options: Mapping[str, Any]) -> None:
    """Raises `ValueError` if an option of a call lacks the one without which it does nothing."""
    for name, needed in NEEDS.items():
        if options.get(name) is not None and options.get(needed) is None:
            raise ValueError(f"{name} has no effect without {needed}. Pass both, or neither.")


def check_pieces(name: str, text: str, ids: Sequence[int]) -> None:
    """Raises `ValueError` for a word of an option that outputs cannot have.

    Args:
        name: name of an option with words of each sentence, such as "terms".
        text: str, the word.
        ids: its tokens.
    """
    if not ids or (name == "terms" and UNKNOWN_ID in ids):
        raise ValueError(
            f"The target's tokenizer has no pieces for {text[:100]!r} of {name}. Leave it out."
        )


def check_lengths(min_length: Any, max_length: Any) -> None:
    """Raises `ValueError` if a sentence has a `max_length` below its `min_length`.

    Args:
        min_length, max_length: int, or integers (1,) or (B,). A `max_length` below 1 is no limit.
    """
    least, most = np.broadcast_arrays(min_length, max_length)
    if (wrong := np.flatnonzero((most >= 1) & (most < least))).size:
        least, most = least.flat[wrong[0]], most.flat[wrong[0]]
        raise ValueError(f"max_length {most} is below min_length {least}. Change one of them.")
