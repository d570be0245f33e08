"""Decodes text while a search runs: the part that later tokens cannot change."""

from collections.abc import Callable

from keras_transformer.export.artefact import signature
from keras_transformer.types import Ids


class GrowingText:
    """The text of a growing sequence of ids.

    All ids are decoded after each step, because the tokenizer adds spaces and joins bytes to
    characters. U+FFFD at the end is held back: it may be the first bytes of a character.

    Args:
        decode: function from ids to text.

    Attributes:
        text: str, the text so far.

    Example:

    >>> text = GrowingText(lambda ids: bytes(ids).decode("utf-8", "replace"))
    >>> [text.grow([*"é!".encode()][:n]) for n in (1, 2, 3)]
    ['', 'é', '!']
    """

    def __init__(self, decode: Callable[[list[int] | Ids], str]) -> None:
        self._decode = decode
        self.text: str = ""

    def grow(self, ids: list[int] | Ids) -> str:
        """Returns the text that `ids` add; they begin with the ids of the last call."""
        return self.finish(self._decode(ids).rstrip(signature.REPLACEMENT))

    def finish(self, text: str) -> str:
        """Returns the part of `text` after the text so far, and appends it to the text so far."""
        more = text[len(self.text) :]
        self.text += more
        return more
