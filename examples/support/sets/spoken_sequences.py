"""Batches that teach a model to speak: texts, places of frames in them, and spectrograms.

A text names the speaker first, such as "lucas two, seven". Each of its words and commas is a token.
Shapes: B batch, S tokens, T groups of four frames, F = 128 bands.
"""

import keras
import numpy as np
from support.sets.sound import HOP, WINDOW, log_bands
from support.sets.spoken_digits import PAUSE, WORDS, sequences

import keras_transformer as kt
from keras_transformer.special_ids import END_ID, PAD_ID

BANDS = WINDOW // 2  # one for each frequency
GROUP = 4  # frames that one vector writes: 40 ms
LONGEST = 4  # digits in a sequence
DIGITS = 48  # in a batch


def word_tokenizer(speakers):
    """Returns a `Tokenizer` whose pieces are the speakers, the words of digits, and the comma.

    Example:

    >>> len(word_tokenizer(["lucas"]).encode("lucas two, seven"))
    4
    """
    symbols = [PAUSE, *(f" {word}" for word in (*speakers, *WORDS))]
    options = dict(model_type="char", byte_fallback=False, hard_vocab_limit=False)
    return kt.Tokenizer.train(["".join(symbols)], 1000, symbols=symbols, **options)


def text_of(parts):
    """Returns the text of a sequence of `spoken_digits.sequences`, such as "lucas two, seven"."""
    return " ".join([parts[0].speaker, *(part.word for part in parts)]).replace(" ,", ",")


def sound_of_parts(parts):
    """Returns the samples of a sequence, float32 (L,)."""
    return np.concatenate([part.samples for part in parts])


def is_new(recording, speakers):
    """Returns whether the word is one of the two digits that the speaker never says in training.

    Args:
        recording: `Recording`.
        speakers: list of str, all speakers.
    """
    return (WORDS.index(recording.word) - speakers.index(recording.speaker)) % 5 == 0


def places_of(durations):
    """Computes the places of the groups of frames in a text.

    The place 2.5 is the middle of token 2.

    Args:
        durations: (S,), of each token, in hops of 10 ms.

    Returns:
        float32 (T,), for a sound of these durations.

    Example:

    >>> print(places_of(np.array([0, 10, 10, 0])).round(1))
    [1.3 1.7 2.1 2.5 2.9]
    """
    ends = np.cumsum(durations)
    count = max(0, round(ends[-1] * HOP) - WINDOW) // HOP + 1  # frames of `log_bands`
    middles = np.arange(0, count, GROUP) + (GROUP - 1) / 2 + WINDOW / HOP / 2
    middles = np.minimum(middles, ends[-1] - 1e-3)
    tokens = np.searchsorted(ends, middles, side="right")
    return (tokens + 1 - (ends[tokens] - middles) / durations[tokens]).astype("float32")


def padded(rows, value, multiple=1):
    """Pads arrays (S, ...) with `value` to one length, a multiple of a number, and stacks them."""
    rows = [np.asarray(row, "float32") for row in rows]
    size = -(-max(map(len, rows)) // multiple) * multiple
    widths = [[(0, size - len(row)), *[(0, 0)] * (row.ndim - 1)] for row in rows]
    pairs = zip(rows, widths, strict=True)
    return np.stack([np.pad(*pair, constant_values=value) for pair in pairs])


def spoken_batch(drawn, tokenizer):
    """Makes a batch of sequences.

    Args:
        drawn: list of B sequences of `spoken_digits.sequences`.
        tokenizer: `word_tokenizer` of their speakers.

    Returns:
        Inputs, targets and weights of the targets, three dicts: `source_ids` (B, S) and `places`
        (B, T), padded with -1; `durations` (B, S, 1) in hops and `frames` (B, 4 T, F).
    """
    ids = [[*row, END_ID] for row in tokenizer.encode([text_of(parts) for parts in drawn])]
    durations = [np.array([0, *(len(p.samples) / HOP for p in parts), 0]) for parts in drawn]
    frames = padded([log_bands(sound_of_parts(parts), BANDS) for parts in drawn], 0, GROUP)
    ids = padded(ids, PAD_ID).astype("int32")
    inputs = {"source_ids": ids, "places": padded(map(places_of, durations), -1)}
    targets = {"durations": padded(durations, 0)[..., None], "frames": frames}
    weights = {"durations": ids != PAD_ID, "frames": frames.any(axis=-1)}
    return inputs, targets, {name: some.astype("float32") for name, some in weights.items()}


class FreshSequences(keras.utils.PyDataset):
    """Batches of new sequences in each epoch. Sequences of a batch have equally many digits.

    Args:
        recordings: list of `Recording`.
        tokenizer: `word_tokenizer` of their speakers.
        steps: int, batches in an epoch.
        seed: int.
    """

    def __init__(self, recordings, tokenizer, steps, seed):
        super().__init__()
        self.recordings, self.tokenizer, self.steps = recordings, tokenizer, steps
        self.seed, self.epoch = seed, 0

    def __len__(self):
        return self.steps

    def __getitem__(self, step):
        seed, count = [self.seed, self.epoch, step], 1 + step % LONGEST
        drawn = sequences(self.recordings, DIGITS // count, count, count, seed)
        return spoken_batch(drawn, self.tokenizer)

    def on_epoch_end(self):
        self.epoch += 1
