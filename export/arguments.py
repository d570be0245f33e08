"""The arguments of exporters, and the table of their rules.

An export takes seconds to minutes, so all rules are checked first. Each error names the value that
was passed, the expected values and a fix. A rule is one row of `RULES`, or of the table beside the
feature that it belongs to, such as `tasks.stepwise.RULES`. Tasks check samples, because they know
the inputs of the model.
"""

import functools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.task_heads import HEADS
from keras_transformer.export.exporter import Rule, check_rules
from keras_transformer.export.graph import quantize
from keras_transformer.export.staging import ExportError
from keras_transformer.export.tasks.search import vocab_sizes
from keras_transformer.layers.checks import check_time_distributed
from keras_transformer.search import BeamSearch, GreedySearch, Sampling, Shortlisted
from keras_transformer.text.vocabularies import check_tokenizer, check_tokenizers, of_both_sides


@dataclass
class Arguments:
    """The arguments of an exporter.

    Args:
        model: Keras model.
        tokenizer, search, target_tokenizer, head, max_length, max_source_length, options,
            precision, keep_float, layout, text, shortlist: as in `export_onnx`, which has all of
            them. An exporter leaves out the arguments that it does not have.
        in_graph: advice, if tokenizers become part of the graph. Defaults to "": they do not.
    """

    model: Any
    tokenizer: Any = None
    search: Any = None
    target_tokenizer: Any = None
    head: Any = None
    max_length: int | None = None
    max_source_length: int | None = None
    options: Sequence[str] = ()
    precision: str = "float32"
    keep_float: Sequence[str] = ()
    layout: str = "loop"
    text: bool = False
    shortlist: Any = None
    in_graph: str = ""

    @property
    def kind(self) -> str:
        """The name of the class of the model."""
        return type(self.model).__name__

    @property
    def tokenizers(self) -> tuple[Any, Any]:
        """The tokenizers that were passed, or `None`."""
        return self.tokenizer, self.target_tokenizer

    @functools.cached_property
    def searched(self) -> Any:
        """The model that the search runs: the model with its shortlist."""
        return self.searching(self.model)

    def searching(self, model: Any) -> Any:
        """Returns a copy of the model with the shortlist."""
        return model if self.shortlist is None else Shortlisted(model, self.shortlist)


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
            f"{type(a.search).__name__} was passed."
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
            f"options must be a list of a search's options, got {a.options!r}; "
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


def check(arguments: Arguments, rules: Iterable[Rule] = RULES) -> None:
    """Raises an error for arguments that break a rule; warns about arguments without effect.

    Any object with the methods `encode` and `save` can be a tokenizer.

    Raises:
        TypeError, ValueError: see the rules.
        ExportError: a weight holds NaN.
    """
    check_rules(rules, arguments)
    model, search = arguments.model, arguments.search
    check_time_distributed(model)
    for name in ("tokenizer", "target_tokenizer"):
        if getattr(arguments, name) is not None:
            check_tokenizer(getattr(arguments, name), name)
    if arguments.tokenizer is not None:
        both, sizes = dict.fromkeys(("source", "target"), arguments.tokenizer), None
        if search is not None:
            both, sizes = of_both_sides(model, *arguments.tokenizers), vocab_sizes(model)
        check_tokenizers(model, both, sizes)
        if search is None and hasattr(model, "decode_step"):
            warnings.warn(
                f"Without a search, {arguments.kind} is exported as one forward pass from ids to "
                "logits, and nothing generates text from it. Pass a search, such as BeamSearch(4), "
                "or leave the tokenizer out.",
                stacklevel=4,
            )
    paths = [variable.path for variable in model.variables]
    quantize.check_keep_float(arguments.keep_float, arguments.precision, paths)
    for variable in model.variables:
        if np.isnan(np.asarray(variable, np.float32)).any():
            raise ExportError(
                f"The weight {variable.path} holds NaN, so the results of the model are NaN and "
                "cannot be compared. Export an earlier checkpoint."
            )


def check_dtypes(model: keras.Model) -> None:
    """Raises `ValueError` for an input or output of a dtype that artefacts do not support."""
    known = [dtype for dtype in signature.DTYPES if dtype != "string"]
    for tensor in (*model.inputs, *model.outputs):
        if tensor.dtype in known:
            continue
        name, dtype = tensor.name, tensor.dtype
        near = "int64" if dtype in ("uint32", "uint64") else "int32"
        near = near if "int" in dtype else "float32"
        remedy = "Cast the output to one of these inside the model, with keras.ops.cast."
        if any(tensor is given for given in model.inputs):
            remedy = (
                f"Declare the input as {near}, keras.Input({tensor.shape[1:]}, dtype={near!r}, "
                f"name={name!r}), and feed numbers of that type; where a layer needs {dtype}, cast "
                "inside the model."
            )
        if dtype == "string":
            remedy = "Turn texts into ids before the model, and declare the input as int32."
        raise ValueError(
            f"{name} is an input or output of dtype {dtype}, but ONNX exports support {known}. "
            f"{remedy}"
        )
