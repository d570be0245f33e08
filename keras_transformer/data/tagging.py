"""Sentences of words with a tag each as a `tf.data.Dataset` of training batches.

Shapes: B batch, S source length.
"""

from dataclasses import dataclass

import numpy as np

from keras_transformer.data.batches import Batching, Ragged
from keras_transformer.data.checks import checked_strings
from keras_transformer.data.dataset import choose, make_dataset
from keras_transformer.data.encoding import lengths_of, sample_rng
from keras_transformer.data.labels import PADDING_LABEL, check_counts_agree, label_ids
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import END_ID
from keras_transformer.text.words import join_words


def tagging_batches(
    sentences,
    tags,
    tokenizer,
    tokens_per_batch=8192,
    *,
    label_names=None,
    sampling_alpha=None,
    **batching,
):
    """Makes a `tf.data.Dataset` of padded batches from words with a tag each, for `model.fit`.

    Each element is `(source_ids (B, S), labels (B, S))`, int32. Each word is encoded by itself, the
    sentence ends with the end token and is padded with 0. A word's tag stands at its first piece;
    all other labels are -1. `SequenceCrossentropy(pad_id=-1)` and `TokenAccuracy(pad_id=-1)` leave
    those out, on any number of replicas.

    Args:
        sentences: sequence of N lists of words.
        tags: sequence of N lists of tags, names (str) or class numbers (int), one a word.
        tokenizer: `Tokenizer`.
        tokens_per_batch: int, limit of `B * S`.
        label_names: sequence of str, the tags in the order of their ids. Defaults to `None`: the
            tags that occur, sorted. `dataset.batches.labels` holds them: pass that for validation,
            so that both agree.
        sampling_alpha: float or None. If given, each epoch cuts the words into other pieces; see
            `translation_batches`. A rare word is then learned by its parts.
        **batching: see `classification_batches`.

    Returns:
        `tf.data.Dataset` with the attribute `batches`, a `Batches`.

    Raises:
        TypeError: a sentence is one string and no list of words, or tags are of several kinds.
        ValueError: a sentence has more or fewer tags than words, a tag is not in `label_names`, no
            sentence is left, or an argument does not fit.

    Example:

    >>> tokenizer = Tokenizer.train(["a red hat"], 300, hard_vocab_limit=False)
    >>> train = tagging_batches([["a", "hat"]], [["DT", "NN"]], tokenizer)
    >>> train.batches.labels
    ['DT', 'NN']
    """
    batching = Batching(tokens_per_batch, **batching)
    check_counts_agree(sentences=sentences, tags=tags)
    sentences = [checked_strings(s, f"sentences[{i}]") for i, s in enumerate(sentences)]
    for number, (words, marks) in enumerate(zip(sentences, tags, strict=True)):
        if len(words) != len(marks):
            raise ValueError(
                f"sentence {number} has {len(words)} words and {len(marks)} tags: {words}."
            )
    classes, names = label_ids([tag for marks in tags for tag in marks], label_names)
    ends = np.cumsum([len(words) for words in sentences])
    classes = np.split(classes, ends)[:-1]
    known = sorted({word for words in sentences for word in words})  # most words come often
    pieces = dict(zip(known, tokenizer.encode(known), strict=True))
    encoded = [[pieces[word] for word in words] for words in sentences]
    rows, labels = _joined(encoded, classes)
    keep, counts = choose(
        "sentence",
        lengths_of(rows),
        batching.longest,
        empty=[not words for words in sentences],
        keys=[(*w, *c.tolist()) for w, c in zip(sentences, classes, strict=True)],
    )
    examples = Tagged(Ragged([rows[i] for i in keep]), Ragged([labels[i] for i in keep]))
    counts["tokens"] = {"source": int(examples.lengths.sum())}
    sentences, classes = [sentences[i] for i in keep], [classes[i] for i in keep]

    def resample(epoch, longest):
        rng = sample_rng(batching.seed, epoch)
        drawn = _drawn(tokenizer, sentences, sampling_alpha, rng)
        rows, labels = _joined(drawn, classes)
        fits = [len(row) <= longest for row in rows]
        return Tagged(
            Ragged(_either(fits, rows, examples.source)),
            Ragged(_either(fits, labels, examples.labels)),
        )

    resample = None if sampling_alpha is None else resample
    return make_dataset(examples, batching, counts, resample=resample, labels=names)


def _drawn(tokenizer, sentences, alpha, rng):
    """The pieces of each word of each sentence, drawn anew for each place where a word stands."""
    words = [word for words in sentences for word in words]
    seed = int(rng.integers(2**32))
    pieces = iter(tokenizer.encode(words, sample=True, alpha=alpha, seed=seed))
    return [[next(pieces) for _ in words] for words in sentences]


def _either(fits, drawn, best):
    """The drawn rows, but the best ones where a drawn one is too long."""
    return [a if fit else b for fit, a, b in zip(fits, drawn, best, strict=True)]


def _joined(sentences, classes):
    """Rows of ids with the end token, and rows of labels, from the pieces of words."""
    rows, labels = [], []
    for words, marks in zip(sentences, classes, strict=True):
        ids, first = join_words(words)
        rows.append(np.array([*ids, END_ID], np.int32))
        labels.append(np.full(len(ids) + 1, PADDING_LABEL, np.int32))
        labels[-1][first] = marks
    return rows, labels


@dataclass
class Tagged:
    """Sources with their end token, and a label at each of their positions."""

    source: Ragged
    labels: Ragged

    @property
    def lengths(self):
        return self.source.lengths

    def batch(self, rows, size, length):
        source_ids = pad_rows(self.source.take(rows), size, length)
        return source_ids, pad_rows(self.labels.take(rows), size, length, PADDING_LABEL)
