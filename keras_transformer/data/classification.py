"""Texts with a label each as a `tf.data.Dataset` of training batches.

Shapes: B batch, S source length.
"""

from dataclasses import dataclass

import numpy as np

from keras_transformer.data.batches import Batching, Ragged
from keras_transformer.data.checks import checked_strings
from keras_transformer.data.dataset import choose, make_dataset
from keras_transformer.data.encoding import encode_rows, fitting, lengths_of, sample_rng
from keras_transformer.data.labels import check_counts_agree, label_ids, pad_labels
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import END_ID


def classification_batches(
    texts,
    labels,
    tokenizer,
    tokens_per_batch=8192,
    *,
    label_names=None,
    truncate=False,
    sampling_alpha=None,
    **batching,
):
    """Makes a `tf.data.Dataset` of padded batches from texts with a label each, for `model.fit`.

    Each element is `(source_ids (B, S), labels (B,))`, int32. Texts end with the end token and are
    padded with 0. Texts of similar length come together.

    Rows that fill up a batch (`static_shapes`, `batch_multiple`) have the label -1. Train with
    `SequenceCrossentropy(pad_id=-1)`, measure with `TokenAccuracy(pad_id=-1)`: they leave such rows
    out, on any number of replicas. Where no batch is filled up, Keras' own losses do as well.

    Args:
        texts: sequence of N strings.
        labels: sequence of N names (str) or class numbers (int).
        tokenizer: `Tokenizer`.
        tokens_per_batch: int, limit of `B * S`.
        label_names: sequence of str, the names in the order of their ids. Defaults to `None`: the
            names that occur, sorted. `dataset.batches.labels` holds them: pass that for validation,
            so that both agree.
        truncate: bool. If True, over-long texts are cut at `max_length` instead of left out.
        sampling_alpha: float or None; see `translation_batches`.
        **batching: `max_length`, `shuffle`, `seed`, `initial_epoch`, `bucket_boundaries`,
            `static_shapes`, `batch_multiple`, `prefetch`; see `translation_batches`.

    Returns:
        `tf.data.Dataset` with the attribute `batches`, a `Batches`.

    Raises:
        TypeError: a text is no string, or labels are of several kinds.
        ValueError: numbers of texts and labels differ, a label is not in `label_names`, no text is
            left, or an argument does not fit.

    Example:

    >>> tokenizer = Tokenizer.train(["good", "bad"], 300, hard_vocab_limit=False)
    >>> train = classification_batches(["good", "bad"], ["pos", "neg"], tokenizer)
    >>> train.batches.labels
    ['neg', 'pos']
    """
    batching = Batching(tokens_per_batch, **batching)
    texts = checked_strings(texts, "texts")
    check_counts_agree(texts=texts, labels=labels)
    classes, names = label_ids(labels, label_names)
    longest = batching.longest
    rows = encode_rows(tokenizer, texts)
    whole = lengths_of(rows)
    keep, counts = choose(
        "text",
        np.minimum(whole, longest) if truncate else whole,
        longest,
        empty=[not text.strip() for text in texts],
        keys=list(zip(texts, classes.tolist(), strict=True)),
    )
    texts = [texts[i] for i in keep]
    source = Ragged([_cut(rows[i], longest) for i in keep])
    examples = Labelled(source, classes[keep])

    def resample(epoch, longest):
        drawn = encode_rows(tokenizer, texts, sampling_alpha, sample_rng(batching.seed, epoch))
        return Labelled(fitting(drawn, source, longest), examples.labels)

    counts |= {
        "cut": int((whole[keep] > longest).sum()),
        "tokens": {"source": int(source.lengths.sum())},
    }
    resample = None if sampling_alpha is None else resample
    return make_dataset(examples, batching, counts, resample=resample, labels=names)


@dataclass
class Labelled:
    """Sources with their end token, and a class each."""

    source: Ragged
    labels: np.ndarray  # (N,)

    @property
    def lengths(self):
        return self.source.lengths

    def batch(self, rows, size, length):
        source_ids = pad_rows(self.source.take(rows), size, length)  # (B, S)
        return source_ids, pad_labels(self.labels[rows], size)  # (B,)


def _cut(row, longest):
    return row if len(row) <= longest else np.append(row[: longest - 1], np.int32(END_ID))
