"""Pairs of texts, in one row or two, as a `tf.data.Dataset` of training batches.

Shapes: B batch, S length of a row.
"""

from dataclasses import dataclass

import numpy as np

from keras_transformer.data.batches import Batching, Ragged
from keras_transformer.data.dataset import choose, make_dataset
from keras_transformer.data.encoding import encode_rows, lengths_of
from keras_transformer.data.labels import check_counts_agree, label_ids, pad_labels
from keras_transformer.padding import pad_rows
from keras_transformer.text.corpora import read_parallel


def pair_batches(
    first,
    second,
    tokenizer,
    tokens_per_batch=8192,
    *,
    labels=None,
    one_row=False,
    label_names=None,
    **batching,
):
    """Makes a `tf.data.Dataset` of padded batches from pairs of texts, for `model.fit`.

    Each element is `(inputs, labels (B,))`, int32. The inputs are, for two towers or two encoders,
    `{"first_ids": (B, S), "second_ids": (B, S')}`, each text with its end token; and with `one_row`
    `{"source_ids": (B, S), "segment_ids": (B, S)}`: first text, end token, second text, end token;
    the segment is 1 in the first text, 2 in the second, 0 in padding.

    Without `labels` the label of a row is its number in the batch: the row of the second text that
    belongs to the first. With a model that scores each first text against each second, output
    (B, B), that is the in-batch softmax: `PairCrossentropy`, or `SequenceCrossentropy(pad_id=-1)`
    for one direction on one replica. Batches have no rows of padding then, for they would be second
    texts to choose from.

    With `labels`, rows that fill up a batch (`static_shapes`, `batch_multiple`) have the label -1;
    see `classification_batches`.

    Args:
        first, second: str or path-like, files of one text a line, plain or gzip; or sequences of N
            strings.
        tokenizer: `Tokenizer`.
        tokens_per_batch: int, limit of B times the length of a row.
        labels: sequence of N names (str) or class numbers (int), or None.
        one_row: bool, whether both texts come in one row.
        label_names: see `classification_batches`.
        **batching: see `classification_batches`.

    Returns:
        `tf.data.Dataset` with the attribute `batches`, a `Batches`.

    Raises:
        TypeError: a text is no string, or labels are of several kinds.
        ValueError: numbers of texts or labels differ, a label is not in `label_names`, no pair is
            left, or an argument does not fit.

    Example:

    >>> tokenizer = Tokenizer.train(["a cat", "eine Katze"], 300, hard_vocab_limit=False)
    >>> train = pair_batches(["a cat"], ["eine Katze"], tokenizer)
    >>> (inputs, labels), = train
    >>> sorted(inputs)
    ['first_ids', 'second_ids']
    """
    batching = Batching(tokens_per_batch, **batching)
    text = read_parallel(first, second)
    classes, names = None, None
    if labels is None and batching.has_padding_rows:
        raise ValueError(
            "Without labels the second texts of a batch are told from each other, and rows of "
            "padding would be among them: leave out static_shapes and batch_multiple."
        )
    if labels is not None:
        check_counts_agree(texts=text[0], labels=labels)
        classes, names = label_ids(labels, label_names)
    rows = [encode_rows(tokenizer, side) for side in text]
    keys = list(zip(*text, *([] if classes is None else [classes.tolist()]), strict=True))
    keep, counts = choose(
        "pair",
        (np.add if one_row else np.maximum)(*map(lengths_of, rows)),
        batching.longest,
        empty=[not all(side.strip() for side in key[:2]) for key in keys],
        keys=keys,
        if_empty="with an empty side",
    )
    sides = (Ragged([side[i] for i in keep]) for side in rows)
    examples = TextPairs(*sides, None if classes is None else classes[keep], one_row)
    counts["tokens"] = {
        "first": int(examples.first.lengths.sum()),
        "second": int(examples.second.lengths.sum()),
    }
    return make_dataset(examples, batching, counts, labels=names)


@dataclass
class TextPairs:
    """Two texts with their end tokens, and a class each or None."""

    first: Ragged
    second: Ragged
    labels: np.ndarray | None  # (N,)
    one_row: bool

    @property
    def lengths(self):
        join = np.add if self.one_row else np.maximum
        return join(self.first.lengths, self.second.lengths)

    def batch(self, rows, size, length):
        labels = np.arange(len(rows)) if self.labels is None else self.labels[rows]
        pair = joined if self.one_row else two_rows
        inputs = pair(self.first.take(rows), self.second.take(rows), size, length)
        return inputs, pad_labels(labels, size)


def two_rows(first, second, size, length):
    """Two texts in a row each: ids, (B, S) and (B, S')."""
    return {
        "first_ids": pad_rows(first, size, length),
        "second_ids": pad_rows(second, size, length),
    }


def joined(first, second, size, length):
    """Two texts in one row: ids and segments, (B, S) each."""
    pairs = list(zip(first, second, strict=True))
    segments = [np.repeat([1, 2], [len(a), len(b)]) for a, b in pairs]
    return {
        "source_ids": pad_rows([np.concatenate(pair) for pair in pairs], size, length),
        "segment_ids": pad_rows(segments, size, length),
    }
