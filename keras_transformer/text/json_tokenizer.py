"""Tokenizers of the `tokenizers` library, such as BERT's word pieces, in the place of `Tokenizer`.

Importing this module needs neither the library nor TensorFlow. Ids: 0 pad, 1 unknown, 2 begin,
3 end.
"""

from keras_transformer.data.checks import checked_strings
from keras_transformer.files import whole_file
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID
from keras_transformer.text.tokenizer import Tokenizer


class JsonTokenizer:
    """A tokenizer of the `tokenizers` library, held and stored as its JSON.

    It has what pipelines, exports and the runtime ask of a `Tokenizer`. Importers make it, with our
    ids. Texts are not read inside graphs.

    Args:
        text: str, the JSON.

    Raises:
        ImportError: the library is missing.
        ValueError: `text` is no JSON of the library.
    """

    def __init__(self, text):
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError(
                "This tokenizer is one of the package tokenizers. Install it with: "
                "pip install tokenizers"
            ) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises no other kind
            raise ValueError(f"this is no tokenizer of the package tokenizers: {error}") from error
        self._text = text

    @classmethod
    def load(cls, path):
        """Reads a tokenizer from its file."""
        with open(path, encoding="utf-8") as file:
            return cls(file.read())

    def save(self, path):
        """Writes one file; it appears whole or not at all."""
        with whole_file(path) as aside:
            aside.write_text(self._text, "utf-8")

    @property
    def vocab_size(self):
        """Number of ids, special ones included."""
        return 1 + max(self._tokenizer.get_vocab().values())

    def encode(self, text):
        """Ids of a string, or a list of them for a list; without end token.

        BERT's begin with the begin token, `[CLS]`, which belongs to its text.
        """
        if isinstance(text, str):
            return self.encode([text])[0]
        lines = checked_strings(text, "text")
        return [encoding.ids for encoding in self._tokenizer.encode_batch(lines)]

    def encode_with_spans(self, text):
        """As `Tokenizer.encode_with_spans`; a begin token has the span (0, 0)."""
        encoding = self._tokenizer.encode(*checked_strings([text], "text"))
        return encoding.ids, encoding.offsets

    def decode(self, ids):
        """Text of a row of ids, up to the first end token; a list of texts for several rows."""
        ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        if ids and hasattr(ids[0], "__len__"):
            return [self.decode(row) for row in ids]
        ids = ids[: ids.index(END_ID)] if END_ID in ids else ids
        return self._tokenizer.decode([i for i in ids if i not in (PAD_ID, BEGIN_ID)])

    def __eq__(self, other):
        return isinstance(other, JsonTokenizer) and self._text == other._text

    def __hash__(self):
        return hash(self._text)

    def __reduce__(self):
        return JsonTokenizer, (self._text,)


def load_tokenizer(path):
    """A `Tokenizer` or a `JsonTokenizer`, by what the file holds."""
    with open(path, "rb") as file:
        kind = JsonTokenizer if file.read(1) == b"{" else Tokenizer
    return kind.load(path)
