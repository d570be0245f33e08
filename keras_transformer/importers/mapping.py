"""From the origin's names of tensors to our paths: what is expected, checked, and put in our form.

Shapes: D d_model, F d_ff.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Target:
    """Where a tensor of the origin goes.

    Attributes:
        shape: the shape that the tensor must have.
        paths: our paths. If there are several, the tensor is cut along our last axis. If there is
            none, the importer treats the tensor itself.
        transposed: whether the origin keeps (outputs, inputs), where ours are (inputs, outputs).
    """

    shape: tuple
    paths: tuple = ()
    transposed: bool = False


def linear(theirs, inputs, outputs, *ours, transposed=True):
    """`{their name: Target}` of a matrix and its bias, or of several in one, below our names."""
    shape = (outputs, inputs) if transposed else (inputs, outputs)
    kernels, biases = (tuple(f"{name}/{kind}" for name in ours) for kind in ("kernel", "bias"))
    return {
        f"{theirs}.weight": Target(shape, kernels, transposed),
        f"{theirs}.bias": Target((outputs,), biases),
    }


def norm(theirs, size, ours):
    """`{their name: Target}` of a layer norm."""
    return {
        f"{theirs}.weight": Target((size,), (f"{ours}/gamma",)),
        f"{theirs}.bias": Target((size,), (f"{ours}/beta",)),
    }


def count_layers(state: Iterable[str], prefix: str) -> int:
    """The number of layers of which a state has weights, `PREFIX.NUMBER.`; at least 1."""
    found = [re.match(rf"{re.escape(prefix)}\.(\d+)\.", name) for name in state]
    return max(1, len({int(match[1]) for match in found if match}))


def checked(tensors, targets, copies=None, spare=()):
    """The tensors that are expected, after a look at the name and shape of each.

    Args:
        tensors: `{their name: array}`.
        targets: `{their name: Target}` of all that must be there.
        copies: dict of names that may be there, too, to the name of what they must be equal to.
        spare: names that may be there and are not used.

    Raises:
        ValueError: a tensor is missing, left over, misshapen, or no copy; the message names each.
    """
    copies = copies or {}
    known = {*targets, *copies, *spare}
    problems = [f"{name} is missing" for name in targets if name not in tensors]
    problems += [f"{name} is left over" for name in tensors if name not in known]
    problems += [
        f"{name} has shape {tensors[name].shape}, not {target.shape}"
        for name, target in targets.items()
        if name in tensors and tensors[name].shape != target.shape
    ]
    problems += [
        f"{name} is not equal to {original}, which it is tied to"
        for name, original in copies.items()
        if {name, original} <= set(tensors) and not np.array_equal(tensors[name], tensors[original])
    ]
    if problems:
        raise ValueError(
            f"{len(problems)} tensors of the checkpoint are not what its configuration says: "
            f"{'; '.join(problems)}."
        )
    return {name: tensors[name] for name in targets}


def mapped(tensors, targets):
    """`{our path: array}` of `checked` tensors, without those that have no path."""
    arrays = {}
    for name, target in targets.items():
        if target.paths:
            array = tensors[name].T if target.transposed else tensors[name]
            parts = np.split(array, len(target.paths), axis=-1)
            arrays.update(zip(target.paths, parts, strict=True))
    return arrays


def unmapped(arrays, targets):
    """`{their name: array}` of our `{our path: array}`: the inverse of `mapped`.

    Biases that our model does not have are zeros there.
    """
    tensors = {}
    for name, target in targets.items():
        if target.paths:
            parts = [arrays[path] for path in target.paths if path in arrays]
            array = np.concatenate(parts, axis=-1) if parts else np.zeros(target.shape, np.float32)
            tensors[name] = np.ascontiguousarray(array.T if target.transposed else array)
    return tensors


def encoder_decoder_blocks(prefix, layers, d_model, d_ff):
    """`{their name: Target}` of all blocks, as fairseq names them, and Hugging Face after it.

    Args:
        prefix: what their names begin with, such as "model.".
        layers: numbers of blocks in the encoder and the decoder.
        d_model, d_ff: D and F.
    """
    targets = {}
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


def attention(theirs, d_model, ours):
    """`{their name: Target}` of one attention with four projections of their own."""
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
    targets = {}
    for part, name in names.items():
        targets |= linear(f"{theirs}.{part}", d_model, d_model, f"{ours}/{name}")
    return targets
