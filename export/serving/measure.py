"""How long lines are, before a model reads them, so that similar ones can share a batch."""

import pathlib

from keras_transformer.export.artefact.signature import TOKENIZER_FILE
from keras_transformer.text.json_tokenizer import load_tokenizer

# Characters that are looked at; the rest of a longer line is taken to be like them.
SEEN = 1000
# Said of everything that is not read as text, such as arrays.
UNKNOWN = 16


def make_measure(folder):
    """A function of a list of lines, str or bytes: a guess of the tokens of each, a list of int.

    The tokenizer of an artefact makes it, where there is one. An artefact that replaces the one in
    the folder may have another; its lines are still about as long, one beside the other.
    """
    path = pathlib.Path(folder) / TOKENIZER_FILE
    if not path.exists():
        return lambda items: [UNKNOWN] * len(items)
    encode = load_tokenizer(path).encode

    def length(item):
        some = item[:SEEN]
        text = some.decode("utf-8", "replace") if isinstance(some, bytes) else some
        try:
            count = 1 + len(encode(text))  # and an end token
        except ValueError:  # half a surrogate pair: the line will be refused
            return 0
        return count * len(item) // max(1, len(some))

    return lambda items: [length(item) for item in items]
