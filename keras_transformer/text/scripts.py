"""Scripts that write words without spaces between them."""

import re

# Thai, Lao, Burmese and Khmer, which have spaces between sentences.
_SPACES_BETWEEN_SENTENCES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
# Chinese and Japanese with their marks and wide forms, which have none.
_WIDE = "\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff65\U00020000-\U0003ffff"
# For classes of characters in patterns.
NO_SPACES = _SPACES_BETWEEN_SENTENCES + _WIDE
_HAS_NO_SPACES, _IS_WIDE = re.compile(f"[{NO_SPACES}]"), re.compile(f"[{_WIDE}]")


def has_no_spaces(text: str) -> bool:
    """Returns whether a text has characters of a script without spaces between words.

    >>> has_no_spaces("ข้าว"), has_no_spaces("한국어 rice")
    (True, False)
    """
    return _HAS_NO_SPACES.search(text) is not None


def is_wide(text: str) -> bool:
    """Returns whether a text has characters of Chinese or Japanese, their marks included."""
    return _IS_WIDE.search(text) is not None
