"""Checks the exporters' arguments before any work is done.

An export takes seconds to minutes, so these checks come first. Each error names the value that was
passed, the expected values and a fix. Tasks check samples, because they know the model's inputs.

Shapes: B rows, S tokens, C classes.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.decoding import CachedDecoding
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.task_heads import (
    HEADS,
    FeatureExtraction,
    Head,
    Heads,
    QuestionAnswering,
    TokenClassification,
    tags_words,
)
from keras_transformer.export.graph import quantize
from keras_transformer.export.staging import ExportError
from keras_transformer.export.tasks.forward import ForwardTask
from keras_transformer.export.tasks.search import ExportableSearch, reads_ids, vocab_sizes
from keras_transformer.layers.checks import check_time_distributed
from keras_transformer.models import Transformer
from keras_transformer.search import BeamSearch, GreedySearch, Sampling, Shortlist, Shortlisted
from keras_transformer.search.speech import SpeechSearch
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabularies import check_tokenizer, check_tokenizers, of_both_sides
from keras_transformer.types import AnyTokenizer


def check_arguments(
    model: keras.Model,
    tokenizer: Tokenizer | None,
    search: ExportableSearch | None,
    max_length: int | None,
    max_source_length: int | None = None,
    target_tokenizer: Tokenizer | None = None,
) -> None:
    """Raises `TypeError` or `ValueError` for arguments that no exporter accepts.

    See `export_onnx` for the arguments. Any object with the methods `encode` and `save` can be a
    tokenizer.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Exporters trace with TensorFlow, but Keras runs on {keras.backend.backend()} here. "
            "Save the model, then load and export it where KERAS_BACKEND=tensorflow is set."
        )
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a Keras model, but {type(model).__name__} was passed.")
    if not model.built or not getattr(model, "inputs", None):
        raise ValueError(
            f"{model.name} is not a functional model: its inputs are unknown. Build it with "
            "keras.Input, as `Transformer` is."
        )
    check_time_distributed(model)
    for name, given in (("tokenizer", tokenizer), ("target_tokenizer", target_tokenizer)):
        if given is not None:
            check_tokenizer(given, name)
    if target_tokenizer is not None and (tokenizer is None or search is None):
        raise ValueError("target_tokenizer decodes search results: pass tokenizer and search too.")
    for name, value in (("max_length", max_length), ("max_source_length", max_source_length)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a positive integer, but {value!r} was passed.")
    if search is not None:
        _check_search(model, search, max_length)
    elif max_length is not None:
        raise ValueError(
            "max_length limits what a search generates: pass a search, or leave it out."
        )
    elif tokenizer is not None and hasattr(model, "decode_step"):
        warnings.warn(
            f"Without a search, {type(model).__name__} is exported as one forward pass from ids to "
            "logits, and nothing generates text from it. Pass a search, such as BeamSearch(4), or "
            "leave the tokenizer out.",
            stacklevel=3,
        )
    if tokenizer is not None:
        given = {"source": tokenizer, "target": target_tokenizer or tokenizer}
        sizes = None
        if search is not None:
            given = of_both_sides(model, tokenizer, target_tokenizer)
            sizes = vocab_sizes(model)
        check_tokenizers(model, given, sizes)


def _check_search(model: keras.Model, search: ExportableSearch, max_length: int | None) -> None:
    """Raises unless `search` can run the model."""
    if not isinstance(search, (GreedySearch, BeamSearch, Sampling)):
        raise TypeError(
            "search must be a GreedySearch, BeamSearch or Sampling, but "
            f"{type(search).__name__} was passed."
        )
    if not hasattr(model, "decode_step"):
        raise TypeError(
            f"{type(model).__name__} has no decode_step, so a search cannot run it. Pass a "
            "Transformer or CausalTransformer, or leave `search` out to export the forward pass. "
            "For a decoder on an encoder of your own, use Transformer(encoder=...)."
        )
    if max_length is not None and search.min_length > max_length:
        raise ValueError(
            f"The search has min_length={search.min_length}, but may write at most {max_length} "
            "tokens (max_length). Pass a larger max_length, or a search with a smaller min_length."
        )


def check_onnx_arguments(
    model: keras.Model,
    tokenizer: Tokenizer | None,
    search: ExportableSearch | None,
    precision: str,
    keep_float: Sequence[str],
    layout: str,
    text: bool,
    shortlist: Shortlist | None,
) -> None:
    """Raises `TypeError` or `ValueError` for arguments that only `export_onnx` has."""
    if precision not in signature.PRECISIONS:
        raise ValueError(
            f"precision must be one of {signature.PRECISIONS}, but {precision!r} was passed."
        )
    quantize.check_keep_float(
        keep_float, precision, [variable.path for variable in model.variables]
    )
    _check_layout(model, search, text, layout)
    if text and (tokenizer is None or search is None):
        raise ValueError("text=True needs a tokenizer and a search: pass both, or leave it out.")
    if text and not reads_ids(model):
        raise ValueError(
            "text=True writes a file from text to text, but this model's encoder reads "
            f"{[tensor.name for tensor in model.encoder.inputs]}. Leave it out: the runtime "
            "decodes the model's output."
        )
    if shortlist is not None:
        _check_shortlist(model, search, shortlist, layout)


def check_graph_tokenizers(
    tokenizer: AnyTokenizer | None, target_tokenizer: AnyTokenizer | None, otherwise: str
) -> None:
    """Raises `TypeError`, which says what to do otherwise, if a graph cannot hold a tokenizer."""
    if any(isinstance(given, JsonTokenizer) for given in (tokenizer, target_tokenizer)):
        raise TypeError(
            "Strings inside the graph need a Tokenizer, a SentencePiece model, but a JsonTokenizer "
            f"was passed. {otherwise}."
        )


def _check_layout(
    model: keras.Model, search: ExportableSearch | None, text: bool, layout: str
) -> None:
    if layout not in signature.LAYOUTS:
        raise ValueError(f"layout must be one of {signature.LAYOUTS}, but {layout!r} was passed.")
    if layout == "loop":
        return
    if search is None:
        raise ValueError(
            "layout='steps' takes the loop of a search out of the graph: pass a search, or leave "
            "it out."
        )
    if isinstance(search, SpeechSearch):
        raise ValueError(
            "layout='steps' feeds start tokens one by one, but SpeechSearch reads them at once. "
            "Leave layout out."
        )
    if text:
        raise ValueError(
            "text=True writes one file from text to text, which needs the loop in the graph: "
            "pass layout='loop', or leave text out, because the runtime does the tokenizing."
        )
    if not isinstance(model, CachedDecoding):
        raise TypeError(
            "layout='steps' needs caches of a fixed size, which only Transformer and "
            f"CausalTransformer have, but {type(model).__name__} was passed. Leave it out."
        )


def _check_shortlist(
    model: keras.Model, search: ExportableSearch | None, shortlist: Shortlist, layout: str
) -> None:
    if not isinstance(shortlist, Shortlist):
        raise TypeError(
            f"shortlist must be a Shortlist, but {type(shortlist).__name__} was passed."
        )
    if not isinstance(model, Transformer) or not reads_ids(model) or search is None:
        raise ValueError(
            "A shortlist limits the tokens that a search may write for a source of token ids: pass "
            f"a Transformer that reads ids and a search, or leave it out ({type(model).__name__})."
        )
    if layout == "steps":
        raise ValueError(
            "layout='steps' has steps of fixed shapes, but the number of candidates of a shortlist "
            "varies. Pass layout='loop', or leave the shortlist out."
        )
    Shortlisted(model, shortlist)  # checks the sizes


def check_options(options: Sequence[str], search: ExportableSearch | None) -> None:
    """Raises `ValueError` for an option that the search does not have."""
    known = [] if search is None else list(search.call_defaults)
    if isinstance(options, str) or not set(options) <= set(known):
        has = f"{type(search).__name__} has {known}" if search else "there is no search"
        raise ValueError(f"options must be a list of a search's options, got {options!r}; {has}.")


def check_weights(model: keras.Model) -> None:
    """Raises `ExportError` if a weight holds NaN, because the results cannot be compared."""
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
        if any(tensor is given for given in model.inputs):
            near = "int64" if dtype in ("uint32", "uint64") else "int32"
            near = near if "int" in dtype else "float32"
            remedy = (
                f"Declare the input as {near}, keras.Input({tensor.shape[1:]}, dtype={near!r}, "
                f"name={name!r}), and feed numbers of that type; where a layer needs {dtype}, cast "
                "inside the model."
            )
            if dtype == "string":
                remedy = "Turn texts into ids before the model, and declare the input as int32."
        else:
            remedy = "Cast the output to one of these inside the model, with keras.ops.cast."
        raise ValueError(
            f"{name} is an input or output of dtype {dtype}, but ONNX exports support {known}. "
            f"{remedy}"
        )


def check_head_alone(head: Any, search: ExportableSearch | None) -> None:
    """Raises `TypeError` or `ValueError` for an unknown head, and for a head beside a search."""
    if head is not None and type(head) not in HEADS.values():
        raise TypeError(
            f"head must be one of {', '.join(HEADS)}, but {type(head).__name__} was passed."
        )
    if head is not None and search is not None:
        raise ValueError(
            "A search writes texts and has no head: pass `search` or `head`, not both."
        )


def check_head(task: ForwardTask, tokenizer: Tokenizer | None) -> None:
    """Raises `ValueError` if the head of a task does not fit the model or the tokenizer."""
    head, shapes = task.head, task.output_shapes()
    if head is None:
        return
    if isinstance(head, QuestionAnswering):
        ranks = [len(shape) for shape in shapes.values()]
        if {*shapes} != {signature.ANSWER_START, signature.ANSWER_END} or ranks != [2, 2]:
            raise ValueError(
                "QuestionAnswering needs two outputs (B, S) named 'start' and 'end', but the model "
                f"has {shapes}. Return a dict with these keys."
            )
    elif isinstance(head, Heads) and {*shapes} != {*head.heads}:
        raise ValueError(
            f"Heads describes outputs named {sorted(head.heads)}, but the model has {shapes}. "
            "Return a dict with these keys."
        )
    elif not isinstance(head, Heads) and len(shapes) != 1:
        raise ValueError(
            f"{type(head).__name__} describes one output, but the model has {shapes}. Pass "
            "Heads(...) with a head for each."
        )
    else:
        for name, part in head.parts(shapes).items():
            _check_output(part, name, shapes[name])
    _check_inputs(task, tokenizer, tokenwise=any(len(shape) == 3 for shape in shapes.values()))


def _check_output(head: Head, name: str, shape: tuple[int | None, ...]) -> None:
    """Raises `ValueError` if a head does not fit the output of this name and shape."""
    kind = type(head).__name__
    wanted = {3: "(B, S, C)"} if isinstance(head, TokenClassification) else {2: "(B, C)"}
    if isinstance(head, FeatureExtraction):
        wanted = {2: "(B, C)", 3: "(B, S, C)"}
    if len(shape) not in wanted:
        raise ValueError(
            f"{kind} needs an output {' or '.join(wanted.values())}, but {name!r} has the "
            f"shape {shape}."
        )
    labels = getattr(head, "labels", None)
    one_number = shape[-1] == 1 and len(shape) == 2  # the second of two classes
    if labels and shape[-1] != len(labels) and not (one_number and len(labels) == 2):
        raise ValueError(
            f"{kind} has {len(labels)} labels, but the model's output, of shape {shape}, has "
            f"{shape[-1]} classes. Pass one label for each, in the model's order."
        )


def _check_inputs(task: ForwardTask, tokenizer: Tokenizer | None, tokenwise: bool) -> None:
    """Raises `ValueError` if the runtime cannot build the inputs that a task's head needs."""
    ids, inputs, head = task.ids, list(task.specs), task.head
    two = len(ids) == 2 or (len(ids) == 1 and signature.SEGMENT_IDS in inputs)
    if isinstance(head, QuestionAnswering) and (tokenizer is None or not two):
        raise ValueError(
            "QuestionAnswering needs a tokenizer, and a model that reads two texts: two inputs of "
            f"ids, or one beside 'segment_ids'. The inputs are {inputs}."
        )
    several = len(ids) > 1 or (len(inputs) > 1 and tags_words(head))
    if tokenizer is not None and ids and tokenwise and several:
        raise ValueError(
            f"{type(head).__name__} with an output for each token needs a model with one input of "
            f"ids, but the inputs are {inputs}."
        )
