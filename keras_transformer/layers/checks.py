"""Checks of arguments that several layers and models share."""

import numbers
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.types import Shape, Tensor


def check_positive(**sizes: int) -> None:
    """Refuses a size that is not an integer of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, numbers.Integral):
            raise TypeError(f"{name} must be one integer, but {size!r} was passed.")
        if size < 1:
            raise ValueError(f"{name} must be at least 1, but {size} was passed.")


def check_ranks(**shapes: Shape) -> None:
    """Refuses inputs that are not (batch, length, features)."""
    for name, shape in shapes.items():
        if len(shape) != 3:
            raise ValueError(
                f"{name} must have shape (batch, length, features), but {tuple(shape)} "
                "was passed. Add or merge axes first."
            )


def check_same_length(key: Tensor, value: Tensor) -> None:
    """Refuses keys and values (B, S, ...) whose static lengths differ."""
    lengths = key.shape[1], value.shape[1]
    if None not in lengths and lengths[0] != lengths[1]:
        raise ValueError(
            f"key and value must have the same length, but {lengths[0]} and {lengths[1]} positions "
            "were passed. Each value belongs to the key at its position."
        )


def check_ids(ids: Tensor, otherwise: str) -> Tensor:
    """Returns integer ids, or raises for others; `otherwise` names the alternative to a cast."""
    if hasattr(ids, "to_tensor"):
        raise TypeError(
            f"Token ids must be dense, but a {type(ids).__name__} was passed. Call .to_tensor(), "
            "which pads rows with 0."
        )
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if dtype in ("int32", "int64"):
        return ids
    # TensorFlow looks up no rows by smaller or unsigned integers.
    if "int" in dtype or _is_placeholder(ids):
        return ops.cast(ids, "int32")
    message = f"Token ids must be integers, but their dtype is {dtype}. Cast them, or {otherwise}."
    if "float" in dtype and keras.backend.backend() == "tensorflow":
        message += " In a keras.Sequential, write keras.Input((None,), dtype='int32') first."
    raise TypeError(message)


def check_no_text(inputs: Any, name: str = "The model") -> None:
    """Refuses strings among the inputs of a model of ids: `str`, or arrays and tensors of them."""
    for given in keras.tree.flatten(inputs):
        dtype = getattr(given, "dtype", None)
        is_text = getattr(dtype, "kind", "") in ("U", "S") or getattr(dtype, "name", "") == "string"
        if isinstance(given, str | bytes) or is_text:
            raise TypeError(
                f"{name} reads token ids, but text was passed. Encode it with the tokenizer, or "
                "use kt.translate or kt.generate, which take text."
            )


def check_id_range(
    ids: Any, size: int, name: str, remedy: str = "Make them with the tokenizer of the model."
) -> None:
    """Raises `ValueError` unless all of `ids`, an array or eager tensor, are from 0 to `size` - 1.

    Tensors of graphs have no values yet and pass. TensorFlow would look up other rows for ids
    below 0, and on a GPU zeros for ids beyond the table.
    """
    is_eager = keras.backend.backend() == "tensorflow" and hasattr(ids, "numpy")
    found = ids.numpy() if is_eager else ids
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or not found.size:
        return
    least, most = found.min(), found.max()
    if least < 0 or most >= size:
        raise ValueError(
            f"{name} has ids from {least} to {most}, but the model's ids are 0 to {size - 1}. "
            f"{remedy}"
        )


def _is_placeholder(ids: Tensor) -> bool:
    """Returns whether Keras traces `call` with float placeholders to build a loaded model.

    It does so for subclassed models, and skips the weights of layers whose `call` raises. Under a
    strategy, `fit` averages the ids of the replicas to learn their shape, too. On TensorFlow the
    graph's name tells; other backends have no such sign.
    """
    graph = getattr(ids, "graph", None)
    return str(getattr(graph, "name", "")).startswith("scratch_graph")


def check_model(model: Any) -> None:
    """Raises `TypeError` unless `model` is a Keras layer or model."""
    if not isinstance(model, keras.Layer):
        raise TypeError(
            f"model must be a Keras model, such as kt.Transformer, got {type(model).__name__}. "
            "Load a file with keras.saving.load_model first."
        )


def check_id_inputs(model: keras.Model, inputs: Tensor) -> None:
    """Refuses ids that are not integers in a model's inputs. Keras would cast floats to int32."""
    if not isinstance(inputs, dict):
        names = [tensor.name for tensor in model.inputs]
        inputs = dict(zip(names, keras.tree.flatten(inputs), strict=False))
    for name in {"source_ids", "target_ids", "segment_ids"}.intersection(inputs):
        check_ids(inputs[name], "feed vectors to the blocks themselves")


def check_time_distributed(model: keras.Model) -> None:
    """Refuses a `TimeDistributed` over an axis of any size, which Keras computes wrongly.

    In a TensorFlow graph, as in `fit`, a search and an export, Keras takes the batch size as the
    number of steps. PyTorch and JAX know all sizes.
    """
    if keras.backend.backend() != "tensorflow":
        return
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.TimeDistributed) and layer.built:
            shapes = [x.shape for node in layer._inbound_nodes for x in node.input_tensors]
            shapes = shapes or [layer.get_build_config()["input_shape"]]
            if any(shape[1] is None for shape in shapes):
                raise ValueError(
                    f"The layer {layer.name!r} is a TimeDistributed over an axis of any size, "
                    f"{tuple(shapes[0])}. In TensorFlow's graphs Keras takes the batch size as "
                    "the length of this axis, and gives wrong results. Give the axis a fixed size, "
                    "or use layers that keep it, such as Dense, Reshape((-1, size)) for a Flatten, "
                    "or a convolution."
                )


def check_encoder(encoder: keras.Model, target_vocab_size: int | None) -> None:
    """Refuses a caller's encoder that is not a functional model with output (B, S, D)."""
    if not getattr(encoder, "inputs", None):
        raise TypeError(
            "encoder must be a functional Keras model, whose inputs are known, but "
            f"{type(encoder).__name__} was passed. Make one with keras.Model(inputs, outputs)."
        )
    check_time_distributed(encoder)
    shape = getattr(encoder.output, "shape", ())
    if len(shape) != 3 or shape[-1] is None:
        raise ValueError(
            "encoder must have one output of shape (batch, length, features), but its output is "
            f"{encoder.output}. Reshape or pick it inside the model."
        )
    for name in {"start_ids", "target_ids"}.intersection(x.name for x in encoder.inputs):
        raise ValueError(
            f"An input of the encoder is called {name!r}, which is the name of an input of the "
            "decoder. Rename it."
        )
    if target_vocab_size is not None:
        raise ValueError(
            f"target_vocab_size={target_vocab_size} was passed together with encoder=. With an "
            "encoder, vocab_size is the target's: leave target_vocab_size out."
        )
