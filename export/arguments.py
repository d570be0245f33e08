"""Arguments of the exporters, checked before anything is done.

An export takes from seconds to minutes, so what can be told at once is told at once: each error
says what was passed, what was expected and how to mend it. Samples are checked by the task
(`tasks`), which knows the model's inputs.
"""

import keras
import numpy as np

from keras_transformer.decoding import CachedDecoding
from keras_transformer.export.artefact import signature
from keras_transformer.export.graph import quantize
from keras_transformer.export.staging import ExportError
from keras_transformer.export.tasks.search import reads_ids, vocab_sizes
from keras_transformer.models import Transformer
from keras_transformer.search import BeamSearch, GreedySearch, Sampling, Shortlist, Shortlisted
from keras_transformer.search.grammar import check_grammar

# The longest source that an artefact says it serves, where the model itself has no limit.
MAX_SOURCE_LENGTH = 512


def check_arguments(
    model,
    tokenizer,
    search,
    max_length,
    max_source_length=MAX_SOURCE_LENGTH,
    target_tokenizer=None,
):
    """Raises `TypeError` or `ValueError` for what no exporter takes.

    The arguments are those of `export_onnx` and `export_saved_model`. A tokenizer is whatever can
    encode and be saved, so that one of the user's own may be passed.
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
            f"{model.name} is no functional model: its inputs are not known. Build it with "
            "keras.Input, as `Transformer` is."
        )
    for name, given in (("tokenizer", tokenizer), ("target_tokenizer", target_tokenizer)):
        if given is not None and not (hasattr(given, "save") and hasattr(given, "encode")):
            raise TypeError(f"{name} must be a Tokenizer, but {type(given).__name__} was passed.")
    if target_tokenizer is not None and (tokenizer is None or search is None):
        raise ValueError(
            "target_tokenizer is for what a search writes: pass tokenizer and search too."
        )
    if search is None and max_length is not None:
        raise ValueError(
            "max_length limits what a search generates: pass a search, or leave it out."
        )
    if search is not None:
        _check_search(model, tokenizer, search, target_tokenizer)
    for name, value in (("max_length", max_length), ("max_source_length", max_source_length)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a positive integer, but {value!r} was passed.")
    if search is not None and max_length is not None and search.min_length > max_length:
        raise ValueError(
            f"The search has min_length={search.min_length}, but may write at most {max_length} "
            "tokens (max_length). Pass a larger max_length, or a search with a smaller min_length."
        )


def _check_search(model, tokenizer, search, target_tokenizer):
    """Raises unless the model can be searched with `search`, and reads the tokenizers' ids."""
    if not isinstance(search, (GreedySearch, BeamSearch, Sampling)):
        raise TypeError(
            "search must be a GreedySearch, BeamSearch or Sampling, but "
            f"{type(search).__name__} was passed."
        )
    if not hasattr(model, "decode_step"):
        raise TypeError(
            f"{type(model).__name__} has no decode_step, so nothing can be searched with it. Pass "
            "a Transformer or CausalTransformer, or leave `search` out to export the forward pass."
        )
    if tokenizer is None:
        return
    if getattr(model, "target_vocab_size", None) is not None and target_tokenizer is None:
        raise ValueError(
            "The model writes ids of a vocabulary of its own (target_vocab_size), and only one "
            "tokenizer was passed. Pass target_tokenizer too; the same one, if both sides share it."
        )
    sizes = vocab_sizes(model)
    pairs = {"source": (tokenizer, "reads"), "target": (target_tokenizer, "writes")}
    for side, (given, does) in pairs.items():  # ids that a tokenizer lacks become unknown
        if given is not None and sizes[side] is not None and given.vocab_size > sizes[side]:
            raise ValueError(
                f"The tokenizer of the {side} has {given.vocab_size} ids, but the model {does} "
                f"{sizes[side]}. Pass the one that it was trained with, or leave it out to export "
                "ids."
            )


def check_onnx_arguments(model, tokenizer, search, precision, keep_float, text, layout="loop"):
    """Raises `TypeError` or `ValueError` for what the exporter to ONNX does not take."""
    if precision not in signature.PRECISIONS:
        raise ValueError(
            f"precision must be one of {signature.PRECISIONS}, but {precision!r} was passed."
        )
    if text and (tokenizer is None or search is None):
        raise ValueError("text=True needs a tokenizer and a search: pass both, or leave it out.")
    if text and not reads_ids(model):
        raise ValueError(
            "text=True writes a file from text to text, but this model's encoder reads "
            f"{[tensor.name for tensor in model.encoder.inputs]}. Leave it out: the runtime "
            "decodes what the model writes."
        )
    _check_layout(model, search, text, layout)
    quantize.check_keep_float(
        keep_float, precision, [variable.path for variable in model.variables]
    )


def check_shortlist(model, search, shortlist, layout):
    """Raises `TypeError` or `ValueError` unless the search can be limited to a shortlist."""
    if shortlist is None:
        return
    if not isinstance(shortlist, Shortlist):
        raise TypeError(
            f"shortlist must be a Shortlist, but {type(shortlist).__name__} was passed."
        )
    if not isinstance(model, Transformer) or not reads_ids(model) or search is None:
        raise ValueError(
            "A shortlist says what a search may write about a source of token ids: pass a "
            f"Transformer that reads them and a search, or leave it out ({type(model).__name__})."
        )
    if layout == "steps":
        raise ValueError(
            "layout='steps' has steps of fixed shapes, and the candidates of a shortlist are now "
            "more, now fewer. Pass layout='loop', or leave the shortlist out."
        )
    Shortlisted(model, shortlist)  # of its sizes


def check_constrained(search, grammar, layout="loop"):
    """Raises `TypeError` or `ValueError` unless the search can be held to a grammar."""
    if grammar is None:
        return
    check_grammar(grammar)
    if search is None:
        raise ValueError(
            "A grammar says what a search may write: pass a search, or leave the grammar out."
        )
    if layout == "steps":
        raise ValueError(
            "layout='steps' has no place for the state of a grammar. Pass layout='loop', or leave "
            "the grammar out."
        )


def _check_layout(model, search, text, layout):
    """Raises unless what is exported can be laid out so."""
    if layout not in signature.LAYOUTS:
        raise ValueError(f"layout must be one of {signature.LAYOUTS}, but {layout!r} was passed.")
    if layout == "loop":
        return
    if search is None:
        raise ValueError(
            "layout='steps' takes the loop of a search out of the graph: pass a search, or leave "
            "it out."
        )
    if text:
        raise ValueError(
            "text=True writes one file from text to text, which needs the loop in the graph: "
            "pass layout='loop', or leave text out, for the runtime does the tokenizing."
        )
    if not isinstance(model, CachedDecoding):
        raise TypeError(
            f"layout='steps' gives caches one size, which it knows how to do for Transformer and "
            f"CausalTransformer, but {type(model).__name__} was passed. Leave it out."
        )


def check_weights(model):
    """Raises `ExportError` for a weight that holds NaN: such a model cannot be proven.

    Its results are NaN, and no comparison with NaN says anything.
    """
    for variable in model.variables:
        if np.isnan(np.asarray(variable, np.float32)).any():
            raise ExportError(
                f"The weight {variable.path} holds NaN, so the model has no results to hold an "
                "export to. Export an earlier checkpoint."
            )


def check_dtypes(tensors):
    """Raises `ValueError` for an input or output of the model that an artefact cannot name."""
    known = [dtype for dtype in signature.DTYPES if dtype != "string"]
    for tensor in tensors:
        if tensor.dtype not in known:
            raise ValueError(
                f"{tensor.name} is an input or output of dtype {tensor.dtype}, but an ONNX export "
                f"has {known}. Cast it to one of these inside the model."
            )
