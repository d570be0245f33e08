"""Inputs to prove an export on, where the caller gives none: made-up ids and texts."""

import numpy as np

from keras_transformer.export.runtime import signature

# Texts that strings are proven on: short, empty, and with characters that pieces may lack.
PROOF = ("a", "two words", "", "Ein dritter Satz mit mehr Wörtern, 3 Zahlen & 😀.")


def random_ids(vocab_size, max_length):
    """Batches of source ids (B, S), some rows padded on the right.

    Their sizes differ from batch to batch, so that a size that was traced as a constant shows.
    """
    random, batches = np.random.default_rng(7), []
    for batch, length in ((1, 3), (3, 7), (2, 11)):
        length = min(length, max_length or length)
        ids = random.integers(min(4, vocab_size - 1), vocab_size, (batch, length))
        for row in range(1, batch):
            ids[row, max(1, length - 2 * row) :] = signature.SPECIAL_IDS["pad"]
        batches.append(ids)
    return batches


def check_listed(samples):
    """The samples; raises `ValueError` unless they are a list of at least one."""
    if isinstance(samples, (str, dict)) or not len(samples):
        raise ValueError(
            "samples must be a list of at least one sample, or None for random ones, but "
            f"{samples!r} was passed."
        )
    return samples


def proof_texts(tokenizer, longest):
    """Texts to prove strings on: those of no more than `longest` tokens, begin or end included."""
    return [text for text in PROOF if len(tokenizer.encode(text)) < (longest or np.inf)]
