"""Tokenizers of the `tokenizers` library, such as BERT's word pieces.

Importing this module needs neither the library nor TensorFlow. Ids: 0 pad, 1 unknown, 2 begin,
3 end.
"""

import functools
import json
from collections.abc import Iterable, Sequence
from typing import Any, overload

from keras_transformer.files import whole_file
from keras_transformer.text.corpora import checked_strings
from keras_transformer.text.tokenizer import Tokenizer, decoded_rows
from keras_transformer.text.vocabularies import digest_of
from keras_transformer.types import Ids, StrPath


class JsonTokenizer:
    """A tokenizer of the `tokenizers` library, stored as its JSON.

    It replaces a `Tokenizer` in pipelines, exports and the runtime, but not inside TensorFlow
    graphs. Importers create it with this package's special ids.

    Args:
        text: str, the JSON.

    Raises:
        ImportError: the library is missing.
        ValueError: `text` is not JSON of the library.
    """

    def __init__(self, text: str) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError(
                "This tokenizer needs the package tokenizers. Install it with: "
                "pip install tokenizers"
            ) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises no other kind
            raise ValueError(f"this is not JSON of the package tokenizers: {error}") from error
        self._text = text

    @classmethod
    def load(cls, path: StrPath) -> "JsonTokenizer":
        """Reads a tokenizer from its file.

        Raises:
            ImportError: the library is missing.
            OSError: the file cannot be read.
            ValueError: it is not JSON of the library, or not UTF-8.
        """
        with open(path, "rb") as file:
            text = file.read()
        try:
            return cls(text.decode("utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} cannot be read as a tokenizer: {error}") from error

    def save(self, path: StrPath) -> None:
        """Writes one file, atomically."""
        with whole_file(path) as aside:
            aside.write_text(self._text, "utf-8")

    @functools.cached_property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return 1 + max(self._tokenizer.get_vocab().values())

    @property
    def pieces(self) -> list[str]:
        """The pieces in the order of their ids; "" for an id that has none."""
        names = {id: piece for piece, id in self._tokenizer.get_vocab().items()}
        return [names.get(id, "") for id in range(self.vocab_size)]

    @functools.cached_property
    def between(self) -> list[int]:
        """The ids before a second text in a row, after the end token of the first.

        RoBERTa has a second end token there.
        """
        processor = json.loads(self._text).get("post_processor") or {}
        known = processor.get("special_tokens") or {}
        parts = processor.get("pair", ())[2:-1]  # between the two sequences
        names = [part["SpecialToken"]["id"] for part in parts if "SpecialToken" in part]
        return [id for name in names for id in known[name]["ids"]]

    @property
    def piece_bytes(self) -> list[bytes]:
        """The UTF-8 bytes that each id adds to a text; none for special ids.

        Raises:
            TypeError: the pieces are not sequences of bytes, as in GPT-2.
        """
        kind = (json.loads(self._text).get("decoder") or {}).get("type")
        if kind != "ByteLevel":
            raise TypeError(
                f"The pieces of this tokenizer are joined by the decoder {kind}, not byte by byte, "
                "so the text of an id depends on the ids around it. Use a tokenizer of bytes."
            )
        # GPT-2 writes bytes that cannot be printed as characters from 256 on.
        shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        hidden = [byte for byte in range(256) if byte not in shown]
        byte_of = {chr(byte): byte for byte in shown}
        byte_of.update((chr(256 + place), byte) for place, byte in enumerate(hidden))
        added = self._tokenizer.get_added_tokens_decoder()
        return [
            (b"" if added[i].special else piece.encode())
            if i in added
            else bytes(byte_of[character] for character in piece)
            for i, piece in enumerate(self.pieces)
        ]

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the pieces. Tokenizers with the same pieces for all ids have the same."""
        return digest_of(self.pieces)

    @property
    def added_ids(self) -> dict[str, int]:
        """Id of each token that was added to the vocabulary, such as `<|en|>` of Whisper."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: id for id, token in added.items()}

    @overload
    def encode(
        self, text: str, sample: bool = ..., alpha: float = ..., seed: int | None = ...
    ) -> list[int]: ...

    @overload
    def encode(
        self, text: Sequence[str], sample: bool = ..., alpha: float = ..., seed: int | None = ...
    ) -> list[list[int]]: ...

    def encode(
        self,
        text: str | Sequence[str],
        sample: bool = False,
        alpha: float | None = None,
        seed: int | None = None,
    ) -> list[int] | list[list[int]]:
        """Returns the ids of a string, or a list of them for a list; without end token.

        For BERT the ids of each text start with the begin token, `[CLS]`. The arguments `sample`,
        `alpha` and `seed` of `Tokenizer.encode` raise an error.

        Raises:
            TypeError: if `text` holds something that is not a string.
            ValueError: another argument was passed.
        """
        if sample or alpha is not None or seed is not None:
            raise ValueError(
                "sampling_alpha needs a `Tokenizer`, which draws segmentations with SentencePiece, "
                "but this is a JsonTokenizer. Leave sampling_alpha out."
            )
        if isinstance(text, str):
            return self.encode([text])[0]
        lines = checked_strings(text, "text")
        return [encoding.ids for encoding in self._tokenizer.encode_batch(lines)]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Same as `Tokenizer.encode_with_spans`; a begin token has the span (0, 0)."""
        encoding = self._tokenizer.encode(*checked_strings([text], "text"))
        # The library gives each byte of a character the span of the whole character.
        following = [*(start for start, _ in encoding.offsets[1:]), len(text)]
        spans = [
            (start, min(end, limit))
            for (start, end), limit in zip(encoding.offsets, following, strict=False)
        ]
        return encoding.ids, spans

    def decode(self, ids: Iterable[Any] | Ids) -> Any:
        """Turns ids into text, up to the first end token; leaves out padding and begin tokens.

        Args:
            ids: see `Tokenizer.decode`.

        Returns:
            str for one sentence; list of str for several.

        Raises:
            ValueError: if an id is not within the vocabulary.
        """
        rows, single = decoded_rows(ids, self.vocab_size)
        texts = [self._tokenizer.decode(row) for row in rows]
        return texts[0] if single else texts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonTokenizer) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonTokenizer, (self._text,)


def load_tokenizer(path: StrPath) -> Tokenizer | JsonTokenizer:
    """Reads a `Tokenizer` or a `JsonTokenizer`, depending on the content of the file."""
    with open(path, "rb") as file:
        kind = JsonTokenizer if file.read(1) == b"{" else Tokenizer
    return kind.load(path)
