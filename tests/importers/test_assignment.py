"""`assign_weights` assigns all weights by path, or none."""

import keras
import numpy as np
import pytest
from helpers.checks import normal, weights_of

import keras_transformer as kt
from keras_transformer.importers import assign_weights

SIZES = {"num_layers": 1, "d_model": 6, "num_heads": 2, "d_ff": 7}


@pytest.fixture
def model():
    return kt.TransformerEncoder(11, **SIZES)


def arrays_of(model):
    return {w.path: normal(*w.shape, seed=i) for i, w in enumerate(model.weights)}


def test_every_weight_is_assigned(model):
    arrays = arrays_of(model)
    assign_weights(model, arrays)
    np.testing.assert_equal(weights_of(model), arrays)


EMBEDDINGS = "token_embedding/embeddings"


@pytest.mark.parametrize(
    "lost, more, message",
    [
        ([EMBEDDINGS], {}, "embeddings is missing"),
        ([], {"lm_head": np.zeros(3)}, "lm_head is left over"),
        ([], {EMBEDDINGS: np.zeros((6, 11))}, rf"{EMBEDDINGS} has shape \(6, 11\), not \(11, 6\)"),
    ],
)
def test_errors_name_the_array_and_nothing_is_changed(lost, more, message, model):
    before = weights_of(model)
    arrays = {path: x for path, x in arrays_of(model).items() if path not in lost} | more
    with pytest.raises(ValueError, match=message):
        assign_weights(model, arrays)
    np.testing.assert_equal(weights_of(model), before)


def test_paths_that_two_weights_share_are_refused():
    ends = keras.Input((6,))
    parts = [
        keras.Model(ends, keras.layers.Dense(6, name="same")(ends), name=name)
        for name in ("first", "second")
    ]
    both = keras.Model(ends, parts[1](parts[0](ends)))
    with pytest.raises(ValueError, match="share the paths.*same/kernel"):
        assign_weights(both, {})
