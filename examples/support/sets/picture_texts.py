"""Pictures as texts of hexadecimal digits: the class, then the grey levels in reading order.

Shapes: N pictures, (S, S) pixels.
"""

import numpy as np

import keras_transformer as kt
from keras_transformer.search import Constraint, forbid_tokens
from keras_transformer.special_ids import BEGIN_ID

DIGITS = "0123456789abcdef"
FIRST = 2  # position of the class, after the begin token and the mark of a text's start


def as_text(label, pixels):
    """Returns the text of a picture, or of its first rows.

    >>> as_text(3, np.array([[0, 15], [10, 2]]))
    '30fa2'
    """
    return "".join(DIGITS[number] for number in (label, *np.ravel(pixels)))


def as_pixels(text, side):
    """Reverses `as_text`: returns an int array (S, S)."""
    return np.reshape([DIGITS.index(digit) for digit in text[1:]], (side, side))


def digit_tokenizer():
    """Trains a tokenizer whose pieces are the digits, and the mark of a text's start."""
    options = dict(model_type="char", byte_fallback=False, hard_vocab_limit=False)
    return kt.Tokenizer.train([DIGITS], 40, **options)


def token_ids(tokenizer, pixels, classes):
    """Returns the ids of pictures (N, S, S) of classes (N,): int32 (N, FIRST + 1 + S * S)."""
    numbers = np.concatenate([classes[:, None], pixels.reshape(len(pixels), -1)], axis=1)
    mark, *digits = tokenizer.encode(DIGITS)
    start = np.tile([BEGIN_ID, mark], (len(pixels), 1))
    return np.concatenate([start, np.array(digits)[numbers]], axis=1).astype("int32")


class OnlyCharacters(Constraint):
    """Allows only these characters, which excludes the end token."""

    def __init__(self, tokenizer, characters):
        allowed = tokenizer.encode(characters)[1:]  # without the mark of a text's start
        self.forbidden = ~np.isin(np.arange(tokenizer.vocab_size), allowed)

    def step(self, logits, past, state, known):
        return forbid_tokens(logits, self.forbidden), state
