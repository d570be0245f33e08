"""The rules of heads: whether a head fits the outputs of a model, and the runtime its inputs.

Shapes: B rows, S tokens, C classes.
"""

from typing import Any

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.task_heads import (
    Heads,
    QuestionAnswering,
    fits_labels,
    tags_words,
)
from keras_transformer.export.tasks.forward import ForwardTask

ANSWER_AXES = {signature.ANSWER_START: 2, signature.ANSWER_END: 2}


def check_head(task: ForwardTask, tokenizer: Any) -> None:
    """Raises `ValueError` unless the head of a task fits its outputs and its inputs.

    Args:
        task: a task with a head.
        tokenizer: the tokenizer beside it, or `None`.
    """
    head, kind, ids = task.head, type(task.head).__name__, task.ids
    shapes, inputs = task.output_shapes(), list(task.specs)
    answers = isinstance(head, QuestionAnswering)
    if answers and {name: len(shape) for name, shape in shapes.items()} != ANSWER_AXES:
        raise ValueError(
            "QuestionAnswering needs two outputs (B, S) named 'start' and 'end', but the model has "
            f"{shapes}. Return a dict with these keys."
        )
    if isinstance(head, Heads) and {*shapes} != {*head.heads}:
        raise ValueError(
            f"Heads describes outputs named {sorted(head.heads)}, but the model has {shapes}. "
            "Return a dict with these keys."
        )
    if not isinstance(head, Heads | QuestionAnswering) and len(shapes) != 1:
        raise ValueError(
            f"{kind} describes one output, but the model has {shapes}. Pass Heads(...) with a head "
            "for each."
        )
    for name, part in head.parts(shapes).items():
        _check_output(part, name, shapes[name])
    two_texts = len(ids) == 2 or (len(ids) == 1 and signature.SEGMENT_IDS in inputs)
    if answers and (tokenizer is None or not two_texts):
        raise ValueError(
            "QuestionAnswering needs a tokenizer, and a model that reads two texts: two inputs of "
            f"ids, or one beside 'segment_ids'. The inputs are {inputs}."
        )
    more_than_words = len(ids) > 1 or (len(inputs) > 1 and tags_words(head))
    tokenwise = ids and any(len(shape) == 3 for shape in shapes.values())
    if tokenizer is not None and tokenwise and more_than_words:
        raise ValueError(
            f"{kind} with an output for each token needs a model with one input of ids, but the "
            f"inputs are {inputs}."
        )


def _check_output(head: Any, name: str, shape: tuple[int | None, ...]) -> None:
    """Raises `ValueError` unless an output has the axes of its head, and a number for each label.

    One number for each row is enough for two labels.
    """
    kind, labels = type(head).__name__, getattr(head, "labels", None)
    if len(shape) not in head.shapes:
        raise ValueError(
            f"{kind} needs an output {' or '.join(head.shapes.values())}, but {name!r} has the "
            f"shape {shape}."
        )
    if (
        labels
        and shape[-1] != len(labels)
        and not (len(shape) == 2 and fits_labels(labels, shape[-1]))
    ):
        raise ValueError(
            f"{kind} has {len(labels)} labels, but the model's output, of shape {shape}, has "
            f"{shape[-1]} classes. Pass one label for each, in the model's order."
        )
