"""Models of sentences for the tests of documents."""

from keras_transformer.export.documents import AlignedText


def copy(sentences):
    """Copies: word i is aligned with word i."""
    return [AlignedText(one, tuple((i, i) for i in range(len(one.split())))) for one in sentences]


def shout(sentences):
    """Copies in capital letters."""
    return [one._replace(text=one.text.upper()) for one in copy(sentences)]


def reverse(sentences):
    """Writes the words in the opposite order."""
    found = []
    for sentence in sentences:
        words = sentence.split()
        last = len(words) - 1
        pairs = tuple((last - i, i) for i in range(len(words)))
        found.append(AlignedText(" ".join(words[::-1]), pairs))
    return found
