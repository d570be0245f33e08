"""Arguments of the exporters, checked before anything is done.

An export takes from seconds to minutes, so what can be told at once is told at once: each error
says what was passed, what was expected and how to mend it. Samples are checked by the task
(`tasks`), which knows the model's inputs.
"""

import keras
import numpy as np

from keras_transformer.export.graph import quantize
from keras_transformer.export.runtime import signature
from keras_transformer.export.staging import ExportError
from keras_transformer.export.tasks.search import vocab_sizes
from keras_transformer.search import BeamSearch, GreedySearch, Sampling

# The longest source that an artefact says it serves, where the model itself has no limit.
MAX_SOURCE_LENGTH = 512


def check_arguments(model, tokenizer, search, max_length, max_source_length=MAX_SOURCE_LENGTH):
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
    if tokenizer is not None and not (hasattr(tokenizer, "save") and hasattr(tokenizer, "encode")):
        raise TypeError(
            f"tokenizer must be a Tokenizer, but {type(tokenizer).__name__} was passed."
        )
    if search is None and max_length is not None:
        raise ValueError(
            "max_length limits what a search generates: pass a search, or leave it out."
        )
    if search is not None:
        _check_search(model, tokenizer, search)
    for name, value in (("max_length", max_length), ("max_source_length", max_source_length)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a positive integer, but {value!r} was passed.")


def _check_search(model, tokenizer, search):
    """Raises unless the model can be searched with `search`, and reads the tokenizer's ids."""
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
    if tokenizer is not None:
        sizes, known = vocab_sizes(model), tokenizer.vocab_size
        if known > sizes["source"]:  # ids that it lacks itself it writes as unknown
            raise ValueError(
                f"The tokenizer has {known} ids, but the model reads {sizes['source']}. Pass the "
                "tokenizer that it was trained with, or leave it out to export ids."
            )


def check_onnx_arguments(model, tokenizer, search, precision, keep_float, text):
    """Raises `TypeError` or `ValueError` for what the exporter to ONNX does not take."""
    if precision not in signature.PRECISIONS:
        raise ValueError(
            f"precision must be one of {signature.PRECISIONS}, but {precision!r} was passed."
        )
    if text and (tokenizer is None or search is None):
        raise ValueError("text=True needs a tokenizer and a search: pass both, or leave it out.")
    quantize.check_keep_float(
        keep_float, precision, [variable.path for variable in model.variables]
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
