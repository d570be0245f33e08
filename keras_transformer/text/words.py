"""Sentences that are split into words already, for tags: pieces, and where each word begins.

Training and serving share this. SentencePiece only.
"""

from keras_transformer.data.checks import checked_strings
from keras_transformer.special_ids import UNKNOWN_ID


def encode_words(tokenizer, words):
    """Encodes each word of a sentence by itself.

    Args:
        tokenizer: `Tokenizer`.
        words: list of str.

    Returns:
        ids: list of int, the pieces of all words in order, without end token. A word without
            pieces (an empty one) has the unknown id.
        first: list of int, one a word: the index of its first piece in `ids`. A tag counts there.

    Raises:
        TypeError: `words` is one string, or holds something that is not a string.

    Example:

    >>> tokenizer = Tokenizer.train(["a red hat"], 300, hard_vocab_limit=False)
    >>> ids, first = encode_words(tokenizer, ["a", "", "hat"])
    >>> [tokenizer.decode(ids[i:j]) for i, j in zip(first, [*first[1:], len(ids)])]
    ['a', ' ⁇ ', 'hat']
    """
    return join_words(tokenizer.encode(checked_strings(words, "words")))


def join_words(pieces):
    """The ids of one sentence from those of its words; for the rest see `encode_words`."""
    ids, first = [], []
    for word in pieces:
        first.append(len(ids))
        ids += word or [UNKNOWN_ID]
    return ids, first
