"""Inputs to prove an export on: the caller's, checked, or made-up numbers, ids and texts."""

import keras
import numpy as np

from keras_transformer.export.runtime import signature

# Texts that strings are proven on: short, empty, and with characters that pieces may lack.
PROOF = ("a", "two words", "", "Ein dritter Satz mit mehr Wörtern, 3 Zahlen & 😀.")
# Batch sizes and lengths that differ from case to case, so that a size that was traced as a
# constant shows.
SIZES = ((1, 3), (5, 7), (2, 13))


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


def random_inputs(specs, highest, longest=None):
    """Cases for any inputs, dicts of arrays; free axes have these sizes, and some rows padding.

    Args:
        specs: dict from names to `tf.TensorSpec`.
        highest: int, integers lie below.
        longest: int, greatest length of a free axis, or `None`.
    """
    random = np.random.default_rng(11)
    return [_random(random, specs, highest, batch, min(n, longest or n)) for batch, n in SIZES]


def _random(random, specs, highest, batch, length):
    case = {}
    for name, spec in specs.items():
        free = iter((batch, *[length] * len(spec.shape)))
        shape = [next(free) if size is None else size for size in spec.shape]
        dtype = spec.dtype.as_numpy_dtype
        if spec.dtype.is_integer:
            below = 3 if name == signature.SEGMENT_IDS else highest
            case[name] = random.integers(1, below, shape).astype(dtype)
        else:
            case[name] = random.standard_normal(shape).astype(dtype)
        if len(shape) > 1 and spec.shape[1] is None and batch > 1:
            case[name][-1, (length + 1) // 2 :] = 0  # padding in the last row
    return case


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


def most_ids(model):
    """How many ids the inputs of a functional model may have, or `None` where no table is read.

    Tables that are read with something else, such as the numbers of positions, do not count.
    """
    layers = [layer for layer in model.layers if _reads_an_input(layer, model)]
    found = [most_ids(layer) for layer in layers if isinstance(layer, keras.Model)]
    found += [
        getattr(layer, name, None) for layer in layers for name in ("vocab_size", "input_dim")
    ]
    sizes = [size for size in found if isinstance(size, int) and size > 0]
    return min(sizes) if sizes else smallest(model, "vocab_size", "input_dim")


def _reads_an_input(layer, model):
    """Whether one of the layer's inputs is one of the model's."""
    nodes = layer._inbound_nodes
    return any(one is two for node in nodes for one in node.input_tensors for two in model.inputs)


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
