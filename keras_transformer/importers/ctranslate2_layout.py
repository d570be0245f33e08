"""Settings, names of blocks and vocabularies in CTranslate2's folders.

Shapes: D d_model, F d_ff.
"""

import json
import math
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer.importers import checkpoint, mapping
from keras_transformer.importers.ctranslate2_binary import Specification, read_model
from keras_transformer.layers.blocks import gelu_sigmoid, gelu_tanh
from keras_transformer.types import Array

MODEL_FILE = "model.bin"
WHISPER, TRANSLATOR = "WhisperSpec", "TransformerSpec"
REVISIONS = {WHISPER: 3, TRANSLATOR: 7}
# From CTranslate2's numbers of activations to names of Keras, or functions. 4 is another GELU.
ACTIVATIONS: dict[int, str | Callable[..., Any]] = {
    0: "relu",
    1: gelu_tanh,
    2: "silu",
    3: "gelu",
    4: gelu_sigmoid,
    5: "tanh",
    6: "sigmoid",
}
# Settings that the importer reads; that must be 0; and that do not change the outputs.
READ = {"activation", "num_heads", "pre_norm", "scale_embeddings", "start_from_zero_embedding"}
ZERO = {"alibi", "multi_query_attention"}
UNUSED = {
    "alibi_use_positive_positions",
    "alignment_heads",
    "alignment_layer",
    "embeddings_merge",
    "scale_alibi",
}
SIDES = {"encoder": "source", "decoder": "target"}


def read_specification(folder: pathlib.Path) -> Specification:
    """Reads `model.bin`, and checks its kind and settings."""
    checkpoint.check_origin(folder, "ctranslate2")
    path = folder / MODEL_FILE
    specification = read_model(path)
    if REVISIONS.get(specification.name) != specification.revision:
        raise ValueError(
            f"{path} holds a {specification.name:.50} of revision {specification.revision}, but "
            f"only {REVISIONS} are supported. Convert the original model again with a present "
            "CTranslate2."
        )
    found = []
    for name, value in specification.scalars.items():
        setting = name.partition("/")[2]
        if setting not in {*READ, *ZERO, *UNUSED} or (setting in ZERO and value):
            found.append(f"{name:.50}={value}")
    if found:
        raise ValueError(f"{path} has settings that our model does not support: {found[:5]}.")
    return specification


def setting(specification: Specification, name: str, default: float) -> float:
    """Returns a setting that both sides share."""
    values = {
        value for key, value in specification.scalars.items() if key.partition("/")[2] == name
    }
    if len(values) > 1:
        raise ValueError(
            f"The sides of the model have different settings {name}: {sorted(values)}. Our sides "
            "share one."
        )
    return values.pop() if values else default


def scale(specification: Specification, d_model: int) -> float:
    """Returns the factor of embeddings. An integer in the file says whether it is √D."""
    scale = setting(specification, "scale_embeddings", 1)
    if isinstance(scale, int):
        return d_model**0.5 if scale else 1.0
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale_embeddings is {scale}, but must be positive.")
    return scale


def heads(specification: Specification, side: str) -> int:
    heads = specification.scalars.get(f"{side}/num_heads")
    if not isinstance(heads, int):
        raise ValueError(f"{side}/num_heads must be an integer, but is {heads}.")
    return heads


def activation(specification: Specification) -> str | Callable[..., Any]:
    number = setting(specification, "activation", 0)
    if number not in ACTIVATIONS:
        raise ValueError(f"The activation is {number}, but must be one of {sorted(ACTIVATIONS)}.")
    return ACTIVATIONS[int(number)]


def block_targets(
    tensors: Mapping[str, Array], d_model: int, d_ff: int, use_bias: bool
) -> mapping.Targets:
    """Returns the targets of all blocks."""
    targets: mapping.Targets = {}
    for side in SIDES:
        for i in range(depth(tensors, side)):
            theirs, ours = f"{side}/layer_{i}", f"{side}_block_{i}"
            parts = {"self_attention": ("self_attention", [3, 1])}
            if side == "decoder":
                parts["attention"] = ("cross_attention", [1, 2, 1])
            for part, (name, joined) in parts.items():
                projections = [f"{ours}/{name}/{x}" for x in ("query", "key", "value", "output")]
                for number, count in enumerate(joined):
                    paths, projections = projections[:count], projections[count:]
                    linear = f"{theirs}/{part}/linear_{number}"
                    targets |= _linear(linear, d_model, count * d_model, paths, use_bias)
                targets |= norm(f"{theirs}/{part}/layer_norm", d_model, f"{ours}/{name}_norm")
            network, path = f"{theirs}/ffn", f"{ours}/feed_forward"
            targets |= _linear(f"{network}/linear_0", d_model, d_ff, [f"{path}/hidden"])
            targets |= _linear(f"{network}/linear_1", d_ff, d_model, [f"{path}/output"])
            targets |= norm(f"{network}/layer_norm", d_model, f"{path}_norm")
    return targets


def _linear(
    theirs: str, inputs: int, outputs: int, ours: Sequence[str], use_bias: bool = True
) -> mapping.Targets:
    """Returns the targets of layers in one matrix (outputs, inputs)."""
    kernels = tuple(f"{name}/kernel" for name in ours)
    targets = {f"{theirs}/weight": mapping.Target((outputs, inputs), kernels, transposed=True)}
    if use_bias:
        biases = tuple(f"{name}/bias" for name in ours)
        targets[f"{theirs}/bias"] = mapping.Target((outputs,), biases)
    return targets


def norm(theirs: str, size: int, ours: str) -> mapping.Targets:
    """Returns the targets of a layer normalization."""
    return {
        f"{theirs}/{part}": mapping.Target((size,), (f"{ours}/{part}",))
        for part in ("gamma", "beta")
    }


def depth(tensors: Mapping[str, Array], side: str) -> int:
    """Returns the number of blocks of a side; at least 1."""
    matches = (re.match(rf"{side}/layer_(\d+)/", name) for name in tensors)
    return max(1, len({match[1] for match in matches if match}))


def shape(tensors: Mapping[str, Array], name: str, rank: int) -> tuple[int, ...]:
    """Returns the shape of a required tensor."""
    if name not in tensors or tensors[name].ndim != rank:
        raise ValueError(
            f"{name} is missing or does not have {rank} axes. Our model does not support this."
        )
    return tensors[name].shape


def ids(names: Sequence[str]) -> dict[str, int]:
    """Returns a dict from piece to id."""
    return {piece: number for number, piece in enumerate(names)}


def read_vocabulary(folder: pathlib.Path, name: str) -> list[str]:
    """Reads the pieces of a vocabulary in the order of their ids, from JSON or lines."""
    path = folder / f"{name}.json"
    try:
        if path.exists():
            names = json.loads(path.read_text("utf-8"))
        else:
            path = path.with_suffix(".txt")
            names = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no vocabulary: {error}.") from error
    if not isinstance(names, list) or not all(isinstance(piece, str) for piece in names):
        raise ValueError(f"{path} must hold a list of pieces. Check that it is the right file.")
    if len(set(names)) < len(names):
        raise ValueError(f"{path} holds a piece twice. Copy it again.")
    return names
