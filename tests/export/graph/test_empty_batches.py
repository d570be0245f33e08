"""Empty batches give empty results for all kinds of layers and searches."""

import numpy as np
import pytest
from helpers.exports import (
    VOCAB,
    built,
    check,
    check_export,
    counts,
    fused,
    numbers,
    operators,
    session,
    tiny,
)
from helpers.tiers import nightly
from keras import layers, ops

import keras_transformer as kt
from keras_transformer.export import export_onnx
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime.session import open_session
from keras_transformer.search import BeamSearch, GreedySearch, Sampling


def attention(x, value_dim=None, causal=True):
    layer = layers.MultiHeadAttention(2, 3, value_dim=value_dim)
    return layer(x, x, use_causal_mask=causal)


def decoder(x):
    masked = layers.Masking()(x)
    return kt.DecoderBlock(2, 11)(masked, masked)


MODELS = {
    "causal": attention,
    "values": lambda x: attention(x, value_dim=5, causal=False),
    "repeat": lambda x: ops.repeat(x, 2, axis=1),
    "upsampling": layers.UpSampling1D(2),
    "reshape": layers.Reshape((-1, 2)),
    "flatten": lambda x: ops.quantile(layers.Flatten()(x), 0.3, axis=-1),
    "masking": lambda x: kt.EncoderBlock(2, 11)(layers.Masking()(x)),
    "decoder": decoder,
    "additive": lambda x: kt.AdditiveAttention(7)(x, x),
    "mean": lambda x: ops.mean(x, axis=-1),
    "angles": lambda x: ops.sum(ops.arctan(ops.round(ops.arcsinh(ops.tanh(x)))), axis=-1),
}


@pytest.mark.full
def test_results_equal_keras():
    model = built(lambda x: {name: build(x) for name, build in MODELS.items()}, None, 4)
    made = fused(model)
    assert operators(made)["Einsum"] == 0  # it would crash the process
    x = numbers(3, 5, 4)
    x[1, 3:] = 0  # padding
    x[2] = 0
    for batch in (0, 1, 3):
        check(model, made, x=x[:batch])


def lstms(x):
    """Applies stacked and bidirectional LSTMs, with states passed and returned."""
    one, hidden, cell = layers.LSTM(3, return_state=True, return_sequences=True)(x)
    two = layers.LSTM(3)(one, initial_state=[hidden, cell])
    both = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(one)
    return {"hidden": hidden, "cell": cell, "two": two, "both": both}


@pytest.mark.full("plain attention", "LSTM")
@pytest.mark.parametrize(
    "function, length, fuse",
    [
        (lstms, None, True),
        pytest.param(lstms, None, False, marks=pytest.mark.full),
        (lambda x: {"y": attention(x), "z": ops.repeat(x, 2, axis=1)}, None, False),
        # a product behind a transpose
        (lambda x: {"y": layers.Dense(3)(ops.swapaxes(x, 1, 2))}, 7, True),
    ],
    ids=["LSTM", "plain LSTM", "plain attention", "transpose"],
)
def test_an_exported_file_serves_an_empty_batch(tmp_path, function, length, fuse):
    model = built(function, length, 4)
    x = numbers(3, 7, 4)
    check_export(model, tmp_path / "out", inputs={"x": x}, fuse=fuse)
    expected = model(x)
    for batch in (1, 0):  # Keras itself computes no empty batch of an LSTM
        found = session(tmp_path / "out").run(list(expected), {"x": x[:batch]})
        for rows, array in zip(found, expected.values(), strict=True):
            np.testing.assert_allclose(rows, array[:batch], rtol=1e-4, atol=1e-5)


def test_an_lstm_has_at_most_ten_nodes(tmp_path):
    """The export leaves out zero initial states, which cost more nodes than an empty batch."""
    model = built(layers.LSTM(3), None, 4)
    found = counts(check_export(model, tmp_path / "out", inputs={"x": numbers(3, 5, 4)}))
    assert found["LSTM"] == 1 and found["Expand"] == 0 and found.total() <= 10


SHORT = kt.Shortlist(np.full((VOCAB, 1), 7), np.arange(VOCAB) < 5)


@pytest.mark.full
@pytest.mark.parametrize(
    "search, options",
    [
        nightly(Sampling(), {"layout": "steps"}),
        nightly(GreedySearch(), {}),
        (BeamSearch(2, constraints=[kt.RepetitionPenalty()]), {"layout": "steps"}),
        (BeamSearch(2), {"shortlist": SHORT}),
    ],
)
def test_searches_serve_empty_batches_and_empty_sources(tmp_path, search, options):
    kind = "translate" if isinstance(search, BeamSearch) else "generate"
    model = tiny(kind, num_layers=1)
    export_onnx(model, tmp_path / "out", search=search, max_length=5, verbose=False, **options)
    opened = open_session(read_artefact(tmp_path / "out"))
    seed = {"seed": np.array(3, "int32")} if isinstance(search, Sampling) else {}
    for shape in ((0, 4), (0, 0), (2, 0)):
        ids, scores = opened.run(None, {"source_ids": np.zeros(shape, "int32"), **seed})
        assert ids.shape[0] == scores.shape[0] == shape[0]
        if not options.get("shortlist"):
            expected = search(model, np.zeros(shape, "int32"), 5, **seed)
            np.testing.assert_array_equal(ids, expected.ids)
