"""Heads: what the outputs of a forward pass mean, told at export and read where it is served.

The exporters write a head into the manifest; `Predictor` asks it for results. `Row` is what a head
sees of an input: `rows` defines it.

Shapes: `B` batch, `S` tokens of a text, `C` classes, `D` size of a vector.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.results import Answer, Labels, Outputs, Tags, Vector


class _Head:
    """What heads share. Each has a `task`, the `empty` result, and `result(row, outputs)`."""

    task: ClassVar[str]
    empty: ClassVar[tuple]

    def get_config(self):
        """The constructor's arguments, as JSON knows them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
        }

    def failed(self, reason):
        """The result of an input that has none."""
        return self.empty._replace(error=str(reason))


def fits_labels(labels, size: int) -> bool:
    """Whether a last axis of this size has a number for each label, or one for two labels."""
    return size == len(labels) or (size == 1 and len(labels) == 2)


@dataclass(frozen=True)
class _Classes(_Head):
    labels: tuple[str, ...]
    from_logits: bool = True

    def __post_init__(self):
        labels = self.labels
        if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
            raise TypeError(f"labels must be a list of strings, but {labels!r} was passed.")
        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise ValueError(
                f"labels must be at least two, each another, but {labels!r} was passed."
            )
        object.__setattr__(self, "labels", tuple(labels))
        if not isinstance(self.from_logits, bool):
            raise TypeError(f"from_logits must be True or False, not {self.from_logits!r}.")

    def _probabilities(self, numbers):
        """(..., C) as float64; (..., 1) is the second of two classes, by a sigmoid."""
        numbers = _checked(numbers).astype(np.float64)
        if not fits_labels(self.labels, numbers.shape[-1]):
            raise ValueError(
                f"the model gave numbers for {numbers.shape[-1]} classes, and the head has "
                f"{len(self.labels)} labels"
            )
        if numbers.shape[-1] == 1:
            if self.from_logits:
                return _softmax(np.concatenate([np.zeros_like(numbers), numbers], axis=-1))
            return np.concatenate([1 - numbers, numbers], axis=-1)
        return _softmax(numbers) if self.from_logits else numbers


@dataclass(frozen=True)
class Classification(_Classes):
    """One of C classes for each input: sentiment, topics, pictures.

    The model has one output (B, C); or (B, 1) for two classes, which then is about the second one.

    Args:
        labels: list of str, the names of the classes, in the model's order.
        from_logits: whether the output is logits. `False`: probabilities, as behind a softmax, or
            for (B, 1) a sigmoid. The export holds this against sample outputs. Defaults to `True`.

    Raises:
        TypeError, ValueError: labels are no strings, fewer than two, or not all different.

    Example:

    >>> head = Classification(["negative", "positive"])
    >>> export_onnx(model, "out/sentiment", tokenizer, head=head)  # doctest: +SKIP
    """

    task: ClassVar[str] = "classify"
    empty: ClassVar[Labels] = Labels()

    def result(self, row, outputs):
        (numbers,) = outputs.values()
        found = self._probabilities(numbers)  # (C,)
        order = np.argsort(-found, kind="stable")
        return Labels(tuple(self.labels[i] for i in order), tuple(found[order].tolist()))


@dataclass(frozen=True)
class TokenClassification(_Classes):
    """One of C classes for each word: parts of speech, names.

    The model has one output (B, S, C). What it says of a word stands at the word's first piece.
    Arguments and errors are those of `Classification`.

    Example:

    >>> head = TokenClassification(["O", "B-PER", "I-PER"])
    >>> export_onnx(model, "out/names", tokenizer, head=head)  # doctest: +SKIP
    """

    task: ClassVar[str] = "tag"
    empty: ClassVar[Tags] = Tags()

    def result(self, row, outputs):
        (numbers,) = outputs.values()
        found = self._probabilities(numbers[row.first_pieces])  # (words, C)
        best = found.argmax(axis=-1)
        tags = tuple(self.labels[i] for i in best)
        return Tags(row.words, tags, tuple(found.max(axis=-1).tolist()))


@dataclass(frozen=True)
class QuestionAnswering(_Head):
    """The part of a passage that answers a question.

    The model has two outputs (B, S) named `start` and `end`: logits of the answer's first and last
    token over the tokens of its row. It reads question and passage in one row with `segment_ids`,
    or in two rows; then the outputs are over the passage. The answer is the likeliest pair of
    tokens of the passage, first before last or the same.

    Args:
        max_answer_length: most tokens of an answer. Defaults to 30.

    Raises:
        ValueError: `max_answer_length` is no positive integer.

    Example:

    >>> head = QuestionAnswering(max_answer_length=15)
    >>> export_onnx(model, "out/answers", tokenizer, head=head)  # doctest: +SKIP
    """

    max_answer_length: int = 30
    task: ClassVar[str] = "answer"
    empty: ClassVar[Answer] = Answer()

    def __post_init__(self):
        length = self.max_answer_length
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise ValueError(f"max_answer_length must be a positive integer, not {length!r}.")

    def result(self, row, outputs):
        passage = row.passage
        start, end = (
            _log_softmax(_checked(outputs[name][: row.length]))[passage.tokens]
            for name in (signature.ANSWER_START, signature.ANSWER_END)
        )
        # One row of scores for each length of an answer, by its first token.
        lengths = range(min(self.max_answer_length, len(start)))
        scores = [start[: len(start) - length] + end[length:] for length in lengths]
        length = int(np.argmax([some.max() for some in scores]))
        first = int(scores[length].argmax())
        begin, stop = passage.spans[first][0], passage.spans[first + length][1]
        text = passage.text[begin:stop]
        begin += len(text) - len(text.lstrip())
        text = text.strip()
        score = float(np.exp(scores[length][first]))
        return Answer(text, begin, begin + len(text), score)


@dataclass(frozen=True)
class FeatureExtraction(_Head):
    """A vector for each input, or for each token: similarity, search, features for other models.

    The model has one output, (B, D) or (B, S, D).

    Example:

    >>> export_onnx(model, "out/vectors", tokenizer, head=FeatureExtraction())  # doctest: +SKIP
    """

    task: ClassVar[str] = "embed"
    empty: ClassVar[Vector] = Vector()

    def result(self, row, outputs):
        (vector,) = outputs.values()
        if vector.ndim > 1 and row.length is not None:
            vector = vector[: row.length]  # the rest is padding
        return Vector(_checked(vector))


@dataclass(frozen=True)
class NoHead(_Head):
    """The outputs as they are: a forward pass that was exported without a head."""

    task: ClassVar[str] = "forward"
    empty: ClassVar[Outputs] = Outputs()

    def result(self, row, outputs):
        return Outputs(outputs)


# By the class name in the manifest.
HEADS = {
    kind.__name__: kind
    for kind in (Classification, TokenClassification, QuestionAnswering, FeatureExtraction)
}


def read_head(manifest):
    """The head of an artefact, by its manifest."""
    head = manifest.get("head")
    return HEADS[head["class_name"]](**head["config"]) if head else NoHead()


def _checked(numbers):
    """The numbers; raises `ValueError` where they are NaN or infinite, but for -inf as a mask."""
    if np.isnan(numbers).any() or not np.isfinite(numbers.max()):
        raise ValueError(f"the model gave numbers that are not finite: {numbers}")
    return numbers


def _log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def _softmax(x):
    return np.exp(_log_softmax(x))
