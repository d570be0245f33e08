"""Weights of `torch.nn.Transformer`, `TransformerEncoder` and `TransformerDecoder`.

Theirs is the block of the paper, post-norm or pre-norm, with biases in its attention. They have
neither embeddings nor positions, and a norm at the end of a stack where it was asked for, as
`nn.Transformer` does by itself: our pre-norm stacks have it, our post-norm stacks do not.
"""

import re

import numpy as np

from keras_transformer.importers.assignment import assign_weights

# Their name in a block: ours. Matrices of `Linear` are (out, in), ours are (in, out).
_ATTENTION = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}
_LINEAR = {"linear1": "feed_forward/hidden", "linear2": "feed_forward/output"}
_NORMS = {
    "encoder": ("self_attention_norm", "feed_forward_norm"),
    "decoder": ("self_attention_norm", "cross_attention_norm", "feed_forward_norm"),
}
_BLOCK = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.+)\.(\w+)")
_FINAL_NORM = re.compile(r"(encoder|decoder)\.norm\.(\w+)")


def load_weights(model, state, embeddings):
    """Gives one of our models the weights of a PyTorch Transformer.

    Args:
        model: `Transformer`, or `TransformerEncoder`, with the same sizes, `norm_first` and
            activation, and `use_bias=True`.
        state: dict from name to array, `{name: tensor.numpy() for name, tensor in
            torch_model.state_dict().items()}`. Names of a `TransformerEncoder` alone begin with
            "layers": put "encoder." before them.
        embeddings: dict from our path to array, what PyTorch's module does not have:
            `token_embedding/embeddings` (V, D), learned positions.

    Raises:
        ValueError: an unknown name in `state`; a weight is missing, left over or misshapen.

    Example:

    >>> load_weights(model, state, {"token_embedding/embeddings": table})  # doctest: +SKIP
    """
    assign_weights(model, {**mapped_weights(state), **embeddings})


def mapped_weights(state):
    """`{our path: array}` of all weights in `state`, as `load_weights` takes it."""
    mapped = {}
    for name, array in state.items():
        array = np.asarray(array)
        block, norm = _BLOCK.fullmatch(name), _FINAL_NORM.fullmatch(name)
        if block:
            side, number, part, kind = block.groups()
            for path, value in _block_weights(side, part, kind, array, name):
                mapped[f"{side}_block_{number}/{path}"] = value
        elif norm:
            mapped[f"{norm[1]}_norm/{_norm_weight(norm[2])}"] = array
        else:
            raise ValueError(
                f"{name!r} is no weight of torch.nn.Transformer. Leave out what belongs to other "
                "modules, or map it to a path of ours and pass it in `embeddings`."
            )
    return mapped


def _block_weights(side, part, kind, array, name):
    """Yields our path within the block, and the array, for one of their names."""
    attention, _, linear = part.partition(".")
    if attention in _ATTENTION and kind in ("in_proj_weight", "in_proj_bias"):
        # Queries, keys and values lie in one matrix.
        for projection, own in zip(("query", "key", "value"), np.split(array, 3), strict=True):
            ours = f"{_ATTENTION[attention]}/{projection}"
            yield (f"{ours}/kernel", own.T) if kind.endswith("weight") else (f"{ours}/bias", own)
    elif attention in _ATTENTION and linear == "out_proj":
        yield _linear_weight(f"{_ATTENTION[attention]}/output", kind, array)
    elif part in _LINEAR:
        yield _linear_weight(_LINEAR[part], kind, array)
    elif part in [f"norm{i}" for i in range(1, len(_NORMS[side]) + 1)]:
        yield f"{_NORMS[side][int(part[-1]) - 1]}/{_norm_weight(kind)}", array
    else:
        raise ValueError(f"{name!r} is no weight of torch.nn.Transformer's blocks.")


def _linear_weight(path, kind, array):
    return (f"{path}/kernel", array.T) if kind == "weight" else (f"{path}/bias", array)


def _norm_weight(kind):
    return "gamma" if kind == "weight" else "beta"
