"""fairseq models against models of `transformers` that descend from fairseq.

M2M100 has its pre-norm, sinusoids and special ids; Marian has its post-norm.
Shapes: B batch, S source length, T target length, V our vocabulary.
"""

import numpy as np
import pytest
from helpers import published
from helpers.published import torch, transformers

from keras_transformer.importers import fairseq
from keras_transformer.importers.mapping import NEVER, row_order

SIZES = {
    "vocab_size": 37,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 29,
    "activation_function": "relu",
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "bos_token_id": 0,
}


def m2m100():
    config = transformers.M2M100Config(**SIZES, scale_embedding=True)
    model = published.drawn(transformers.M2M100ForConditionalGeneration(config))
    return model, state_of(model)


def marian(scale_embedding, **options):
    """Makes a post-norm model. fairseq has two unused rows before its positions."""
    config = transformers.MarianConfig(**SIZES, scale_embedding=scale_embedding, **options)
    model = published.drawn(transformers.MarianMTModel(config))
    model.final_logits_bias.zero_()
    state = state_of(model)
    for side in ("encoder", "decoder"):
        name = f"{side}.embed_positions.weight"
        state[name] = np.concatenate([np.full((2, 16), 9.0, "float32"), state[name]])
    return model, state


def state_of(model):
    state = {name: weight.numpy() for name, weight in model.state_dict().items()}
    state = {name.removeprefix("model."): weight for name, weight in state.items()}
    state["decoder.output_projection.weight"] = state.pop("lm_head.weight")
    for name in ("shared.weight", "final_logits_bias"):
        state.pop(name, None)
    return {**state, "encoder.version": np.array([3.0])}


MODELS = {
    "pre-norm, sinusoids": lambda: (*m2m100(), {}),
    "post-norm, learned positions": lambda: (*marian(True), {}),
    "no scale": lambda: (*marian(False), {"scale_embedding": False}),
    "two vocabularies": lambda: (
        *marian(True, decoder_vocab_size=41, share_encoder_decoder_embeddings=False),
        {},
    ),
    "own output": lambda: (
        *marian(
            True,
            decoder_vocab_size=41,
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=False,
        ),
        {},
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_logits_equal_transformers(make):
    origin, state, options = make()
    model = fairseq.load_model(state, 2, max_length=29, **options)
    size = len(state["decoder.embed_tokens.weight"])
    orders = row_order(37, *fairseq.SPECIAL), row_order(size, *fairseq.SPECIAL)
    source = published.ids(len(orders[0]), rows=7)
    target = published.ids(len(orders[1]), rows=7, end=False, seed=1)
    target[:, 0] = 2
    with torch.no_grad():
        expected = origin(
            input_ids=torch.where(
                published.mask(source) > 0, published.theirs(orders[0], source), 1
            ),
            attention_mask=published.mask(source),
            decoder_input_ids=published.theirs(orders[1], target),
        ).logits.numpy()
    logits = np.asarray(model({"source_ids": source, "target_ids": target}))
    counted = [row for row in range(logits.shape[2]) if logits[0, 0, row] > NEVER / 2]
    assert sorted(orders[1][counted]) == list(range(size))
    expected = expected[..., orders[1][counted]]
    assert published.relative(logits[target > 0][:, counted], expected[target > 0]) <= 1e-5


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda state: state.pop("encoder.embed_tokens.weight"), "is missing or no matrix"),
        (lambda state: state.pop("encoder.layers.1.fc2.bias"), "layers.1.fc2.bias is missing"),
        (lambda state: state.update({"encoder.x": np.zeros(2)}), "encoder.x is left over"),
        (
            lambda state: state.update({"encoder.layers.1000000000000.x": np.zeros(2)}),
            "layers.1000000000000.x is left over",
        ),
    ],
)
def test_every_weight_is_checked(change, message):
    _, state = m2m100()
    change(state)
    with pytest.raises(ValueError, match=message):
        fairseq.load_model(state, 2)
