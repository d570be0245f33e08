"""Questions, passages and where the answers stand, as a `tf.data.Dataset` of training batches.

Shapes: B batch, S length of a row.
"""

from dataclasses import dataclass

import numpy as np

from keras_transformer.data.batches import Batching, Ragged
from keras_transformer.data.checks import checked_strings
from keras_transformer.data.dataset import choose, make_dataset
from keras_transformer.data.encoding import encode_rows, lengths_of
from keras_transformer.data.labels import check_counts_agree, pad_labels
from keras_transformer.data.pairs import joined, two_rows


def answer_batches(
    questions, passages, answers, tokenizer, tokens_per_batch=8192, *, one_row=True, **batching
):
    """Makes a `tf.data.Dataset` of padded batches from answers that stand in a passage.

    Each element is `({"source_ids": (B, S), "segment_ids": (B, S)}, {"start": (B,), "end": (B,)})`,
    int32. A row is question, end token, passage, end token; the segment is 1 in the question, 2 in
    the passage, 0 in padding. The labels are positions in the row: of the first and of the last
    piece that have a part of the answer. Without `one_row` the inputs are
    `{"first_ids": (B, S), "second_ids": (B, S')}`, question and passage, each with its end token,
    and the labels are positions in the passage.

    Rows that fill up a batch (`static_shapes`, `batch_multiple`) have the labels -1. Train a model
    with the outputs "start" and "end", logits (B, S), with
    `loss={"start": SequenceCrossentropy(pad_id=-1), "end": SequenceCrossentropy(pad_id=-1)}`.

    Args:
        questions, passages: sequences of N strings.
        answers: sequence of N pairs of int: where the answer begins in the passage and where it
            ends, in characters; the end is not included, as in `passage[begin:end]`.
        tokenizer: `Tokenizer`.
        tokens_per_batch: int, limit of B times the length of a row.
        one_row: bool, whether question and passage come in one row. Defaults to `True`.
        **batching: see `classification_batches`.

    Returns:
        `tf.data.Dataset` with the attribute `batches`, a `Batches`.

    Raises:
        TypeError: a text is no string.
        ValueError: numbers of questions, passages and answers differ, an answer is empty or not
            within its passage, nothing is left, or an argument does not fit.

    Example:

    >>> tokenizer = Tokenizer.train(["who sat", "a cat sat"], 300, hard_vocab_limit=False)
    >>> train = answer_batches(["who sat"], ["a cat sat"], [(2, 5)], tokenizer)
    >>> (inputs, labels), = train
    >>> row, start, end = inputs["source_ids"][0], labels["start"][0], labels["end"][0]
    >>> tokenizer.decode(row[start : end + 1].numpy())
    'cat'
    """
    batching = Batching(tokens_per_batch, **batching)
    questions = checked_strings(questions, "questions")
    passages = checked_strings(passages, "passages")
    check_counts_agree(questions=questions, passages=passages, answers=answers)
    rows = [encode_rows(tokenizer, side) for side in (questions, passages)]
    keys = list(zip(questions, passages, map(tuple, answers), strict=True))
    keep, counts = choose(
        "question",
        (np.add if one_row else np.maximum)(*map(lengths_of, rows)),
        batching.longest,
        empty=[not (q.strip() and p.strip()) for q, p, _ in keys],
        keys=keys,
        if_empty="with an empty side",
    )
    spans = [piece_span(tokenizer, passages[i], answers[i], f"answer {i}") for i in keep]
    question, passage = (Ragged([side[i] for i in keep]) for side in rows)
    positions = np.array(spans) + (question.lengths[:, None] if one_row else 0)
    counts["tokens"] = {
        "question": int(question.lengths.sum()),
        "passage": int(passage.lengths.sum()),
    }
    return make_dataset(Answers(question, passage, positions, one_row), batching, counts)


def piece_span(tokenizer, text, answer, name="answer"):
    """The first and the last piece that have a part of `text[begin:end]`.

    Args:
        tokenizer: `Tokenizer`.
        text: str.
        answer: (begin, end), in characters, the end not included.
        name: str, what the error calls it.

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
    spans = np.array(tokenizer.encode_with_spans(text)[1])
    within = np.flatnonzero((spans[:, 1] > begin) & (spans[:, 0] < end))
    if not len(within):
        raise ValueError(f"{name}, ({begin}, {end}), has no piece: the tokenizer drops its text.")
    return within[0], within[-1]


@dataclass
class Answers:
    """Questions and passages with their end tokens, and positions of start and end in their row."""

    question: Ragged
    passage: Ragged
    positions: np.ndarray  # (N, 2)
    one_row: bool

    @property
    def lengths(self):
        join = np.add if self.one_row else np.maximum
        return join(self.question.lengths, self.passage.lengths)

    def batch(self, rows, size, length):
        pair = joined if self.one_row else two_rows
        inputs = pair(self.question.take(rows), self.passage.take(rows), size, length)
        start, end = self.positions[rows].T
        return inputs, {"start": pad_labels(start, size), "end": pad_labels(end, size)}
