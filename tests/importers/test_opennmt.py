"""OpenNMT-py models against the PyTorch module that computes the same.

Shapes: B batch, S source length, T target length, D d_model, V our vocabulary.
"""

import numpy as np
import pytest
from helpers import published, reference
from helpers.published import torch

from keras_transformer.importers import opennmt
from keras_transformer.importers.mapping import NEVER, row_order

D, H, F, U = 16, 2, 24, 37
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


def origin():
    """Returns a `torch.nn.Transformer` and its state by OpenNMT-py's names."""
    nn, options = torch.nn, {"norm_first": True, "batch_first": True, "layer_norm_eps": 1e-6}
    layer, norm = nn.TransformerEncoderLayer(D, H, F, **options), nn.LayerNorm(D, 1e-6)
    encoder = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
    model = nn.Transformer(D, H, 2, 1, F, custom_encoder=encoder, **options)
    state = {}
    for name, weight in published.drawn(model).state_dict().items():
        side, *inside, kind = name.split(".")
        array = weight.numpy()
        if inside == ["norm"]:
            state[f"{side}.layer_norm.{kind}"] = array
            continue
        _, number, *inside = inside
        block = f"{'encoder.transformer' if side == 'encoder' else 'decoder.transformer_layers'}"
        part = ".".join(PARTS.get(name, NORMS[side].get(name, name)) for name in inside)
        if kind.startswith("in_proj"):
            kind = kind.removeprefix("in_proj_")
            for name, own in zip(SPLIT, np.split(array, 3), strict=True):
                state[f"{block}.{number}.{part}.{name}.{kind}"] = own
        else:
            state[f"{block}.{number}.{part}.{kind}"] = array
    return model, state


def embed(table, ids):
    return torch.from_numpy(
        (table[ids] * D**0.5 + reference.sinusoids(ids.shape[1], D)).astype("float32")
    )


@pytest.mark.parametrize(
    "shared, tied, earlier",
    [(True, True, False), (True, True, True), (True, False, False), (False, True, False)],
)
def test_logits_equal_pytorch(shared, tied, earlier):
    model, state = origin()
    random = np.random.default_rng(0)
    tables = random.normal(0, D**-0.5, (3, U, D)).astype("float32")
    source_table, target_table = tables[0], tables[0 if shared else 1]
    kernel = target_table if tied else tables[2]
    for side, table in (("encoder", source_table), ("decoder", target_table)):
        state[opennmt.TABLE.format(side)] = table
        state[f"{side}.embeddings.make_embedding.pe.pe"] = np.zeros((5000, 1, D), "float32")
    generator = {"weight": kernel, "bias": random.normal(size=U).astype("float32")}
    bias = generator["bias"]
    if earlier:
        generator = {f"0.{name}": array for name, array in generator.items()}
        for name in [name for name in state if "layer_norm" in name]:
            kind = name.replace(".weight", ".a_2").replace(".bias", ".b_2")
            state[kind] = state.pop(name)
    ours = opennmt.load_model(state, generator, H)

    order = row_order(U, *opennmt.SPECIAL)
    source = published.ids(len(order), rows=7)
    target = published.ids(len(order), rows=7, end=False, seed=1)
    target[:, 0] = 2
    hidden = torch.from_numpy(source == 0)
    length = target.shape[1]
    with torch.no_grad():
        x = model(
            embed(source_table, np.asarray(order)[source]),
            embed(target_table, np.asarray(order)[target]),
            tgt_mask=torch.triu(torch.ones(length, length, dtype=torch.bool), 1),
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        ).numpy()
    logits = np.asarray(ours({"source_ids": source, "target_ids": target}))
    assert logits[0, 0].min() > NEVER / 2 and logits.shape[2] == U  # each of theirs once
    expected = (x @ kernel.T + bias)[..., order]
    assert published.relative(logits[target > 0], expected[target > 0]) <= 1e-5


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"decoder.transformer_layers.0.context_attn.linear_keys.bias": None},
            "context_attn.linear_keys.bias is missing",
        ),
        ({"encoder.layer_norm.weight": None}, "encoder.layer_norm.weight is missing"),
        (
            {"encoder.transformer.1000000000000.x": np.zeros(2)},
            "transformer.1000000000000.x is left over",
        ),
    ],
)
def test_every_weight_is_checked(changes, message):
    table = np.zeros((U, D), "float32")
    state = {opennmt.TABLE.format(side): table for side in ("encoder", "decoder")}
    state |= origin()[1] | changes
    state = {name: array for name, array in state.items() if array is not None}
    with pytest.raises(ValueError, match=message):
        opennmt.load_model(state, {"weight": table, "bias": table[:, 0]}, H)


def test_a_state_of_another_origin_is_refused():
    with pytest.raises(ValueError, match="Pass the states of an OpenNMT-py model"):
        opennmt.load_model({}, {}, H)
