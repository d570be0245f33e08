"""The rules of exporters that trace, and the task to trace."""

from typing import Any

import keras

from keras_transformer.export.arguments import Arguments, check
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.task_heads import HEADS
from keras_transformer.export.exporter import Rule
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.graph import quantize
from keras_transformer.export.tasks import ForwardTask, SearchTask, Task, stepwise, text
from keras_transformer.export.tasks.heads import check_head
from keras_transformer.search import BeamSearch, GreedySearch, Sampling

RULES = (
    Rule(
        ValueError,
        lambda a: keras.backend.backend() != "tensorflow",
        lambda a: (
            f"Exporters trace with TensorFlow, but Keras runs on {keras.backend.backend()} here. "
            "Save the model, then load and export it where KERAS_BACKEND=tensorflow is set."
        ),
    ),
    Rule(
        TypeError,
        lambda a: not isinstance(a.model, keras.Model),
        lambda a: f"model must be a Keras model, but {a.kind} was passed.",
    ),
    Rule(
        ValueError,
        lambda a: not a.model.built or not getattr(a.model, "inputs", None),
        lambda a: (
            f"{a.model.name} is not a functional model: its inputs are unknown. Build it with "
            "keras.Input, as `Transformer` is."
        ),
    ),
    Rule(
        ValueError,
        lambda a: a.target_tokenizer is not None and (a.tokenizer is None or a.search is None),
        lambda a: "target_tokenizer decodes search results: pass tokenizer and search too.",
    ),
    *(
        Rule(
            ValueError,
            lambda a, name=name: not _is_positive(getattr(a, name)),
            lambda a, name=name: (
                f"{name} must be a positive integer, but {getattr(a, name)!r} was passed."
            ),
        )
        for name in ("max_length", "max_source_length")
    ),
    Rule(
        TypeError,
        lambda a: not isinstance(a.search, (GreedySearch, BeamSearch, Sampling, type(None))),
        lambda a: (
            "search must be a GreedySearch, BeamSearch or Sampling, but "
            + (
                f"the class {a.search.__name__} was passed. Call it: {a.search.__name__}()."
                if isinstance(a.search, type)
                else f"{type(a.search).__name__} was passed."
            )
        ),
    ),
    Rule(
        TypeError,
        lambda a: a.search is not None and not hasattr(a.model, "decode_step"),
        lambda a: (
            f"{a.kind} has no decode_step, so a search cannot run it. Pass a Transformer or "
            "CausalTransformer, or leave `search` out to export the forward pass. For a decoder on "
            "an encoder of your own, use Transformer(encoder=...)."
        ),
    ),
    Rule(
        ValueError,
        lambda a: a.search and a.max_length is not None and a.search.min_length > a.max_length,
        lambda a: (
            f"The search has min_length={a.search.min_length}, but may write at most "
            f"{a.max_length} tokens (max_length). Pass a larger max_length, or a search with a "
            "smaller min_length."
        ),
    ),
    Rule(
        ValueError,
        lambda a: a.search is None and a.max_length is not None,
        lambda a: "max_length limits what a search generates: pass a search, or leave it out.",
    ),
    Rule(
        ValueError,
        lambda a: a.precision not in signature.PRECISIONS,
        lambda a: (
            f"precision must be one of {signature.PRECISIONS}, but {a.precision!r} was passed."
        ),
    ),
    Rule(
        ValueError,
        lambda a: a.searched is not a.model and a.search is None,  # `searched` checks the shortlist
        lambda a: (
            "A shortlist limits the tokens that a search may write: pass a Transformer that reads "
            "ids and a search, or leave it out."
        ),
    ),
    Rule(
        ValueError,
        lambda a: isinstance(a.options, str) or not set(a.options) <= _options(a).keys(),
        lambda a: (
            f"options must be names of the search's options, got {a.options!r}; "
            + (
                f"{type(a.search).__name__} has {list(_options(a))}."
                if a.search
                else "there is no search."
            )
        ),
    ),
    Rule(
        TypeError,
        lambda a: a.head is not None and type(a.head) not in HEADS.values(),
        lambda a: (
            f"head must be one of {', '.join(HEADS)}, but {type(a.head).__name__} was passed."
        ),
    ),
    Rule(
        ValueError,
        lambda a: a.head is not None and a.search is not None,
        lambda a: "A search writes texts and has no head: pass `search` or `head`, not both.",
    ),
)


def _is_positive(value: Any) -> bool:
    return value is None or (isinstance(value, int) and value > 0)


def _options(arguments: Arguments) -> dict[str, Any]:
    return arguments.search.call_defaults if arguments.search else {}


ALL_RULES = (*RULES, *stepwise.RULES, *text.RULES)


def prepare(arguments: Arguments) -> Task:
    """Checks the arguments of an export, and returns its task.

    Args:
        arguments: `Arguments`.

    Returns:
        `SearchTask`, or `ForwardTask` without a search, of the model in float32.

    Raises:
        TypeError, ValueError: an argument breaks a rule.
        ExportError: a weight holds NaN, or the model cannot be rebuilt in float32.
    """
    check(arguments, ALL_RULES)
    paths = [variable.path for variable in arguments.model.variables]
    quantize.check_keep_float(arguments.keep_float, arguments.precision, paths)
    passed, model, search = arguments.model, as_float32(arguments.model), arguments.search
    if search is None:
        task = ForwardTask(model, arguments.head, passed, arguments.tokenizer)
        if arguments.head is not None:
            check_head(task, arguments.tokenizer)
        return task
    searched, options = arguments.searching(model), arguments.options
    return SearchTask(
        model, search, arguments.max_length, searched, options, passed, arguments.tokenizer
    )
