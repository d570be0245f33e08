"""Weights of `torch.nn.Transformer`, and OpenNMT-py's names of them, give PyTorch's outputs.

`torch.nn.Transformer` has neither embeddings nor positions; both sides get the same ones here.
Its default stacks end with a layer norm, so the tests build post-norm stacks without it.
Shapes: B batch, S source length, T target length, D d_model, V vocabulary.
"""

import math

import numpy as np
import pytest
from helpers import published, reference
from helpers.checks import assert_close, integers, normal, numpy64, randomise, weights_of
from helpers.published import torch

from keras_transformer.importers import opennmt
from keras_transformer.importers.mapping import NEVER, row_order
from keras_transformer.importers.torch_transformer import load_weights, mapped_weights
from keras_transformer.models import Transformer

B, S, T, V, D, H, F, N = 3, 7, 5, 23, 22, 2, 19, 2


def torch_transformer(norm_first, activation="relu", epsilon=1e-5):
    """Returns `torch.nn.Transformer` in float64 with random weights, norms and biases included."""
    options = {
        "dropout": 0.0,
        "activation": activation,
        "norm_first": norm_first,
        "layer_norm_eps": epsilon,
        "batch_first": True,
        "dtype": torch.float64,
    }
    nn = torch.nn

    def final_norm():
        return nn.LayerNorm(D, epsilon, dtype=torch.float64) if norm_first else None

    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(D, H, F, **options), N, final_norm(), enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, F, **options), N, final_norm())
    model = nn.Transformer(D, H, N, N, F, custom_encoder=encoder, custom_decoder=decoder, **options)
    return published.drawn(model)


def state_of(torch_model):
    return {name: weight.numpy() for name, weight in torch_model.state_dict().items()}


def ids(side="right"):
    """Returns ids of sources and targets.

    Targets are padded on the right only, because fully masked rows of PyTorch are NaN.
    """
    source, target = integers(3, V, B, S), integers(3, V, B, T, seed=1)
    source[0, slice(0, 3) if side == "left" else slice(4, 7)] = 0
    target[1, 3:] = 0
    return source, target


def torch_outputs(torch_model, tables, ids, orders=(None, None)):
    """Returns the decoder's output (B, T, D) for our ids, embedded by two tables."""
    vectors = [
        torch.from_numpy(
            table[ids if order is None else order[ids]] * math.sqrt(D)
            + reference.sinusoids(ids.shape[1], D)
        )
        for table, ids, order in zip(tables, ids, orders, strict=True)
    ]
    source_padding = torch.from_numpy(ids[0] == 0)  # True is masked out in PyTorch
    with torch.no_grad():
        return torch_model(
            *vectors,
            tgt_mask=torch.triu(torch.ones(T, T, dtype=torch.bool), 1),
            src_key_padding_mask=source_padding,
            memory_key_padding_mask=source_padding,
        ).numpy()


@pytest.mark.quick("left-relu-post-norm")
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_mapped_weights_give_the_outputs_of_pytorch(side, activation, norm_first):
    torch_model = torch_transformer(norm_first, activation)
    model = Transformer(V, N, D, H, F, activation=activation, norm_first=norm_first, use_bias=True)
    randomise(model, seed=3)
    state = state_of(torch_model)
    assert sum(map(np.size, mapped_weights(state).values())) == sum(map(np.size, state.values()))
    table = weights_of(model)["token_embedding/embeddings"]
    load_weights(model, state, {"token_embedding/embeddings": table})
    source, target = ids(side)
    expected = torch_outputs(torch_model, [table, table], (source, target)) @ table.T
    ours = numpy64(model({"source_ids": source, "target_ids": target}))
    assert_close(ours[target > 0], expected[target > 0])


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "encoder.layers.0.norm3.weight", "decoder.layers.1.gate.weight"]
)
def test_an_unknown_weight_is_named(name):
    with pytest.raises(ValueError, match=f"{name} is left over"):
        mapped_weights({name: np.zeros(D)})


def test_a_model_of_other_sizes_is_refused_and_left_unchanged():
    state = state_of(torch_transformer(False, "relu"))
    model = Transformer(V, N, D, H, F + 1, use_bias=True)
    before = weights_of(model)
    with pytest.raises(ValueError, match=rf"feed_forward/hidden/bias has shape \({F},\)"):
        load_weights(model, state, {"token_embedding/embeddings": np.zeros((V, D))})
    np.testing.assert_equal(weights_of(model), before)


# OpenNMT-py

NORMS = {
    "encoder": {"norm1": "layer_norm", "norm2": "feed_forward.layer_norm"},
    "decoder": {
        "norm1": "layer_norm_1",
        "norm2": "layer_norm_2",
        "norm3": "feed_forward.layer_norm",
    },
}
PARTS = {
    "multihead_attn": "context_attn",
    "out_proj": "final_linear",
    "linear1": "feed_forward.w_1",
    "linear2": "feed_forward.w_2",
}
SPLIT = ("linear_query", "linear_keys", "linear_values")


def opennmt_state(torch_model):
    """Returns the state of a pre-norm model by OpenNMT-py's names."""
    state = {}
    for name, array in state_of(torch_model).items():
        side, *inside, kind = name.split(".")
        if inside == ["norm"]:
            state[f"{side}.layer_norm.{kind}"] = array
            continue
        _, number, *inside = inside
        part = ".".join(PARTS.get(name, NORMS[side].get(name, name)) for name in inside)
        start = f"{opennmt.BLOCKS[side]}.{number}.{part}"
        if kind.startswith("in_proj"):
            kind = kind.removeprefix("in_proj_")
            for name, own in zip(SPLIT, np.split(array, 3), strict=True):
                state[f"{start}.{name}.{kind}"] = own
        else:
            state[f"{start}.{kind}"] = array
    return state


@pytest.mark.full("False-True-False", "True-True-False", "True-False-False")
@pytest.mark.parametrize(
    "shared, tied, earlier",
    [(True, True, False), (True, True, True), (True, False, False), (False, True, False)],
)
def test_opennmt_models_give_the_outputs_of_pytorch(shared, tied, earlier):
    torch_model = torch_transformer(True, epsilon=1e-6)
    state, order = opennmt_state(torch_model), row_order(V, *opennmt.SPECIAL)
    tables = [normal(V, D), normal(V, D, seed=0 if shared else 1)]
    kernel, bias = tables[1] if tied else normal(V, D, seed=2), normal(V, seed=3)
    for side, table in zip(opennmt.BLOCKS, tables, strict=True):
        state[opennmt.TABLE.format(side)] = table
        state[f"{side}.embeddings.make_embedding.pe.pe"] = np.zeros((5000, 1, D))
    generator = {"weight": kernel, "bias": bias}
    if earlier:
        generator = {f"0.{name}": array for name, array in generator.items()}
        for name in [name for name in state if "layer_norm" in name]:
            kind = name.replace(".weight", ".a_2").replace(".bias", ".b_2")
            state[kind] = state.pop(name)
    ours = opennmt.load_model(state, generator, H)
    source, target = ids()
    logits = np.asarray(ours({"source_ids": source, "target_ids": target}))
    assert logits[0, 0].min() > NEVER / 2 and logits.shape[2] == V  # each of theirs once
    outputs = torch_outputs(torch_model, tables, (source, target), (order, order))
    expected = (outputs @ kernel.T + bias)[..., order]
    assert_close(logits[target > 0], expected[target > 0])


KEYS = "decoder.transformer_layers.0.context_attn.linear_keys.bias"
BEYOND = "encoder.transformer.1000000000000.x"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({KEYS: None}, "context_attn.linear_keys.bias is missing"),
        ({"encoder.layer_norm.weight": None}, "encoder.layer_norm.weight is missing"),
        ({BEYOND: np.zeros(2)}, "transformer.1000000000000.x is left over"),
        (
            dict.fromkeys(map(opennmt.TABLE.format, opennmt.BLOCKS)),
            "Pass the states of an OpenNMT-py model",
        ),
    ],
)
def test_every_weight_of_a_state_is_checked(changes, message):
    table = np.zeros((V, D), "float32")
    state = {opennmt.TABLE.format(side): table for side in opennmt.BLOCKS}
    state |= opennmt_state(torch_transformer(True)) | changes
    state = {name: array for name, array in state.items() if array is not None}
    with pytest.raises(ValueError, match=message):
        opennmt.load_model(state, {"weight": table, "bias": table[:, 0]}, H)
