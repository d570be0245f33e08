"""Weights of `torch.nn.Transformer`, `TransformerEncoder` and `TransformerDecoder`.

PyTorch's blocks are the paper's, post-norm or pre-norm, with biases in attention. They have
neither embeddings nor positions. `nn.Transformer` ends each stack with a norm; our pre-norm stacks
have that norm, our post-norm stacks do not.
"""

from collections.abc import Mapping

import keras
import numpy as np

from keras_transformer.importers import mapping
from keras_transformer.types import Array

_ATTENTION = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}
# PyTorch's attentions and our norms of a block, in the order of its sublayers.
_SUBLAYERS = {
    "encoder": (("self_attn",), ("self_attention", "feed_forward")),
    "decoder": (
        ("self_attn", "multihead_attn"),
        ("self_attention", "cross_attention", "feed_forward"),
    ),
}


def load_weights(
    model: keras.Model, state: Mapping[str, Array], embeddings: Mapping[str, Array]
) -> None:
    """Assigns the weights of a PyTorch Transformer to one of our models.

    Args:
        model: `Transformer` or `TransformerEncoder`, with the same sizes, `norm_first` and
            activation, and `use_bias=True`.
        state: dict from name to array, `{name: tensor.numpy() for name, tensor in
            torch_model.state_dict().items()}`. Names of a `TransformerEncoder` alone begin with
            "layers": put "encoder." in front of them.
        embeddings: dict from our path to array, of weights that PyTorch's module lacks:
            `token_embedding/embeddings` (V, D), learned positions.

    Raises:
        ValueError: a weight is unknown, missing, left over or misshapen; the message names each.

    Example:

    >>> load_weights(model, state, {"token_embedding/embeddings": table})  # doctest: +SKIP
    """
    mapping.assign_weights(model, {**mapped_weights(state), **embeddings})


def mapped_weights(state: Mapping[str, Array]) -> dict[str, Array]:
    """Returns a dict from our path to array, of all weights in `state`.

    Raises:
        ValueError: a weight is unknown, missing or misshapen; the message names each.
    """
    state = {name: np.asarray(array) for name, array in state.items()}
    targets: mapping.Targets = {}
    for side in _SUBLAYERS:
        if any(name.startswith(f"{side}.layers.") for name in state):
            targets |= _targets(state, side)
    return mapping.mapped(mapping.checked(state, targets), targets)


def _targets(state: Mapping[str, Array], side: str) -> mapping.Targets:
    """Returns the targets of one side's blocks and of its last norm."""
    hidden = state.get(f"{side}.layers.0.linear1.weight", np.zeros((0, 0)))
    d_ff, d_model = hidden.shape
    attentions, norms = _SUBLAYERS[side]
    targets: mapping.Targets = {}
    if f"{side}.norm.weight" in state:
        targets |= mapping.norm(f"{side}.norm", d_model, f"{side}_norm")
    for i in range(mapping.count_layers(state, f"{side}.layers")):
        theirs, ours = f"{side}.layers.{i}", f"{side}_block_{i}"
        for attention in attentions:
            name, path = f"{theirs}.{attention}", f"{ours}/{_ATTENTION[attention]}"
            inside = [f"{path}/{projection}" for projection in ("query", "key", "value")]
            joint = mapping.linear("in_proj", d_model, 3 * d_model, *inside)
            targets |= {f"{name}.{part.replace('.', '_')}": joint[part] for part in joint}
            targets |= mapping.linear(f"{name}.out_proj", d_model, d_model, f"{path}/output")
        targets |= mapping.linear(f"{theirs}.linear1", d_model, d_ff, f"{ours}/feed_forward/hidden")
        targets |= mapping.linear(f"{theirs}.linear2", d_ff, d_model, f"{ours}/feed_forward/output")
        for number, norm in enumerate(norms, 1):
            targets |= mapping.norm(f"{theirs}.norm{number}", d_model, f"{ours}/{norm}_norm")
    return targets
