"""An ensemble scores, generates, trains and exports as the mean of its members' probabilities."""

import keras
import numpy as np
import pytest
from helpers import exports
from keras import ops

import keras_transformer as kt
from keras_transformer.export import export_onnx


def member(kind="translate", seed=0, **arguments):
    model = exports.tiny(kind, vocab_size=29, num_layers=1, **arguments)
    random = np.random.default_rng(seed)
    model.set_weights([w + random.normal(0, 0.3, w.shape) for w in model.get_weights()])
    return model


def ensemble(kind="translate"):
    return kt.Ensemble([member(kind, 1), member(kind, 2, d_model=16)])


SOURCE = exports.source(4, 6, vocab_size=29)
INPUTS = {"source_ids": SOURCE, "target_ids": exports.source(4, 5, vocab_size=29, seed=2)}


def test_probabilities_are_the_mean_of_the_members():
    model = ensemble()
    expected = np.mean([ops.softmax(each(INPUTS)) for each in model.models], axis=0)
    np.testing.assert_allclose(ops.softmax(model(INPUTS)), expected, rtol=1e-5)
    np.testing.assert_allclose(ops.exp(model(INPUTS)).numpy().sum(-1), 1, rtol=1e-5)


@pytest.mark.full
def test_one_file_holds_the_ensemble(tmp_path):
    model, search = ensemble(), kt.BeamSearch(3)
    export_onnx(model, tmp_path / "out", search=search, max_length=8, verbose=False)
    ids, scores = exports.session(tmp_path / "out").run(None, {"source_ids": SOURCE})[:2]
    expected = search(model, SOURCE, 8)
    np.testing.assert_array_equal(ids, expected.ids)
    np.testing.assert_allclose(scores, expected.scores, rtol=1e-4)


@pytest.mark.full
def test_an_ensemble_trains_and_can_be_saved(tmp_path):
    model = ensemble()
    before = model.get_weights()
    model.compile("adam", kt.SequenceCrossentropy())
    model.fit(INPUTS, INPUTS["target_ids"], verbose=0)
    assert all(np.abs(x - y).max() > 0 for x, y in zip(before, model.get_weights(), strict=True))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(INPUTS), model(INPUTS), atol=1e-6)
    assert [each.d_model for each in loaded.models] == [12, 16]


@pytest.mark.full
def test_a_head_on_an_ensemble_can_be_saved(tmp_path):
    joined = ensemble()
    model = keras.Model(joined.input, keras.layers.Dense(2)(joined.output))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(INPUTS), model(INPUTS), atol=1e-6)


def test_an_ensemble_made_frozen_stays_frozen_inside_another_model():
    joined = kt.Ensemble([member("generate"), member("generate")], trainable=False)
    model = keras.Model(joined.input, keras.layers.Dense(2)(joined(joined.input)))
    assert len(joined.weights) > 2 and len(model.trainable_weights) == 2


@pytest.mark.full
@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda one: kt.Ensemble([one, exports.tiny(vocab_size=31)]),
            ValueError,
            "Train them with the same tokenizer",
        ),
        (lambda one: kt.Ensemble([one, member("generate")]), ValueError, "same inputs"),
        (lambda one: kt.Ensemble([one]), ValueError, "at least two models, but got 1"),
        (
            lambda one: kt.Ensemble([one, keras.Sequential()]),
            TypeError,
            "but Sequential was passed",
        ),
        (
            lambda one: kt.GreedySearch(alignments=True)(kt.Ensemble([one, one]), SOURCE),
            ValueError,
            "alignments",
        ),
        (
            lambda one: export_onnx(ensemble(), "out", search=kt.GreedySearch(), layout="steps"),
            TypeError,
            "layout='steps' has caches and steps of fixed shapes",
        ),
    ],
)
def test_other_members_and_uses_are_refused(call, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        call(member())
