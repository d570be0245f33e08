"""Weights of `torch.nn.Transformer`, `TransformerEncoder` and `TransformerDecoder`.

PyTorch's blocks are the paper's, post-norm or pre-norm, with biases in attention. They have
neither embeddings nor positions. `nn.Transformer` ends each stack with a norm; our pre-norm stacks
have that norm, our post-norm stacks do not.
"""

from collections.abc import Mapping

import keras
import numpy as np

from keras_transformer.importers.mapping import assign_weights
from keras_transformer.importers.tables import Table, count_layers
from keras_transformer.types import Array

CROSS = "decoder.layers.#.multihead_attn"
TENSORS = {
    "@.layers.#.self_attn.in_proj_*": "@_block_#/self_attention/{query,key,value}",
    "@.layers.#.self_attn.out_proj.*": "@_block_#/self_attention/output",
    f"{CROSS}.in_proj_*": "decoder_block_#/cross_attention/{query,key,value}",
    f"{CROSS}.out_proj.*": "decoder_block_#/cross_attention/output",
    "@.layers.#.linear1.*": "@_block_#/feed_forward/hidden",
    "@.layers.#.linear2.*": "@_block_#/feed_forward/output",
    "@.layers.#.norm1.*": "@_block_#/self_attention_norm",
    "encoder.layers.#.norm2.*": "encoder_block_#/feed_forward_norm",
    "decoder.layers.#.norm2.*": "decoder_block_#/cross_attention_norm",
    "decoder.layers.#.norm3.*": "decoder_block_#/feed_forward_norm",
}
SIDES = ("encoder", "decoder")
HIDDEN = [f"{side}.layers.0.linear1.weight" for side in SIDES]


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
    assign_weights(model, {**mapped_weights(state), **embeddings})


def mapped_weights(state: Mapping[str, Array]) -> dict[str, Array]:
    """Returns a dict from our path to array, of all weights in `state`.

    Raises:
        ValueError: a weight is unknown, missing or misshapen; the message names each.
    """
    state = {name: np.asarray(array) for name, array in state.items()}
    sides = [side for side in SIDES if any(name.startswith(f"{side}.layers.") for name in state)]
    layers = {side: count_layers(state, f"{side}.layers.") for side in sides}
    norms = {f"{side}.norm.*": f"{side}_norm" for side in sides if f"{side}.norm.weight" in state}
    hidden = next((state[name] for name in HIDDEN if name in state), np.zeros((0, 0)))
    sizes = dict(zip("FD", hidden.shape, strict=True))
    return Table({**TENSORS, **norms}, sizes, layers).read(state)
