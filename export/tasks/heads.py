"""The rules of heads: whether a head fits the outputs of a model, and the runtime its inputs.

Shapes: B rows, S tokens, C classes.
"""

from typing import Any, NamedTuple

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.task_heads import (
    Heads,
    QuestionAnswering,
    fits_labels,
    tags_words,
)
from keras_transformer.export.exporter import Rule
from keras_transformer.export.tasks.forward import ForwardTask


class Output(NamedTuple):
    """An output of a model, with its head."""

    head: Any
    name: str
    shape: tuple[int | None, ...]

    @property
    def kind(self) -> str:
        """The name of the class of the head."""
        return type(self.head).__name__

    @property
    def has_labels(self) -> bool:
        """Whether there is a label for each class, or two for the number of the second one."""
        size, labels = self.shape[-1], getattr(self.head, "labels", None)
        return (
            not labels
            or size == len(labels)
            or (len(self.shape) == 2 and fits_labels(labels, size))
        )


class Described(NamedTuple):
    """A task with a head, and the tokenizer beside it, which may be `None`."""

    task: ForwardTask
    tokenizer: Any

    @property
    def head(self) -> Any:
        """The head."""
        return self.task.head

    @property
    def kind(self) -> str:
        """The name of the class of the head."""
        return type(self.head).__name__

    @property
    def shapes(self) -> dict[str, tuple[int | None, ...]]:
        """The shapes of the outputs, by name."""
        return self.task.output_shapes()

    @property
    def outputs(self) -> list[Output]:
        """The outputs."""
        shapes = self.shapes
        return [Output(head, name, shapes[name]) for name, head in self.head.parts(shapes).items()]

    @property
    def wrong_shape(self) -> Output | None:
        """The first output whose number of axes does not fit its head."""
        return next((one for one in self.outputs if len(one.shape) not in one.head.shapes), None)

    @property
    def wrong_labels(self) -> Output | None:
        """The first output whose number of classes does not fit its head."""
        return next((one for one in self.outputs if not one.has_labels), None)

    @property
    def reads_two_texts(self) -> bool:
        """Whether the model reads two rows of ids, or one beside `segment_ids`."""
        ids = self.task.ids
        return len(ids) == 2 or (len(ids) == 1 and signature.SEGMENT_IDS in self.task.specs)

    @property
    def reads_more_than_words(self) -> bool:
        """Whether an output for each token goes with more inputs than one row of ids."""
        ids, inputs = self.task.ids, self.task.specs
        several = len(ids) > 1 or (len(inputs) > 1 and tags_words(self.head))
        tokenwise = any(len(shape) == 3 for shape in self.shapes.values())
        return self.tokenizer is not None and bool(ids) and tokenwise and several


def _answers(given: Described) -> bool:
    return isinstance(given.head, QuestionAnswering)


RULES = (
    Rule(
        ValueError,
        lambda a: (
            _answers(a)
            and {name: len(shape) for name, shape in a.shapes.items()}
            != {signature.ANSWER_START: 2, signature.ANSWER_END: 2}
        ),
        lambda a: (
            "QuestionAnswering needs two outputs (B, S) named 'start' and 'end', but the model has "
            f"{a.shapes}. Return a dict with these keys."
        ),
    ),
    Rule(
        ValueError,
        lambda a: isinstance(a.head, Heads) and {*a.shapes} != {*a.head.heads},
        lambda a: (
            f"Heads describes outputs named {sorted(a.head.heads)}, but the model has {a.shapes}. "
            "Return a dict with these keys."
        ),
    ),
    Rule(
        ValueError,
        lambda a: not isinstance(a.head, Heads | QuestionAnswering) and len(a.shapes) != 1,
        lambda a: (
            f"{a.kind} describes one output, but the model has {a.shapes}. Pass Heads(...) with a "
            "head for each."
        ),
    ),
    Rule(
        ValueError,
        lambda a: a.wrong_shape,
        lambda a: (
            f"{a.wrong_shape.kind} needs an output "
            f"{' or '.join(a.wrong_shape.head.shapes.values())}, but {a.wrong_shape.name!r} has "
            f"the shape {a.wrong_shape.shape}."
        ),
    ),
    Rule(
        ValueError,
        lambda a: a.wrong_labels,
        lambda a: (
            f"{a.wrong_labels.kind} has {len(a.wrong_labels.head.labels)} labels, but the model's "
            f"output, of shape {a.wrong_labels.shape}, has {a.wrong_labels.shape[-1]} classes. "
            "Pass one label for each, in the model's order."
        ),
    ),
    Rule(
        ValueError,
        lambda a: _answers(a) and (a.tokenizer is None or not a.reads_two_texts),
        lambda a: (
            "QuestionAnswering needs a tokenizer, and a model that reads two texts: two inputs of "
            f"ids, or one beside 'segment_ids'. The inputs are {list(a.task.specs)}."
        ),
    ),
    Rule(
        ValueError,
        lambda a: a.reads_more_than_words,
        lambda a: (
            f"{a.kind} with an output for each token needs a model with one input of ids, but the "
            f"inputs are {list(a.task.specs)}."
        ),
    ),
)
