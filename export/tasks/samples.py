"""Inputs of the proof: samples of the user, or made-up numbers, ids and texts."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.export.artefact import signature
from keras_transformer.export.model_inputs import has_hidden_table, most_ids, table_sizes
from keras_transformer.export.staging import ExportError, quoted
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array, Ids

Specs: TypeAlias = Mapping[str, tf.TensorSpec]

# Short texts, an empty one, and one with characters that a tokenizer may lack.
PROOF = ("a", "two words", "", "Ein dritter Satz mit mehr Wörtern, 3 Zahlen & 😀.")
# Batch sizes and lengths. They differ between cases, which reveals a size traced as a constant.
SIZES = ((1, 3), (5, 7), (2, 13))
# Kinds of integers, one for each of SIZES, for inputs that are not ids: positive, small of both
# signs, and beyond 2^24, which float32 cannot hold. Larger ones could need much memory, as in
# `ops.bincount`.
SMALL, LARGE = -1, -2
KINDS = (3, SMALL, LARGE)
# Longer axes, for models that cannot read short ones: `LogMel` has frames of 160 samples, Moonshine
# reads 895.
FACTORS = (1, 3, 11, 160, 320)
# The longest source that an artefact serves, for a model without a limit.
MAX_SOURCE_LENGTH = 512


def random_ids(vocab_size: int, max_length: int | None) -> list[Ids]:
    """Returns batches of source ids (B, S), with padding on the right in some rows."""
    random, batches = np.random.default_rng(7), []
    for batch, length in ((1, 3), (3, 7), (2, 11)):
        length = min(length, max_length or length)
        ids = random.integers(min(4, vocab_size - 1), vocab_size, (batch, length))
        for row in range(1, batch):
            ids[row, max(1, length - 2 * row) :] = signature.SPECIAL_IDS["pad"]
        batches.append(ids)
    return batches


def random_start(batch: int, vocab_size: int) -> Ids:
    """Returns rows (B, 3) of the begin token and up to two random tokens, padded on the right."""
    random = np.random.default_rng(13)
    ids = random.integers(min(4, vocab_size - 1), vocab_size, (batch, 3)).astype(np.int32)
    ids[:, 0] = signature.SPECIAL_IDS["begin"]
    ids[::2, 2] = signature.SPECIAL_IDS["pad"]
    return ids


def made_up_inputs(
    specs: Specs,
    model: keras.Model,
    run: Callable[[dict[str, Array]], Any],
    longest: int | None = None,
) -> list[dict[str, Array]]:
    """Returns random inputs that a model can read, some rows with padding.

    If Keras fails or gives NaN, the function tries smaller integers and longer axes.

    Args:
        specs: the `tf.TensorSpec` of each input, by name.
        model: functional model that reads the inputs. Its embedding tables limit the ids.
        run: function that gives Keras' outputs for a case.
        longest: greatest length of a free axis. Defaults to `None`: no limit.

    Returns:
        Dicts of arrays, one for each of `SIZES`.

    Raises:
        ExportError: Keras cannot run the model on any of them.
    """
    random, cases = np.random.default_rng(11), []
    tables, most = table_sizes(model), most_ids(model)
    tamer = [*itertools.product(FACTORS, (most or 3, 3, 2))]
    hidden = None in tables.values() and has_hidden_table(model)
    for (batch, length), kind in zip(SIZES, KINDS, strict=True):
        case, failure = {}, ""
        # TensorFlow logs a warning for each number that is no row of a table.
        for factor, highest in tamer if hidden else ((1, kind), *tamer):
            size = min(length * factor, longest or length * factor)
            case = {
                name: _random_input(random, spec, tables[name] or highest, batch, size)
                for name, spec in specs.items()
            }
            failure = _failure(run, case)
            if failure is None:
                break
        else:
            shapes = {name: array.shape for name, array in case.items()}
            raise ExportError(
                f"Keras cannot run the model on made-up inputs of shapes up to {shapes}: "
                f"{failure} Pass samples=[...], dicts of arrays that the model reads."
            )
        cases.append(case)
    return cases


def _failure(run: Callable[[dict[str, Array]], Any], case: dict[str, Array]) -> str | None:
    """Returns why Keras' outputs for a case are unusable, or `None`."""
    try:
        outputs = keras.tree.flatten(run(case))
    except Exception as error:  # the user's layers run here
        return quoted(error, 300)
    if any(np.isnan(np.asarray(output, "float64")).any() for output in outputs):
        return "the outputs hold NaN."
    return None


def _random_input(
    random: np.random.Generator, spec: tf.TensorSpec, highest: int, batch: int, length: int
) -> Array:
    """Returns random numbers for one input; integers are below `highest` or of its kind."""
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


def source_limit(longest: int | None, wanted: int | None, default: int) -> int:
    """Returns the longest source that an artefact serves.

    Args:
        longest: greatest length that the model reads, or `None`.
        wanted: `max_source_length` of an export, or `None` for `default`.

    Raises:
        ValueError: the model cannot read a source of the length `wanted`.
    """
    if wanted is not None and longest is not None and wanted > longest:
        raise ValueError(
            f"max_source_length={wanted} was passed, but the model reads at most {longest}. Pass a "
            "smaller one, or build the model with more positions."
        )
    return wanted or min(default, longest or default)


def check_listed(samples: Sequence[Any]) -> Sequence[Any]:
    """Returns the samples; raises `ValueError` unless they are a non-empty list."""
    if isinstance(samples, (str, dict)) or not len(samples):
        raise ValueError(
            "samples must be a list of at least one sample, or None for random ones, but "
            f"{samples!r} was passed."
        )
    return samples


def check_inputs(case: Any, specs: Specs) -> dict[str, Array]:
    """Casts a sample to the dtypes of `specs`; raises `ValueError` unless it has all arrays."""
    if not isinstance(case, dict) or set(case) != set(specs):
        given = sorted(case) if isinstance(case, dict) else type(case).__name__
        raise ValueError(
            f"A sample must be a dict with an array for each of {sorted(specs)}, but "
            f"{given} was passed."
        )
    checked = {}
    for name, spec in specs.items():
        array, dtype = np.asarray(case[name]), spec.dtype.as_numpy_dtype
        fits = spec.shape.is_compatible_with(array.shape) and array.size > 0
        if not (fits and np.can_cast(array.dtype, dtype, "same_kind")):
            raise ValueError(
                f"The sample's {name!r} has shape {array.shape} and dtype {array.dtype}, but "
                f"the model takes {tuple(spec.shape)} and {spec.dtype.name}."
            )
        checked[name] = array.astype(dtype)
    return checked


def with_last_id(
    cases: list[dict[str, Array]],
    names: Iterable[str],
    tokenizer: Any,
    run: Callable[[dict[str, Array]], Any],
) -> list[dict[str, Array]]:
    """Returns cases and, for a model whose number of ids is unknown, one with a tokenizer's last.

    Args:
        cases: inputs of the proof.
        names: the inputs that hold rows of ids.
        tokenizer: the tokenizer that makes them, or `None` for no case.
        run: function that gives Keras' outputs for a case.

    Raises:
        ValueError: Keras cannot read this id.
    """
    size, last = getattr(tokenizer, "vocab_size", None), dict(cases[0])
    if size is None:
        return cases
    for name in names:
        last[name] = last[name].copy()
        last[name][0, 0] = size - 1
    try:
        run(last)
    except Exception as error:  # the user's layers run here
        raise ValueError(
            f"The tokenizer has {size} ids, but the model cannot read the last of them. Pass the "
            f"tokenizer that the model was trained with, or make a model of {size} ids. "
            f"{quoted(error, 300)}"
        ) from error
    return [*cases, last]


def proof_texts(tokenizer: Tokenizer, longest: int | None) -> list[str]:
    """Returns the `PROOF` texts of at most `longest` tokens with begin or end token."""
    return [text for text in PROOF if len(tokenizer.encode(text)) < (longest or np.inf)]
