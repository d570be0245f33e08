"""Imported weights of `torch.nn.Transformer` give PyTorch's outputs.

`torch.nn.Transformer` has neither embeddings nor positions; both sides get the same ones here.
Its default stacks end with a layer norm, so the tests build post-norm stacks without it.
Shapes: B batch, S source length, T target length, D d_model, V vocabulary.
"""

import math

import numpy as np
import pytest
from helpers import reference
from helpers.checks import assert_close, integers, numpy64, randomise, weights_of

from keras_transformer.importers.torch_transformer import load_weights, mapped_weights
from keras_transformer.models import Transformer

torch = pytest.importorskip("torch", reason="PyTorch, which this test compares with, is missing")

B, S, T, V, D, H, F, N = 3, 7, 5, 23, 22, 2, 19, 2


def torch_transformer(norm_first, activation):
    """Returns `torch.nn.Transformer` in float64 with random weights, norms and biases included."""
    options = {
        "dropout": 0.0,
        "activation": activation,
        "norm_first": norm_first,
        "batch_first": True,
        "dtype": torch.float64,
    }
    nn = torch.nn
    torch.manual_seed(0)

    def final_norm():
        return nn.LayerNorm(D, dtype=torch.float64) if norm_first else None

    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(D, H, F, **options), N, final_norm(), enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, F, **options), N, final_norm())
    model = nn.Transformer(D, H, N, N, F, custom_encoder=encoder, custom_decoder=decoder, **options)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                weight.normal_(1.0, 0.3)
            elif weight.ndim == 1:
                weight.normal_(0.0, 0.3)
            else:
                weight.normal_(0.0, weight.shape[1] ** -0.5)
    return model.eval()


def state_of(torch_model):
    return {name: weight.numpy() for name, weight in torch_model.state_dict().items()}


def torch_logits(torch_model, table, source_ids, target_ids):
    def embed(ids):
        return torch.from_numpy(table[ids] * math.sqrt(D) + reference.sinusoids(ids.shape[1], D))

    source_padding = torch.from_numpy(source_ids == 0)  # True is masked out in PyTorch
    future = torch.triu(torch.ones(target_ids.shape[1], target_ids.shape[1], dtype=torch.bool), 1)
    with torch.no_grad():
        x = torch_model(
            embed(source_ids),
            embed(target_ids),
            tgt_mask=future,
            src_key_padding_mask=source_padding,
            memory_key_padding_mask=source_padding,
            tgt_key_padding_mask=torch.from_numpy(target_ids == 0),
        )
    return x.numpy() @ table.T  # (B, T, V)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_mapped_weights_give_the_outputs_of_pytorch(side, activation, norm_first):
    """Targets are padded on the right only, because fully masked rows of PyTorch are NaN."""
    torch_model = torch_transformer(norm_first, activation)
    model = Transformer(V, N, D, H, F, activation=activation, norm_first=norm_first, use_bias=True)
    randomise(model, seed=3)
    state = state_of(torch_model)
    assert sum(map(np.size, mapped_weights(state).values())) == sum(map(np.size, state.values()))
    own = {"token_embedding/embeddings": weights_of(model)["token_embedding/embeddings"]}
    load_weights(model, state, own)

    source, target = integers(3, V, B, S), integers(3, V, B, T, seed=1)
    source[0, slice(0, 3) if side == "left" else slice(4, 7)] = 0
    target[1, 3:] = 0
    table = weights_of(model)["token_embedding/embeddings"]
    theirs = torch_logits(torch_model, table, source, target)
    ours = numpy64(model({"source_ids": source, "target_ids": target}))
    assert_close(ours[target > 0], theirs[target > 0])


def test_an_unknown_weight_is_named():
    with pytest.raises(ValueError, match="lm_head.weight is left over"):
        mapped_weights({"lm_head.weight": np.zeros((V, D))})
    for name in ("encoder.layers.0.norm3.weight", "decoder.layers.1.gate.weight"):
        with pytest.raises(ValueError, match=f"{name} is left over"):
            mapped_weights({name: np.zeros(D)})


def test_a_model_of_other_sizes_is_refused_and_left_unchanged():
    state = state_of(torch_transformer(False, "relu"))
    model = Transformer(V, N, D, H, F + 1, use_bias=True)
    before = weights_of(model)
    with pytest.raises(ValueError, match=rf"feed_forward/hidden/bias has shape \({F},\)"):
        load_weights(model, state, {"token_embedding/embeddings": np.zeros((V, D))})
    for path, array in weights_of(model).items():
        np.testing.assert_array_equal(array, before[path])
