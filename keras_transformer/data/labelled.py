"""Batches of labelled texts and of tagged words.

Shapes: B batch, S source length.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from keras_transformer.data.batches import Dataset, make_dataset
from keras_transformer.data.examples import (
    PADDING_LABEL,
    Examples,
    Fields,
    Padded,
    Rows,
    are_blank,
    check_counts_agree,
    label_ids,
    refuse_without,
    row_labels,
    text_rows,
)
from keras_transformer.data.plan import BatchOptions
from keras_transformer.special_ids import END_ID
from keras_transformer.text.corpora import checked_strings, join_words
from keras_transformer.text.vocabularies import check_tokenizer
from keras_transformer.types import AnyTokenizer, Array, Ids


def classification_batches(
    texts: Sequence[str],
    labels: Sequence[str] | Sequence[int],
    tokenizer: AnyTokenizer,
    tokens_per_batch: int = 8192,
    *,
    label_names: Sequence[str] | None = None,
    truncate: bool = False,
    sampling_alpha: float | None = None,
    **options: Any,
) -> Dataset:
    """Makes padded batches from labelled texts, for `model.fit`.

    Each batch is `(source_ids (B, S), labels (B,))`, int32. Texts end with the end token and are
    padded with 0.

    Rows that fill up a batch (`static_shapes`, `batch_multiple`) have the label -1. Train with
    `SequenceCrossentropy(pad_id=-1)`, and measure with `TokenAccuracy(pad_id=-1)`: they leave such
    rows out, on any number of replicas. Without such rows, Keras' own losses also work.

    Args:
        texts: sequence of N strings.
        labels: sequence of N names (str) or class numbers (int).
        tokenizer: `Tokenizer`.
        tokens_per_batch: int, limit of `B * S`.
        label_names: sequence of str, the names in the order of their ids. Defaults to `None`: the
            names that occur, sorted. `dataset.batches.labels` has them: pass it for validation, so
            that both agree.
        truncate: bool. If True, over-long texts are cut at `max_length` instead of left out.
        sampling_alpha: float or `None`. If given, each epoch draws other segmentations, as in
            `translation_batches`.
        **options: other fields of `BatchOptions`.

    Returns:
        On TensorFlow a `tf.data.Dataset` with the attribute `batches`, a `Batches`; on other
        backends a `Batches`.

    Raises:
        TypeError: a text is not a string, or labels are of several kinds.
        ValueError: numbers of texts and labels differ, a label is not in `label_names`, no text is
            left, or an argument is out of its range.

    Example:

    >>> tokenizer = Tokenizer.train(["good", "bad"], 300, hard_vocab_limit=False)
    >>> train = classification_batches(["good", "bad"], ["pos", "neg"], tokenizer)
    >>> train.batches.labels
    ['neg', 'pos']
    """
    check_tokenizer(tokenizer)
    batch_options = BatchOptions(tokens_per_batch, **options)
    texts = checked_strings(texts, "texts")
    check_counts_agree(texts=texts, labels=labels)
    classes, names = label_ids(labels, label_names)
    rows, empty, cut = text_rows(tokenizer, texts, sampling_alpha), are_blank(texts), 0
    if truncate:
        lengths = np.minimum(rows.lengths, batch_options.longest)
        cut = int((~empty & (rows.lengths > lengths)).sum())
        rows.values[rows.starts + lengths - 1] = END_ID
        rows = replace(rows, lengths=lengths)
    examples = Examples("text", {"source": rows}, empty, Padded("source"), row_labels, classes)
    return make_dataset(examples, batch_options, {"source": tokenizer}, names, cut)


def tagging_batches(
    sentences: Sequence[Sequence[str]],
    tags: Sequence[Sequence[str]] | Sequence[Sequence[int]],
    tokenizer: AnyTokenizer,
    tokens_per_batch: int = 8192,
    *,
    label_names: Sequence[str] | None = None,
    sentence_labels: Sequence[str] | Sequence[int] | None = None,
    sentence_label_names: Sequence[str] | None = None,
    sampling_alpha: float | None = None,
    **options: Any,
) -> Dataset:
    """Makes padded batches from tagged words, for `model.fit`.

    Each batch is `(source_ids (B, S), labels (B, S))`, int32. Each word is encoded separately. The
    sentence ends with the end token and is padded with 0. The first piece of a word has the word's
    tag; all other labels are -1. `SequenceCrossentropy(pad_id=-1)` and `TokenAccuracy(pad_id=-1)`
    leave these out, on any number of replicas.

    With `sentence_labels` the labels of a batch are `{"tags": (B, S), "label": (B,)}`, for a model
    with two outputs of these names. Rows that fill up a batch have the label -1.

    Args:
        sentences: sequence of N lists of words.
        tags: sequence of N lists of tags, names (str) or class numbers (int), one per word.
        tokenizer: `Tokenizer`.
        tokens_per_batch: int, limit of `B * S`.
        label_names: sequence of str, the tags in the order of their ids. Defaults to `None`: the
            tags that occur, sorted. `dataset.batches.labels` has them: pass it for validation, so
            that both agree.
        sentence_labels: sequence of N names (str) or class numbers (int), one for each sentence.
            Defaults to `None`: sentences have no label.
        sentence_label_names: sequence of str, as `label_names`, for `sentence_labels`.
        sampling_alpha: float or `None`. If given, each epoch cuts the words into other pieces, as
            in `translation_batches`. The model then learns rare words by their parts.
        **options: other fields of `BatchOptions`.

    Returns:
        On TensorFlow a `tf.data.Dataset` with the attribute `batches`, a `Batches`; on other
        backends a `Batches`.

    Raises:
        TypeError: a sentence is one string instead of a list of words, or tags are of several
            kinds.
        ValueError: a sentence has more or fewer tags than words, numbers of sentences and labels
            differ, a tag or label is not in its names, no sentence is left, or an argument is out
            of its range.

    Example:

    >>> tokenizer = Tokenizer.train(["a red hat"], 300, hard_vocab_limit=False)
    >>> train = tagging_batches([["a", "hat"]], [["DT", "NN"]], tokenizer)
    >>> train.batches.labels
    ['DT', 'NN']
    """
    check_tokenizer(tokenizer)
    batch_options = BatchOptions(tokens_per_batch, **options)
    check_counts_agree(sentences=sentences, tags=tags)
    sentences = [checked_strings(s, f"sentences[{i}]") for i, s in enumerate(sentences)]
    for number, (words, marks) in enumerate(zip(sentences, tags, strict=True)):
        if len(words) != len(marks):
            raise ValueError(
                f"sentence {number} has {len(words)} words and {len(marks)} tags: {words}."
            )
    classes, names = label_ids([tag for marks in tags for tag in marks], label_names)
    ends = np.cumsum([len(words) for words in sentences], dtype=int)
    tagged = list(zip(sentences, np.split(classes, ends)[:-1], strict=True))
    known = sorted({word for words in sentences for word in words})  # most words occur often
    pieces = dict(zip(known, tokenizer.encode(known), strict=True))
    rows = [_tagged_row([pieces[word] for word in words], marks) for words, marks in tagged]
    sampling: dict[str, Any] = {}
    if sampling_alpha is not None:
        draw = functools.partial(_draw_tagged, tokenizer, sampling_alpha)
        sampling = {"texts": tagged, "draw": draw}
    empty = np.array([not words for words in sentences], bool)
    columns, labels = {"source": Rows.of(rows, **sampling)}, None
    ids = Padded("source", lambda row: row[:, 0])
    targets: Fields = Padded("source", lambda row: row[:, 1], PADDING_LABEL)
    if sentence_labels is None:
        refuse_without("sentence_labels", sentence_label_names=sentence_label_names)
    else:
        check_counts_agree(sentences=sentences, sentence_labels=sentence_labels)
        labels, _ = label_ids(sentence_labels, sentence_label_names)
        targets = {"tags": targets, "label": row_labels}
    examples = Examples("sentence", columns, empty, ids, targets, labels)
    return make_dataset(examples, batch_options, {"source": tokenizer}, names)


def _tagged_row(pieces: list[list[int]], marks: Ids) -> Ids:
    """Makes the row (S, 2) of a sentence: ids with the end token, and labels."""
    ids, first = join_words(pieces)
    row = np.full((len(ids) + 1, 2), PADDING_LABEL, np.int32)
    row[:, 0] = [*ids, END_ID]
    row[first, 1] = marks
    return row


def _draw_tagged(
    tokenizer: AnyTokenizer,
    alpha: float,
    tagged: Sequence[tuple[list[str], Ids]],
    rng: np.random.Generator,
) -> list[Array]:
    """Draws new pieces for each occurrence of a word."""
    words = [word for sentence, _ in tagged for word in sentence]
    seed = int(rng.integers(2**32))
    pieces = iter(tokenizer.encode(words, sample=True, alpha=alpha, seed=seed))
    return [_tagged_row([next(pieces) for _ in words], marks) for words, marks in tagged]
