"""Batches of pairs of texts: with a label, without one, or with an answer within the second text.

Shapes: B batch, S length of a row.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from keras_transformer.data.batches import Dataset, make_dataset
from keras_transformer.data.examples import (
    Examples,
    Field,
    Padded,
    Rows,
    are_blank,
    check_counts_agree,
    encode_rows,
    label_ids,
    pad_labels,
    refuse_without,
    row_labels,
)
from keras_transformer.data.plan import BatchOptions
from keras_transformer.special_ids import BEGIN_ID
from keras_transformer.text.corpora import checked_strings, read_parallel
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabularies import between_of, check_tokenizer
from keras_transformer.types import AnyTokenizer, Ids, StrPath


def pair_batches(
    first: StrPath | Iterable[str],
    second: StrPath | Iterable[str],
    tokenizer: AnyTokenizer,
    tokens_per_batch: int = 8192,
    *,
    labels: Sequence[str] | Sequence[int] | None = None,
    one_row: bool = False,
    label_names: Sequence[str] | None = None,
    **options: Any,
) -> Dataset:
    """Makes padded batches from pairs of texts, for `model.fit`.

    Each batch is `(inputs, labels (B,))`, int32. For two towers or two encoders the inputs are
    `{"first_ids": (B, S), "second_ids": (B, S')}`, each text with its end token. With `one_row`
    they are `{"source_ids": (B, S), "segment_ids": (B, S)}`: first text, end token, second text,
    end token. Only the first text has a begin token, if the tokenizer adds one (BERT). The segment
    is 1 in the first text, 2 in the second, 0 in padding.

    Without `labels` the label of a row is its number in the batch: the number of the second text
    that belongs to the first. Use it with a model that scores each first text against each second,
    output (B, B). The loss is then the in-batch softmax: `PairCrossentropy`, or
    `SequenceCrossentropy(pad_id=-1)` for one direction on one replica. Such batches have no rows of
    padding, which would count as second texts.

    With `labels`, rows that fill up a batch (`static_shapes`, `batch_multiple`) have the label -1,
    which `SequenceCrossentropy(pad_id=-1)` leaves out.

    Args:
        first, second: str or path-like, files of one text per line, plain or gzip; or sequences of
            N strings.
        tokenizer: `Tokenizer`.
        tokens_per_batch: int, limit of B times the length of a row.
        labels: sequence of N names (str) or class numbers (int), or `None`.
        one_row: bool, whether both texts come in one row.
        label_names: sequence of str, the names in the order of their ids. Defaults to `None`: the
            names that occur, sorted.
        **options: other fields of `BatchOptions`.

    Returns:
        On TensorFlow a `tf.data.Dataset` with the attribute `batches`, a `Batches`; on other
        backends a `Batches`.

    Raises:
        TypeError: a text is not a string, or labels are of several kinds.
        ValueError: numbers of texts or labels differ, a label is not in `label_names`, no pair is
            left, or an argument is out of its range.

    Example:

    >>> tokenizer = Tokenizer.train(["a cat", "eine Katze"], 300, hard_vocab_limit=False)
    >>> train = pair_batches(["a cat"], ["eine Katze"], tokenizer)
    >>> (inputs, labels), = train
    >>> sorted(inputs)
    ['first_ids', 'second_ids']
    """
    check_tokenizer(tokenizer)
    batch_options = BatchOptions(tokens_per_batch, **options)
    first, second = read_parallel(first, second)
    classes, names = None, None
    if labels is not None:
        check_counts_agree(texts=first, labels=labels)
        classes, names = label_ids(labels, label_names)
    else:
        refuse_without("labels", label_names=label_names)
    if labels is None and (batch_options.static_shapes or batch_options.batch_multiple > 1):
        raise ValueError(
            "Without labels the model chooses among the second texts of a batch, which would "
            "include rows of padding: leave out static_shapes and batch_multiple."
        )
    columns, inputs = _columns(tokenizer, first, second, one_row)
    empty = are_blank(first) | are_blank(second)
    targets = row_labels if labels is not None else _row_numbers
    examples = Examples("pair", columns, empty, inputs, targets, classes)
    return make_dataset(examples, batch_options, {"source": tokenizer}, names)


def _row_numbers(examples: Examples, indices: Ids, size: int, length: int | None) -> Ids:
    """A field with the number of each row: the second text that belongs to its first one."""
    return pad_labels(np.arange(len(indices)), size)


def answer_batches(
    questions: Sequence[str],
    passages: Sequence[str],
    answers: Sequence[tuple[int, int]],
    tokenizer: AnyTokenizer,
    tokens_per_batch: int = 8192,
    *,
    one_row: bool = True,
    **options: Any,
) -> Dataset:
    """Makes padded batches from questions and answers that are parts of a passage.

    Each batch is `({"source_ids": (B, S), "segment_ids": (B, S)}, {"start": (B,), "end": (B,)})`,
    int32. A row is question, end token, passage, end token; the segment is 1 in the question, 2 in
    the passage, 0 in padding. The labels are the positions in the row of the first and the last
    piece that contain a part of the answer. Without `one_row` the inputs are
    `{"first_ids": (B, S), "second_ids": (B, S')}`, question and passage, each with its end token,
    and the labels are positions in the passage.

    Rows that fill up a batch (`static_shapes`, `batch_multiple`) have the labels -1. Train a model
    with the outputs "start" and "end", logits (B, S), with
    `loss={"start": SequenceCrossentropy(pad_id=-1), "end": SequenceCrossentropy(pad_id=-1)}`.

    Args:
        questions, passages: sequences of N strings.
        answers: sequence of N pairs of int: the begin and the end of the answer in the passage, in
            characters, as in `passage[begin:end]`.
        tokenizer: `Tokenizer`.
        tokens_per_batch: int, limit of B times the length of a row.
        one_row: bool, whether question and passage come in one row. Defaults to `True`.
        **options: other fields of `BatchOptions`.

    Returns:
        On TensorFlow a `tf.data.Dataset` with the attribute `batches`, a `Batches`; on other
        backends a `Batches`.

    Raises:
        TypeError: a text is not a string.
        ValueError: numbers of questions, passages and answers differ, an answer is empty or not
            within its passage, nothing is left, or an argument is out of its range.

    Example:

    >>> tokenizer = Tokenizer.train(["who sat", "a cat sat"], 300, hard_vocab_limit=False)
    >>> train = answer_batches(["who sat"], ["a cat sat"], [(2, 5)], tokenizer)
    >>> (inputs, labels), = train
    >>> row, start, end = inputs["source_ids"][0], labels["start"][0], labels["end"][0]
    >>> tokenizer.decode(row[start : end + 1].numpy())
    'cat'
    """
    check_tokenizer(tokenizer)
    batch_options = BatchOptions(tokens_per_batch, **options)
    questions = checked_strings(questions, "questions")
    passages = checked_strings(passages, "passages")
    check_counts_agree(questions=questions, passages=passages, answers=answers)
    columns, inputs = _columns(tokenizer, questions, passages, one_row)
    empty = are_blank(questions) | are_blank(passages)
    targets = {"start": functools.partial(_position, 0), "end": functools.partial(_position, 1)}
    examples = Examples("question", columns, empty, inputs, targets)
    positions, begins = np.zeros((len(answers), 2), int), _begin_count(tokenizer)
    for i in examples.fitting(batch_options.longest):
        span = piece_span(tokenizer, passages[i], answers[i], f"answer {i}")
        if one_row:
            (segments,) = columns["source"].take([i])
            before = np.count_nonzero(segments[:, 1] == 1) + len(between_of(tokenizer))
            span = np.add(span, before - begins)
        positions[i] = span
    examples = replace(examples, labels=positions)
    return make_dataset(examples, batch_options, {"source": tokenizer})


def _begin_count(tokenizer: AnyTokenizer) -> int:
    """Returns the number of begin tokens that the tokenizer adds to a text: 1 for BERT, else 0."""
    return tokenizer.encode("").count(BEGIN_ID)


def _columns(
    tokenizer: AnyTokenizer, first: list[str], second: list[str], one_row: bool
) -> tuple[dict[str, Rows], dict[str, Field]]:
    """Returns the columns of pairs, and the inputs: two rows of ids, or one of ids and segments.

    In one row the second text has no begin token. RoBERTa has another end token before it.
    """
    firsts, seconds = encode_rows(tokenizer, first), encode_rows(tokenizer, second)
    if not one_row:
        columns = {"first": Rows.of(firsts), "second": Rows.of(seconds)}
        return columns, {"first_ids": Padded("first"), "second_ids": Padded("second")}
    begins, between = _begin_count(tokenizer), np.array(between_of(tokenizer), np.int32)
    rows = []
    for one, two in zip(firsts, seconds, strict=True):
        ids = np.concatenate([one, between, two[begins:]])
        segments = np.where(np.arange(len(ids)) < len(one), 1, 2)
        rows.append(np.stack([ids, segments], axis=1, dtype=np.int32))
    return {"source": Rows.of(rows)}, {
        "source_ids": Padded("source", lambda row: row[:, 0]),
        "segment_ids": Padded("source", lambda row: row[:, 1]),
    }


def piece_span(
    tokenizer: AnyTokenizer, text: str, answer: tuple[int, int], name: str = "answer"
) -> tuple[int, int]:
    """Finds the first and the last piece that contain a part of `text[begin:end]`.

    Args:
        tokenizer: `Tokenizer`.
        text: str.
        answer: (begin, end), in characters, the end not included.
        name: str, its name in errors.

    Returns:
        (first, last), indices into `tokenizer.encode(text)`.

    Raises:
        ValueError: the answer is empty, or not within the text.
    """
    begin, end = answer
    if not 0 <= begin < end <= len(text):
        raise ValueError(
            f"{name} is ({begin}, {end}), which is no part of its passage of {len(text)} "
            "characters. Give begin and end so that passage[begin:end] is the answer."
        )
    ids, found = tokenizer.encode_with_spans(text)
    spans = np.array(found, int).reshape(-1, 2)
    within = np.flatnonzero((spans[:, 1] > begin) & (spans[:, 0] < end))
    if not len(within):
        raise ValueError(f"{name}, ({begin}, {end}), has no piece: the tokenizer drops its text.")
    first, place = within[0], spans[within[0], 0]
    # Of the bytes of a character, only the last has a span that is not empty.
    while (
        first
        and spans[first - 1].tolist() == [place, place]
        and _is_byte(tokenizer, ids[first - 1])
    ):
        first -= 1
    return first, within[-1]


def _is_byte(tokenizer: AnyTokenizer, token: int) -> bool:
    if isinstance(tokenizer, Tokenizer):
        return tokenizer.pieces[token].startswith("<0x")
    return token != BEGIN_ID


def _position(which: int, examples: Examples, indices: Ids, size: int, length: int | None) -> Ids:
    """A field with the position of the answer's first (0) or last (1) piece, (B,)."""
    return pad_labels(examples.labels[indices, which], size)
