"""From the tensors of an origin to the weights of our models.

An importer describes each tensor of the origin by a `Target`. `checked` compares names and shapes,
`mapped` transposes and splits the arrays, and `assign_weights` assigns them by their paths.

`row_order` puts the rows of a vocabulary in our order: padding 0, unknown 1, begin 2, end 3, then
all others. In an origin one token may have two of these roles: Marian begins with its padding
token, GPT-2 begins and ends with one token. The importer copies its row, and only one copy may
count among the logits. `logit_bias` is `NEVER` for the other copies and for rows that the origin
lacks.

Shapes: D d_model, F d_ff, V our number of ids, U the origin's.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import keras
import numpy as np

from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from keras_transformer.types import Array, Ids

ABSENT = -1  # in an order: a row that the origin does not have
# The logit bias of tokens that must never be generated: exp(-100) is negligible in float32. A
# larger bias would distort losses with smoothed labels, and the scale of compared exports.
NEVER = -100.0
Targets = dict[str, "Target"]  # by the origin's names
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Target:
    """Where a tensor of the origin goes.

    Attributes:
        shape: the shape that the tensor must have.
        paths: paths of our weights. Several paths split the tensor along our last axis. Without a
            path the importer uses the tensor itself.
        transposed: whether the origin stores (outputs, inputs); ours are (inputs, outputs).
    """

    shape: tuple[int, ...]
    paths: tuple[str, ...] = ()
    transposed: bool = False


def linear(theirs: str, inputs: int, outputs: int, *ours: str, transposed: bool = True) -> Targets:
    """Returns the targets of a linear layer, or of several layers of ours in one matrix."""
    shape = (outputs, inputs) if transposed else (inputs, outputs)
    kernels, biases = (tuple(f"{name}/{kind}" for name in ours) for kind in ("kernel", "bias"))
    return {
        f"{theirs}.weight": Target(shape, kernels, transposed),
        f"{theirs}.bias": Target((outputs,), biases),
    }


def norm(theirs: str, size: int, ours: str) -> Targets:
    """Returns the targets of a layer normalization."""
    return {
        f"{theirs}.weight": Target((size,), (f"{ours}/gamma",)),
        f"{theirs}.bias": Target((size,), (f"{ours}/beta",)),
    }


def attention(theirs: str, d_model: int, ours: str) -> Targets:
    """Returns the targets of an attention layer with four separate projections."""
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
    targets: Targets = {}
    for part, name in names.items():
        targets |= linear(f"{theirs}.{part}", d_model, d_model, f"{ours}/{name}")
    return targets


def encoder_decoder_blocks(prefix: str, layers: Sequence[int], d_model: int, d_ff: int) -> Targets:
    """Returns the targets of all blocks by fairseq's names, which Hugging Face's Marian also uses.

    Args:
        prefix: str, the start of their names, such as "model.".
        layers: number of blocks of the encoder and of the decoder.
        d_model, d_ff: int, D and F.
    """
    targets: Targets = {}
    for side, count in zip(("encoder", "decoder"), layers, strict=True):
        parts = {"self_attn": "self_attention"}
        if side == "decoder":
            parts["encoder_attn"] = "cross_attention"
        for i in range(count):
            theirs, ours = f"{prefix}{side}.layers.{i}", f"{side}_block_{i}"
            for part, name in parts.items():
                targets |= attention(f"{theirs}.{part}", d_model, f"{ours}/{name}")
                targets |= norm(f"{theirs}.{part}_layer_norm", d_model, f"{ours}/{name}_norm")
            targets |= linear(f"{theirs}.fc1", d_model, d_ff, f"{ours}/feed_forward/hidden")
            targets |= linear(f"{theirs}.fc2", d_ff, d_model, f"{ours}/feed_forward/output")
            targets |= norm(f"{theirs}.final_layer_norm", d_model, f"{ours}/feed_forward_norm")
    return targets


def count_layers(state: Iterable[str], prefix: str) -> int:
    """Returns the number of layers with weights in a state, `PREFIX.NUMBER.`; at least 1."""
    matches = (re.match(rf"{re.escape(prefix)}\.(\d+)\.", name) for name in state)
    return max(1, len({int(match[1]) for match in matches if match}))


def checked(
    tensors: Mapping[str, Array],
    targets: Targets,
    copies: Mapping[str, str] | None = None,
    spare: Iterable[str] = (),
) -> Arrays:
    """Checks the names and shapes of all tensors, and returns the expected ones.

    Args:
        tensors: dict from the origin's name to array.
        targets: dict from name to `Target`, of every tensor that must exist.
        copies: dict from names that may exist to the name of the tensor that they must equal.
        spare: names that may exist and are not used.

    Raises:
        ValueError: a tensor is missing, left over, misshapen or differs from its original. The
            message names each.
    """
    copies = copies or {}
    shapes = {name: target.shape for name, target in targets.items()}
    problems = _misfits(tensors, shapes, {*copies, *spare})
    problems += [
        f"{name} is not equal to {original}, which it is tied to"
        for name, original in copies.items()
        if {name, original} <= set(tensors) and not np.array_equal(tensors[name], tensors[original])
    ]
    if problems:
        raise ValueError(
            f"{len(problems)} tensors of the checkpoint differ from its configuration: "
            f"{'; '.join(problems)}."
        )
    return {name: tensors[name] for name in targets}


def mapped(tensors: Mapping[str, Array], targets: Targets) -> Arrays:
    """Returns a dict from our path to array, of `checked` tensors that have a path."""
    arrays: Arrays = {}
    for name, target in targets.items():
        if target.paths:
            array = tensors[name].T if target.transposed else tensors[name]
            parts = np.split(array, len(target.paths), axis=-1)
            arrays.update(zip(target.paths, parts, strict=True))
    return arrays


def unmapped(arrays: Mapping[str, Array], targets: Targets) -> Arrays:
    """Returns a dict from the origin's name to array, the inverse of `mapped`.

    Biases that our model does not have become zeros.
    """
    tensors: Arrays = {}
    for name, target in targets.items():
        if target.paths:
            parts = [arrays[path] for path in target.paths if path in arrays]
            array = np.concatenate(parts, axis=-1) if parts else np.zeros(target.shape, np.float32)
            tensors[name] = np.ascontiguousarray(array.T if target.transposed else array)
    return tensors


def assign_weights(model: keras.Model, arrays: Mapping[str, Array]) -> None:
    """Assigns every weight of a model by its path. Changes nothing unless all of them fit.

    Args:
        model: a Keras model whose weights have distinct paths, such as a `Transformer`. The
            documentation lists the paths and shapes of our models.
        arrays: dict from path to array. Arrays are cast to the dtype of the weight.

    Raises:
        ValueError: a weight is missing, left over or misshapen; the message names each. Or two
            weights of the model share a path.

    Example:

    >>> model = TransformerEncoder(vocab_size=23, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    >>> arrays = {weight.path: np.zeros(weight.shape) for weight in model.weights}
    >>> assign_weights(model, arrays)
    >>> float(keras.ops.max(model.weights[0]))
    0.0
    """
    weights = {weight.path: weight for weight in model.weights}
    if len(weights) < len(model.weights):
        paths = [weight.path for weight in model.weights]
        shared = sorted({path for path in paths if paths.count(path) > 1})
        raise ValueError(
            f"Weights of {model.name} share the paths {shared}. Give the layers different names."
        )
    arrays = {path: np.asarray(array) for path, array in arrays.items()}
    shapes = {path: tuple(weight.shape) for path, weight in weights.items()}
    if problems := _misfits(arrays, shapes):
        raise ValueError(
            f"{len(problems)} of these weights do not fit {model.name}: {'; '.join(problems)}. "
            "Create the model with the sizes, biases and norms of the origin."
        )
    for path, weight in weights.items():
        weight.assign(arrays[path])


def _misfits(
    arrays: Mapping[str, Array],
    shapes: Mapping[str, tuple[int, ...]],
    spare: Iterable[str] = (),
) -> list[str]:
    """Returns a phrase for each array that is missing, left over or misshapen."""
    expected = {*shapes, *spare}
    problems = [f"{name} is missing" for name in shapes if name not in arrays]
    problems += [f"{name} is left over" for name in arrays if name not in expected]
    return problems + [
        f"{name} has shape {arrays[name].shape}, not {shape}"
        for name, shape in shapes.items()
        if name in arrays and arrays[name].shape != shape
    ]


def row_order(
    size: int,
    pad: int | None,
    unknown: int | None,
    begin: int | None,
    end: int | None,
    copies: int = 0,
) -> Ids:
    """Returns the origin's id of each of our rows, (V,) integers.

    Args:
        size: int, U.
        pad, unknown, begin, end: int, the origin's ids, or `None` for a token that it lacks. Begin
            may equal another.
        copies: int, number of further copies of the unknown token, for pieces of text that the
            origin treats as unknown. Defaults to 0.

    Raises:
        ValueError: an id is not below U.

    Example, the order of Marian's Hugging Face folders, whose padding is the last id:

    >>> row_order(6, pad=5, unknown=1, begin=5, end=0).tolist()
    [5, 1, 5, 0, 2, 3, 4]
    """
    special = [ABSENT if id is None else id for id in (pad, unknown, begin, end)]
    outside = [id for id in special if not ABSENT <= id < size]
    if outside:
        raise ValueError(f"Special ids {outside} are not among the {size} ids of the vocabulary.")
    others = [id for id in range(size) if id not in special]
    return np.array(special + others + [unknown] * copies)


def our_ids(order: Ids) -> dict[int, int]:
    """Returns a dict from the origin's id to ours.

    A token with several roles maps to end, then to begin.
    """
    ours: dict[int, int] = {}
    for row in (END_ID, BEGIN_ID, UNKNOWN_ID, PAD_ID, *range(4, len(order))):
        ours.setdefault(int(order[row]), row)
    return {theirs: row for theirs, row in ours.items() if theirs != ABSENT}


def rows(array: Array, order: Ids) -> Array:
    """Returns the origin's rows (U, ...) in our order (V, ...); zeros where it has none."""
    extended = np.concatenate([array, np.zeros_like(array[:1])])  # index ABSENT is the last row
    return extended[order]


def logit_bias(order: Ids, bias: Array | None = None, never: float = NEVER) -> Array:
    """Returns the bias (V,) of our logits from the origin's (U,), or from none.

    The softmax over our logits then equals the softmax over the origin's: each of its ids counts
    once, and every other row has the bias `never`.
    """
    bias = np.zeros(len(order), np.float32) if bias is None else rows(bias, order)
    silent = np.ones(len(order), bool)
    silent[list(our_ids(order).values())] = False
    bias[silent] = never
    return bias


def embedding_weights(
    tables: Mapping[str, tuple[Array, Ids]],
    bias: Array | None = None,
    kernel: Array | None = None,
    scale: float = 1.0,
    last_norm: Arrays | None = None,
    never: float = NEVER,
) -> Arrays:
    """Returns a dict from our path to array of embeddings and logits, with rows in our order.

    Args:
        tables: dict from the name of our embedding to the origin's table (U, D) and its order. The
            last table also computes the logits, unless there is a kernel.
        bias: (U,) of the logits, or `None`.
        kernel: (U, D), the matrix of the logits if it is not tied to the embedding, or `None`.
        scale: float, factor for the tables. An origin that does not multiply its embedding by √D
            needs D^-0.5. With tied logits the last norm is divided by it.
        last_norm: dict from path to array of the norm in front of the logits.
        never: as in `logit_bias`.
    """
    arrays = {f"{name}/embeddings": rows(*table) * scale for name, table in tables.items()}
    name, (_, order) = [*tables.items()][-1]
    arrays[f"{name}/output_bias"] = logit_bias(order, bias, never)
    if kernel is not None:
        arrays[f"{name}/output_kernel"] = rows(kernel, order).T
    elif last_norm:
        arrays |= {path: array / scale for path, array in last_norm.items()}
    return arrays


def norm_weights(arrays: Mapping[str, Array], path: str) -> Arrays:
    """Returns scale and offset of the norm at `path`, by their paths."""
    return {f"{path}/{part}": arrays[f"{path}/{part}"] for part in ("gamma", "beta")}
