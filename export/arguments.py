"""The arguments of exporters, and the checks that all exporters share.

An export takes seconds to minutes, so all rules are checked first. Each error names the value that
was passed, the expected values and a fix. Rules of exporters that trace with TensorFlow are rows of
`prepare.RULES`, or of the table beside the feature that they belong to, such as
`tasks.stepwise.RULES`. Tasks check samples, because they know the inputs of the model.
"""

import functools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.exporter import Rule, check_rules
from keras_transformer.export.model_inputs import vocab_sizes
from keras_transformer.export.staging import ExportError
from keras_transformer.layers.checks import check_time_distributed
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
        if self.shortlist is None:
            return model
        from keras_transformer.search import Shortlisted  # needs TensorFlow

        return Shortlisted(model, self.shortlist)


def check(arguments: Arguments, rules: Iterable[Rule]) -> None:
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
    if hasattr(search, "check_tokenizers"):  # not the name of an engine
        search.check_tokenizers(model)
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
