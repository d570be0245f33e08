"""Models of sentences for the tests of documents, and a reader of tags."""

import html.parser

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


def recording(calls, model=copy):
    """Returns a model that also adds the sentences of each call to `calls`."""

    def translate(sentences):
        calls.append(sentences)
        return model(sentences)

    return translate


BLOCK = ("p", "ul", "li", "br", "hr")


class Reader(html.parser.HTMLParser):
    """Collects tags with attributes and text, and checks whether tags are well nested.

    Args:
        text: HTML.
        ignored: names of attributes that are not collected.
    """

    def __init__(self, text, ignored=()):
        super().__init__()
        self.tags, self.text, self.open, self.nested = [], "", [], True
        self.ignored = ignored
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, *(one for one in attrs if one[0] not in self.ignored)))
        self.text += " " * (tag in BLOCK)
        if tag not in ("br", "hr", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")
        self.text += " " * (tag in BLOCK)
        self.nested &= bool(self.open) and self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        self.tags.append(data)
