"""Inputs to prove an export on: the caller's, checked, or made-up numbers, ids and texts."""

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.export.artefact import signature
from keras_transformer.export.staging import ExportError

# Texts that strings are proven on: short, empty, and with characters that pieces may lack.
PROOF = ("a", "two words", "", "Ein dritter Satz mit mehr Wörtern, 3 Zahlen & 😀.")
# Batch sizes and lengths that differ from case to case, so that a size that was traced as a
# constant shows.
SIZES = ((1, 3), (5, 7), (2, 13))
# Integers that no table reads, for each of these: positive ones, small ones of both signs, and ones
# beyond 2^24, which float32 cannot hold. Larger ones could ask for memory, as `ops.bincount` does.
SMALL, LARGE = -1, -2
WIDE = (3, SMALL, LARGE)
# Attributes of layers that say how many ids they read.
TABLES = ("vocab_size", "input_dim")


def random_ids(vocab_size, max_length):
    """Batches of source ids (B, S), some rows padded on the right."""
    random, batches = np.random.default_rng(7), []
    for batch, length in ((1, 3), (3, 7), (2, 11)):
        length = min(length, max_length or length)
        ids = random.integers(min(4, vocab_size - 1), vocab_size, (batch, length))
        for row in range(1, batch):
            ids[row, max(1, length - 2 * row) :] = signature.SPECIAL_IDS["pad"]
        batches.append(ids)
    return batches


def made_up_inputs(
    specs: dict[str, tf.TensorSpec],
    model: keras.Model,
    run: Callable[[dict], Any],
    longest: int | None = None,
) -> list[dict]:
    """Cases that a model can read, dicts of arrays of random numbers, for the proof.

    Free axes have the sizes of `SIZES`, and some rows padding. Integers that no table reads are
    negative, zero and large. Where Keras fails or gives NaN, tamer integers and longer axes are
    tried.

    Args:
        specs: dict from names to `tf.TensorSpec`.
        model: the functional model that reads them, whose tables of embeddings limit ids.
        run: function that gives Keras' outputs for a case.
        longest: greatest length of a free axis, or `None`.

    Raises:
        ExportError: Keras cannot run the model on any of them.
    """
    random, cases = np.random.default_rng(11), []
    tables = _table_sizes(model)
    tamer = [*itertools.product((1, 3, 11), (most_ids(model) or 3, 3, 2))]
    for place, (batch, length) in enumerate(SIZES):
        for factor, highest in ((1, WIDE[place]), *tamer):
            size = min(length * factor, longest or length * factor)
            case = {
                name: _random(random, spec, tables[name] or highest, batch, size)
                for name, spec in specs.items()
            }
            try:
                outputs = keras.tree.flatten(run(case))
            except Exception as error:  # the user's own layers run here
                failure = f"{type(error).__name__}: {error}"
                continue
            if not any(np.isnan(np.asarray(output, "float64")).any() for output in outputs):
                break
            failure = "the outputs hold NaN"
        else:
            shapes = {name: array.shape for name, array in case.items()}
            raise ExportError(
                f"Keras cannot run the model on made-up inputs of shapes up to {shapes}: "
                f"{failure:.300}. Pass samples=[...], dicts of arrays that the model reads."
            )
        cases.append(case)
    return cases


def _random(random, spec, highest, batch, length):
    free = iter((batch, *[length] * len(spec.shape)))
    shape = [next(free) if size is None else size for size in spec.shape]
    if spec.dtype.is_integer and highest < 0:
        array = random.permutation(np.resize([-7, 5, 0, -1, 1, 3, -4, 2], shape).ravel())
        array = array.reshape(shape) * (1 if highest == SMALL else 2**22 - 1)
    elif spec.dtype.is_integer:
        array = random.integers(1, highest, shape)
    elif spec.dtype.is_bool:
        array = random.permutation(np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape)
    else:
        array = random.standard_normal(shape)
    if len(shape) > 1 and spec.shape[1] is None and batch > 1:
        array[-1, (length + 1) // 2 :] = 0  # padding in the last row
    return array.astype(spec.dtype.as_numpy_dtype)


def checked_inputs(case, specs):
    """A sample as it is fed; raises `ValueError` unless it has an array for each of `specs`."""
    if not isinstance(case, dict) or set(case) != set(specs):
        given = sorted(case) if isinstance(case, dict) else type(case).__name__
        raise ValueError(
            f"A sample must be a dict with an array for each of {sorted(specs)}, but "
            f"{given} was passed."
        )
    arrays = {name: np.asarray(case[name]) for name in specs}
    for name, array in arrays.items():
        shape, dtype = specs[name].shape, specs[name].dtype.as_numpy_dtype
        fits = shape.is_compatible_with(array.shape) and array.size > 0
        if not (fits and np.can_cast(array.dtype, dtype, "same_kind")):
            raise ValueError(
                f"The sample's {name!r} has shape {array.shape} and dtype {array.dtype}, but "
                f"the model takes {tuple(shape)} and {specs[name].dtype.name}."
            )
    return {name: array.astype(specs[name].dtype.as_numpy_dtype) for name, array in arrays.items()}


def smallest(model, *names):
    """The smallest integer that a layer has as one of these attributes, or `None`."""
    found = []
    for layer in [model, *model.layers]:
        found += [getattr(layer, name, None) for name in names]
        if isinstance(layer, keras.Model) and layer is not model:
            found.append(smallest(layer, *names))
    return min((size for size in found if isinstance(size, int) and size > 0), default=None)


def most_ids(model: keras.Model) -> int | None:
    """How many ids the inputs of a functional model may have, or `None` where no table is read.

    Tables that are read with something else, such as the numbers of positions, do not count.
    """
    sizes = [size for size in _table_sizes(model).values() if size]
    return min(sizes) if sizes else smallest(model, *TABLES)


def _table_sizes(model):
    """The size of the table that each input of a model is an id of, or `None`, by plain name."""
    sizes = {plain_name(tensor.name): _table_size(model, tensor) for tensor in model.inputs}
    if signature.SEGMENT_IDS in sizes:
        sizes[signature.SEGMENT_IDS] = 3  # of two texts
    return sizes


def _table_size(model, tensor):
    layers = [layer for layer in model.layers if _reads(layer, tensor)]
    found = [most_ids(layer) for layer in layers if isinstance(layer, keras.Model)]
    found += [getattr(layer, name, None) for layer in layers for name in TABLES]
    return min((size for size in found if isinstance(size, int) and size > 0), default=None)


def _reads(layer, tensor):
    nodes = layer._inbound_nodes
    return any(one is tensor for node in nodes for one in node.input_tensors)


def plain_name(name: str) -> str:
    """A Keras name as an ONNX runtime and a SavedModel's signature take it."""
    return name.replace("/", "_").replace(":", "_")


def check_listed(samples):
    """The samples; raises `ValueError` unless they are a list of at least one."""
    if isinstance(samples, (str, dict)) or not len(samples):
        raise ValueError(
            "samples must be a list of at least one sample, or None for random ones, but "
            f"{samples!r} was passed."
        )
    return samples


def proof_texts(tokenizer, longest):
    """Texts to prove strings on: those of no more than `longest` tokens, begin or end included."""
    return [text for text in PROOF if len(tokenizer.encode(text)) < (longest or np.inf)]
