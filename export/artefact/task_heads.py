"""Task heads: the meaning of a model's outputs.

The exporters write a head into the manifest, and `Predictor` makes results with it. Each head is a
`ResultMaker`. A search has no head; the runtime has a `ResultMaker` for each kind of search.

Shapes: `B` batch, `S` tokens of a text, `C` classes, `D` size of a vector.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.results import (
    Answer,
    Labels,
    Outputs,
    Results,
    Row,
    Tags,
    Vector,
)
from keras_transformer.types import Array


class Head:
    """The base of task heads: each is a `ResultMaker` with a `task`, its name in the manifest.

    Attributes:
        shapes: the shapes that an output may have, by their numbers of axes.
    """

    shapes: ClassVar[dict[int, str]] = {}

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, as JSON values."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
        }

    def parts(self, outputs: Iterable[str]) -> dict[str, "Head"]:
        """Returns the head of each output; this one, unless it is a `Heads`."""
        return dict.fromkeys(outputs, self)


def fits_labels(labels: Sequence[str], size: int) -> bool:
    """Returns whether an axis of this size has a number per label, or one for two labels."""
    return size == len(labels) or (size == 1 and len(labels) == 2)


@dataclass(frozen=True)
class _Classes(Head):
    labels: tuple[str, ...]
    from_logits: bool = True

    def __post_init__(self) -> None:
        labels = self.labels
        if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
            raise TypeError(f"labels must be a list of strings, but {labels!r} was passed.")
        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise ValueError(f"labels must be at least two, all different; {labels!r} was passed.")
        object.__setattr__(self, "labels", tuple(labels))
        if not isinstance(self.from_logits, bool):
            raise TypeError(f"from_logits must be True or False, not {self.from_logits!r}.")

    def _probabilities(self, numbers: Array) -> Array:
        """Computes probabilities (..., C), float64; (..., 1) are for the second of two classes."""
        numbers = _check_finite(numbers).astype(np.float64)
        if not fits_labels(self.labels, numbers.shape[-1]):
            raise ValueError(
                f"the model gave numbers for {numbers.shape[-1]} classes, and the head has "
                f"{len(self.labels)} labels"
            )
        if numbers.shape[-1] == 1:
            first = np.zeros_like(numbers) if self.from_logits else 1 - numbers
            numbers = np.concatenate([first, numbers], axis=-1)
        return _softmax(numbers) if self.from_logits else numbers


@dataclass(frozen=True)
class Classification(_Classes):
    """One of C classes for each input: sentiment, topics, pictures.

    The model has one output (B, C); or (B, 1) for the second of two classes.

    Args:
        labels: list of str, the names of the classes, in the model's order.
        from_logits: whether the output is logits. `False`: probabilities, as after a softmax, or
            for (B, 1) a sigmoid. The export checks this with sample outputs. Defaults to `True`.

    Raises:
        TypeError: a label is not a string, or `from_logits` is not a bool.
        ValueError: there are fewer than two labels, or two are equal.

    Example:

    >>> head = Classification(["negative", "positive"])
    >>> export_onnx(model, "out/sentiment", tokenizer, head=head)  # doctest: +SKIP
    """

    task: ClassVar[str] = "classify"
    shapes: ClassVar[dict[int, str]] = {2: "(B, C)"}
    empty: ClassVar[Labels] = Labels()

    def result(self, row: Row, outputs: dict[str, Array]) -> Labels:
        (numbers,) = outputs.values()
        found = self._probabilities(numbers)  # (C,)
        order = np.argsort(-found, kind="stable")
        return Labels(tuple(self.labels[i] for i in order), tuple(found[order].tolist()))


@dataclass(frozen=True)
class TokenClassification(_Classes):
    """One of C classes for each word: parts of speech, names.

    The model has one output (B, S, C). A word gets the class of its first piece.

    Args:
        labels, from_logits: as in `Classification`.
        bio: whether the labels are "O", "B-TYPE" and "I-TYPE" for the first and for further words
            of an entity. The tags are then the most probable ones in which "I-TYPE" follows only
            "B-TYPE" or "I-TYPE". Otherwise each word gets its most probable tag, so an "I-TYPE"
            may lack its "B-TYPE". Defaults to `False`.

    Raises:
        TypeError: as in `Classification`, or `bio` is not a bool.
        ValueError: as in `Classification`, or with `bio` a label has another form.

    Example:

    >>> head = TokenClassification(["O", "B-PER", "I-PER"], bio=True)
    >>> export_onnx(model, "out/names", tokenizer, head=head)  # doctest: +SKIP
    """

    bio: bool = False
    task: ClassVar[str] = "tag"
    shapes: ClassVar[dict[int, str]] = {3: "(B, S, C)"}
    empty: ClassVar[Tags] = Tags()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.bio, bool):
            raise TypeError(f"bio must be True or False, not {self.bio!r}.")
        others = [label for label in self.labels if label != "O" and label[:2] not in ("B-", "I-")]
        if self.bio and others:
            raise ValueError(f'with bio, labels must be "O", "B-TYPE" or "I-TYPE", not {others}.')

    def result(self, row: Row, outputs: dict[str, Array]) -> Tags:
        (numbers,) = outputs.values()
        found = self._probabilities(numbers[row.first_pieces])  # (words, C)
        best = self._best_sequence(found) if self.bio else found.argmax(axis=-1)
        scores = np.take_along_axis(found, best[:, None], axis=-1)[:, 0]
        return Tags(row.words, tuple(self.labels[i] for i in best), tuple(scores.tolist()))

    def _best_sequence(self, probabilities: Array) -> Array:
        """Finds the numbers (words,) of the most probable valid tags (Viterbi's algorithm)."""
        types = np.array([label[2:] for label in self.labels])
        inside = np.array([label.startswith("I-") for label in self.labels])
        # Whether the second label may follow the first one, (C, C); all but "I-TYPE" follow any.
        follows = ~inside | ((types[:, None] == types) & (types != ""))
        change = np.where(follows, 0.0, -np.inf)
        with np.errstate(divide="ignore"):
            logs = np.log(probabilities)
        total, before = logs[0] + np.where(inside, -np.inf, 0.0), []
        for log in logs[1:]:
            sums = total[:, None] + change  # (C, C)
            before.append(sums.argmax(axis=0))
            total = sums.max(axis=0) + log
        best = [int(total.argmax())]
        for choices in reversed(before):
            best.append(int(choices[best[-1]]))
        return np.array(best[::-1])


@dataclass(frozen=True)
class QuestionAnswering(Head):
    """The part of a passage that answers a question.

    The model has two outputs (B, S) named `start` and `end`: logits of the answer's first and last
    token over the tokens of its row. It reads question and passage in one row with `segment_ids`,
    or in two rows; then the outputs are over the passage. The answer is the most likely
    pair of first and last token in the passage.

    Args:
        max_answer_length: most tokens of an answer. Defaults to 30.

    Raises:
        ValueError: `max_answer_length` is not a positive integer.

    Example:

    >>> head = QuestionAnswering(max_answer_length=15)
    >>> export_onnx(model, "out/answers", tokenizer, head=head)  # doctest: +SKIP
    """

    max_answer_length: int = 30
    task: ClassVar[str] = "answer"
    shapes: ClassVar[dict[int, str]] = {2: "(B, S)"}
    empty: ClassVar[Answer] = Answer()

    def __post_init__(self) -> None:
        length = self.max_answer_length
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise ValueError(f"max_answer_length must be a positive integer, not {length!r}.")

    def result(self, row: Row, outputs: dict[str, Array]) -> Answer:
        passage = row.passage
        start, end = (
            log_softmax(_check_finite(outputs[name][: row.length]))[passage.tokens]
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
class FeatureExtraction(Head):
    """A vector for each input, or for each token: similarity, search, features for other models.

    The model has one output, (B, D) or (B, S, D).

    Example:

    >>> export_onnx(model, "out/vectors", tokenizer, head=FeatureExtraction())  # doctest: +SKIP
    """

    task: ClassVar[str] = "embed"
    shapes: ClassVar[dict[int, str]] = {2: "(B, C)", 3: "(B, S, C)"}
    empty: ClassVar[Vector] = Vector()

    def result(self, row: Row, outputs: dict[str, Array]) -> Vector:
        (vector,) = outputs.values()
        if vector.ndim > 1 and row.length is not None:
            vector = vector[: row.length]  # the rest is padding
        return Vector(_check_finite(vector))


class Heads(Head):
    """Several heads on one encoder: one for each output, such as an intent and its slots.

    The model returns a dict with these names. Its input is read once: as words if a head is a
    `TokenClassification`, else as text or arrays. The result is a `Results`, with the result of
    each head by name.

    Args:
        **heads: `Classification`, `TokenClassification` or `FeatureExtraction` by output name.

    Raises:
        TypeError: a head is of another class.
        ValueError: there are fewer than two heads.

    Example:

    >>> head = Heads(
    ...     intent=Classification(["play", "stop"]),
    ...     slots=TokenClassification(["O", "B-song", "I-song"]),
    ... )
    >>> export_onnx(model, "out/requests", tokenizer, head=head)  # doctest: +SKIP
    """

    task: ClassVar[str] = "heads"
    empty: ClassVar[Results] = Results()

    def __init__(self, **heads: Head) -> None:
        kinds = (Classification, TokenClassification, FeatureExtraction)
        for name, head in heads.items():
            if not isinstance(head, kinds):
                expected = ", ".join(kind.__name__ for kind in kinds)
                raise TypeError(f"head {name!r} must be one of {expected}, but it is {head!r}.")
        if len(heads) < 2:
            raise ValueError(
                f"Heads needs two or more heads, but got {sorted(heads)}. Pass a single head as it "
                "is: head=Classification(labels)."
            )
        self.heads: dict[str, Head] = heads

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Heads) and self.heads == other.heads

    def __hash__(self) -> int:
        return hash(tuple(self.heads.items()))

    def __repr__(self) -> str:
        return f"Heads({', '.join(f'{name}={head!r}' for name, head in self.heads.items())})"

    def get_config(self) -> dict[str, Any]:
        return {name: describe_head(head) for name, head in self.heads.items()}

    def parts(self, outputs: Iterable[str]) -> dict[str, Head]:
        return self.heads

    def result(self, row: Row, outputs: dict[str, Array]) -> Results:
        return Results(
            {name: head.result(row, {name: outputs[name]}) for name, head in self.heads.items()}
        )


@dataclass(frozen=True)
class NoHead(Head):
    """The outputs as they are: a forward pass that was exported without a head."""

    task: ClassVar[str] = "forward"
    empty: ClassVar[Outputs] = Outputs()

    def result(self, row: Row, outputs: dict[str, Array]) -> Outputs:
        return Outputs(outputs)


# By the class name in the manifest.
HEADS = {
    kind.__name__: kind
    for kind in (Classification, TokenClassification, QuestionAnswering, FeatureExtraction, Heads)
}


def describe_head(head: Head) -> dict[str, Any]:
    """Returns `{"class_name", "config"}` of a head, as in the manifest."""
    return {"class_name": type(head).__name__, "config": head.get_config()}


def head_of(description: dict[str, Any]) -> Any:
    """Returns the head that `describe_head` describes.

    Raises:
        TypeError, ValueError, KeyError: it describes no head.
    """
    kind, config = HEADS[description["class_name"]], description["config"]
    if kind is Heads:
        config = {name: head_of(part) for name, part in config.items()}
    return kind(**config)


def read_head(manifest: dict[str, Any]) -> Any:
    """Returns the head that a manifest describes; `NoHead` if it has none."""
    return head_of(manifest["head"]) if manifest.get("head") else NoHead()


def tags_words(head: Head) -> bool:
    """Returns whether a head, or one of its parts, gives each word a tag."""
    return any(isinstance(part, TokenClassification) for part in head.parts(("",)).values())


def _check_finite(numbers: Array) -> Array:
    """Returns the numbers; raises `ValueError` for NaN and infinity. -inf is a mask."""
    if np.isnan(numbers).any() or not np.isfinite(numbers.max()):
        raise ValueError(f"the model gave numbers that are not finite: {numbers}")
    return numbers


def log_softmax(x: Array) -> Array:
    """Returns log-probabilities of logits (..., C), float64."""
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def _softmax(x: Array) -> Array:
    return np.exp(log_softmax(x))
