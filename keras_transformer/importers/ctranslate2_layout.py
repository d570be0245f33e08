"""Settings, names of tensors and vocabularies in CTranslate2's folders."""

import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer.importers import activations, checkpoint
from keras_transformer.importers.ctranslate2_binary import Specification, read_model
from keras_transformer.importers.tables import count_layers, shape_of

MODEL_FILE = "model.bin"
# Both kinds of models. Projections that read the same input are joined.
TENSORS = {
    "@/layer_#/self_attention/linear_0/*": "@_block_#/self_attention/{query,key,value}",
    "@/layer_#/self_attention/linear_1/*": "@_block_#/self_attention/output",
    "@/layer_#/self_attention/layer_norm/*": "@_block_#/self_attention_norm",
    "decoder/layer_#/attention/linear_0/*": "decoder_block_#/cross_attention/query",
    "decoder/layer_#/attention/linear_1/*": "decoder_block_#/cross_attention/{key,value}",
    "decoder/layer_#/attention/linear_2/*": "decoder_block_#/cross_attention/output",
    "decoder/layer_#/attention/layer_norm/*": "decoder_block_#/cross_attention_norm",
    "@/layer_#/ffn/linear_0/*": "@_block_#/feed_forward/hidden",
    "@/layer_#/ffn/linear_1/*": "@_block_#/feed_forward/output",
    "@/layer_#/ffn/layer_norm/*": "@_block_#/feed_forward_norm",
    "@/layer_norm/*": "@_norm",
    "encoder/position_encodings/encodings": "source_positions/embeddings",
    "decoder/position_encodings/encodings": "target_positions/embeddings",
    "decoder/embeddings/weight": "target_embedding/embeddings",
    "decoder/projection/weight": "target_embedding/output_kernel",
    "decoder/projection/bias": "target_embedding/output_bias",
}
PARTS = {"kernel": "weight", "bias": "bias", "gamma": "gamma", "beta": "beta"}
TABLES = ("encoder/embeddings_0/weight", "decoder/embeddings/weight")
KERNEL, BIAS = "decoder/projection/weight", "decoder/projection/bias"
POSITIONS = [f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")]
ADVICE = "Our model does not support this."
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


def read_specification(folder: pathlib.Path, revisions: Mapping[str, int]) -> Specification:
    """Reads `model.bin`, and checks its kind, by name and revision, and its settings."""
    checkpoint.check_origin(folder, "ctranslate2")
    path = folder / MODEL_FILE
    specification = read_model(path)
    if revisions.get(specification.name) != specification.revision:
        raise ValueError(
            f"{path} holds a {specification.name:.50} of revision {specification.revision}, but "
            f"only {revisions} are supported. Convert the original model again with a present "
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


def sizes(specification: Specification) -> dict[str, Any]:
    """Returns the attributes of `Table` that the settings and the shapes of tensors determine."""
    tensors = specification.tensors
    _, d_model = shape_of(tensors, TABLES[1], 2, ADVICE)
    d_ff, _ = shape_of(tensors, "encoder/layer_0/ffn/linear_0/weight", 2, ADVICE)
    source, target = (shape_of(tensors, name, 2, ADVICE)[0] for name in POSITIONS)
    return {
        "sizes": {"D": d_model, "F": d_ff, "P": source, "Q": target},
        "layers": {side: count_layers(tensors, f"{side}/layer_") for side in SIDES},
        "parts": PARTS,
    }


def heads(specification: Specification, side: str) -> int:
    """Returns the number of heads of a side."""
    number = specification.scalars.get(f"{side}/num_heads")
    if not isinstance(number, int):
        raise ValueError(f"{side}/num_heads must be an integer, but is {number}.")
    return number


def activation(specification: Specification) -> str | Callable[..., Any]:
    number = setting(specification, "activation", 0)
    return activations.named(activations.CTRANSLATE2, number, "The activation")


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
