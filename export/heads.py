"""Heads at export: does what is said of a model's outputs hold?

The heads themselves are in `artefact.heads`, because the runtime reads them too.

Shapes: B rows, S tokens, C classes, D size of a vector.
"""

import keras
import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.heads import (
    HEADS,
    FeatureExtraction,
    QuestionAnswering,
    TokenClassification,
)
from keras_transformer.export.artefact.manifest import id_inputs
from keras_transformer.export.staging import ExportError

# Probabilities sum to 1 within this.
SUM_TOLERANCE = 1e-3
# Of so many numbers that are each about two classes, one at least should be no probability.
ENOUGH = 8
# So much more padding must change nothing, relative to a number's size but at least to 1.
PADDING, UNCHANGED = 3, 1e-4


def described(head):
    """`{"class_name", "config"}`, as the manifest has it."""
    return {"class_name": type(head).__name__, "config": head.get_config()}


def manifest_fields(task, cases):
    """The fields that a head adds to the manifest; none where there is no head."""
    if task.head is None:
        return {}
    return {"head": described(task.head), "ignores_padding": ignores_padding(task, cases)}


def check_head_alone(head, search):
    """Raises `TypeError` or `ValueError` for what is no head, and for one beside a search."""
    if head is not None and type(head) not in HEADS.values():
        raise TypeError(
            f"head must be one of {', '.join(HEADS)}, but {type(head).__name__} was passed."
        )
    if head is not None and search is not None:
        raise ValueError(
            "A search writes texts and has no head: pass `search` or `head`, not both."
        )


def check_head(task, tokenizer):
    """Raises `ValueError` for a head that does not go with the model of a `ForwardTask`."""
    head = task.head
    if head is None:
        return
    shapes = _output_shapes(task)
    if isinstance(head, QuestionAnswering):
        wanted = {signature.ANSWER_START: 2, signature.ANSWER_END: 2}
        if {name: len(shape) for name, shape in shapes.items()} != wanted:
            raise ValueError(
                "QuestionAnswering needs two outputs (B, S) named 'start' and 'end', but the model "
                f"has {shapes}. Let it return a dict with these keys."
            )
    elif len(shapes) != 1:
        raise ValueError(f"{type(head).__name__} is about one output, but the model has {shapes}.")
    elif isinstance(head, FeatureExtraction):
        _check_rank(head, shapes, (2, 3))
    else:
        _check_rank(head, shapes, (3,) if isinstance(head, TokenClassification) else (2,))
        _check_labels(head, *shapes.values())
    _check_inputs(task, head, shapes, tokenizer)


def _output_shapes(task):
    output = task.model.output
    tensors = output.values() if isinstance(output, dict) else keras.tree.flatten(output)
    return {name: tuple(t.shape) for name, t in zip(task.outputs, tensors, strict=True)}


def _check_rank(head, shapes, ranks):
    ((name, shape),) = shapes.items()
    if len(shape) not in ranks:
        wanted = " or ".join({2: "(B, C)", 3: "(B, S, C)"}[rank] for rank in ranks)
        raise ValueError(
            f"{type(head).__name__} needs an output {wanted}, but {name!r} has the shape {shape}."
        )


def _check_labels(head, shape):
    count = shape[-1]
    binary = count == 1 and len(head.labels) == 2 and len(shape) == 2
    if count != len(head.labels) and not binary:
        raise ValueError(
            f"{type(head).__name__} has {len(head.labels)} labels, but the model's output, of "
            f"shape {shape}, has {count} classes. Pass one label for each, in the model's order."
        )


def _check_inputs(task, head, shapes, tokenizer):
    """Raises `ValueError` where the runtime could not read what this head is for."""
    ids, inputs = _ids(task), list(task.specs)
    two = len(ids) == 2 or (len(ids) == 1 and signature.SEGMENT_IDS in inputs)
    if isinstance(head, QuestionAnswering) and (tokenizer is None or not two):
        raise ValueError(
            "QuestionAnswering needs a tokenizer, and a model that reads two texts: two inputs of "
            f"ids, or one beside 'segment_ids'. The inputs are {inputs}."
        )
    tokenwise = len(next(iter(shapes.values()))) == 3
    if tokenizer is not None and ids and tokenwise and len(inputs) > 1:
        if isinstance(head, TokenClassification) or len(ids) > 1:
            raise ValueError(
                f"{type(head).__name__} with an output for each token needs a model with one input "
                f"of ids, but the inputs are {inputs}."
            )


def _ids(task):
    """Names of the inputs that are rows of ids."""
    entries = (
        {"name": name, "dtype": spec.dtype.name, "axes": spec.shape.as_list()}
        for name, spec in task.specs.items()
    )
    return id_inputs(entries)


def check_outputs(task, cases, expected):
    """Raises `ExportError` where Keras' outputs are not what the head says: logits or not.

    Args:
        task: `ForwardTask`.
        cases: list of dicts of inputs.
        expected: list of dicts of Keras' outputs for them.
    """
    head, ids = task.head, _ids(task)
    if not hasattr(head, "from_logits"):
        return
    rows = []
    for case, outputs in zip(cases, expected, strict=True):
        (numbers,) = outputs.values()  # (B, C) or (B, S, C)
        if numbers.ndim == 3 and len(ids) == 1 and case[ids[0]].shape == numbers.shape[:2]:
            numbers = numbers[case[ids[0]] != signature.SPECIAL_IDS["pad"]]
        rows.append(numbers.reshape(-1, numbers.shape[-1]))
    rows = np.concatenate(rows).astype(np.float64)
    within = (rows >= -SUM_TOLERANCE) & (rows <= 1 + SUM_TOLERANCE)
    if rows.shape[1] > 1:
        within &= np.abs(rows.sum(axis=1, keepdims=True) - 1) <= SUM_TOLERANCE
    if not head.from_logits and not within.all():
        raise ExportError(
            f"The head says from_logits=False, but the model gives {rows[~within.all(axis=1)][0]} "
            "for a sample, which are no probabilities. Pass from_logits=True."
        )
    told = rows.shape[1] > 1 or rows.size >= ENOUGH
    if head.from_logits and told and within.all():
        raise ExportError(
            f"The head says from_logits=True, but the model gives probabilities, such as {rows[0]}."
            " Pass from_logits=False, or leave out the model's last softmax or sigmoid."
        )


def ignores_padding(task, cases):
    """Whether rows of ids give the same with and without padding on the right, in Keras."""
    ids = _ids(task)
    free = [name for name in (*ids, signature.SEGMENT_IDS) if _is_free(task, name)]
    return bool(ids) and all(_ignores_padding(task, free, case) for case in cases)


def _is_free(task, name):
    return name in task.specs and task.specs[name].shape[1] is None


def _ignores_padding(task, free, case):
    room = (task.longest or np.inf) - PADDING
    if room < 1:
        return False
    plain, padded = dict(case), dict(case)
    for name in free:
        plain[name] = case[name][:, : int(min(room, case[name].shape[1]))]
        padded[name] = np.pad(plain[name], [(0, 0), (0, PADDING)])
    pairs = zip(task.expected(plain).items(), task.expected(padded).values(), strict=True)
    for (_, reference), result in pairs:
        result = result[tuple(map(slice, reference.shape))]
        with np.errstate(invalid="ignore"):  # infinite numbers
            same = np.abs(result - reference) <= UNCHANGED * np.maximum(1, np.abs(reference))
        if not (same | (result == reference)).all():
            return False
    return True
