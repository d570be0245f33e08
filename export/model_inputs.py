"""What a functional model reads: the names of its inputs, their lengths, and its tables of ids.

Imports no TensorFlow.
"""

from collections.abc import Iterable
from typing import Any

import keras

from keras_transformer.decoding import reads_ids
from keras_transformer.export.artefact import signature
from keras_transformer.layers.signals import LogMel
from keras_transformer.text.vocabularies import vocabulary_sizes

# Attributes of layers that hold the number of their ids.
TABLES = ("vocab_size", "input_dim")
# Attributes of layers that hold the number of their positions.
LENGTHS = ("max_length", "sequence_length")


def vocab_sizes(model: keras.Model) -> dict[str, int | None]:
    """Returns `{"source", "target"}` of a searchable model.

    `None` for a source without ids, and for one whose table is inside a layer of the caller.
    """
    sizes = vocabulary_sizes(model)
    if sizes["source"] is None and reads_ids(model):
        (sizes["source"],) = table_sizes(model.encoder).values()
    return sizes


def _smallest_table(model: keras.Model) -> int | None:
    """Returns the smallest number of ids among a model, its layers and their layers, or `None`."""
    found = [getattr(layer, name, None) for layer in [model, *model.layers] for name in TABLES]
    found += [_smallest_table(layer) for layer in model.layers if isinstance(layer, keras.Model)]
    return _least(found)


def longest_input(model: keras.Model) -> int | None:
    """Returns the longest sequence that a model can read, or `None` for no limit.

    Layers with learned positions limit it. Each strided convolution in front of them, and the
    frames of a `LogMel`, multiply their limit.
    """
    found, stride = [getattr(model, name, None) for name in LENGTHS], 1
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv1D | LogMel):
            stride *= layer.strides[0]
        inner = [getattr(layer, name, None) for name in LENGTHS]
        if isinstance(layer, keras.Model):
            inner = [longest_input(layer)]
        found += [size * stride for size in inner if isinstance(size, int)]
    return _least(found)


def _least(sizes: Iterable[Any]) -> int | None:
    return min((size for size in sizes if isinstance(size, int) and size > 0), default=None)


def most_ids(model: keras.Model) -> int | None:
    """Returns the number of ids of a functional model's inputs; `None` if it reads no table.

    Tables that read something else, such as the numbers of positions, do not count.
    """
    # A subclassed model has no inputs.
    sizes = table_sizes(model).values() if getattr(model, "inputs", None) else ()
    return _least(sizes) or _smallest_table(model)


def table_sizes(model: keras.Model) -> dict[str, int | None]:
    """Returns the size of the embedding table that reads an input, or `None`, by name."""
    sizes = {plain_name(tensor.name): _table_size(model, tensor) for tensor in model.inputs}
    if signature.SEGMENT_IDS in sizes:
        sizes[signature.SEGMENT_IDS] = 3  # padding and two texts
    return sizes


def _table_size(model: keras.Model, tensor: keras.KerasTensor) -> int | None:
    found = []
    for layer in _readers(model, tensor):
        found += [getattr(layer, name, None) for name in TABLES]
        inner = getattr(layer, "inputs", None) or ()  # of a functional model
        for node in layer._inbound_nodes if inner else ():
            pairs = zip(node.input_tensors, inner, strict=False)
            found += [_table_size(layer, place) for given, place in pairs if given is tensor]
    return _least(found)


def _readers(model: keras.Model, tensor: keras.KerasTensor) -> list[keras.Layer]:
    return [
        layer
        for layer in model.layers
        if any(one is tensor for node in layer._inbound_nodes for one in node.input_tensors)
    ]


def has_hidden_table(model: keras.Model) -> bool:
    """Returns whether a table reads ids that a layer computes from the inputs."""
    direct = [layer for tensor in model.inputs for layer in _readers(model, tensor)]
    known = {id(part) for layer in direct for part in layer._flatten_layers()}
    return any(
        isinstance(getattr(layer, name, None), int) and id(layer) not in known
        for layer in model._flatten_layers()
        for name in TABLES
    )


def plain_name(name: str) -> str:
    """Returns a Keras name with "_" for "/" and ":", which TensorFlow puts between parts."""
    return name.replace("/", "_").replace(":", "_")
