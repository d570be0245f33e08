"""`assign_weights` assigns all weights by path, or none."""

import keras
import numpy as np
import pytest
from helpers.checks import normal, weights_of

import keras_transformer as kt
from keras_transformer.importers import assign_weights

SIZES = {"num_layers": 1, "d_model": 6, "num_heads": 2, "d_ff": 7}


def encoder():
    return kt.TransformerEncoder(11, **SIZES)


def arrays_of(model):
    return {w.path: normal(*w.shape, seed=i) for i, w in enumerate(model.weights)}


def test_every_weight_is_assigned():
    model = encoder()
    arrays = arrays_of(model)
    assign_weights(model, arrays)
    for path, array in weights_of(model).items():
        np.testing.assert_array_equal(array, arrays[path].astype("float64"))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda arrays: arrays.pop("token_embedding/embeddings"), "embeddings is missing"),
        (lambda arrays: arrays.update(lm_head=np.zeros(3)), "lm_head is left over"),
        (
            lambda arrays: arrays.update({"token_embedding/embeddings": np.zeros((6, 11))}),
            r"token_embedding/embeddings has shape \(6, 11\), not \(11, 6\)",
        ),
    ],
)
def test_errors_name_the_array_and_nothing_is_changed(change, message):
    model = encoder()
    arrays, before = arrays_of(model), weights_of(model)
    change(arrays)
    with pytest.raises(ValueError, match=message):
        assign_weights(model, arrays)
    for path, array in weights_of(model).items():
        np.testing.assert_array_equal(array, before[path])


def test_paths_that_two_weights_share_are_refused():
    ends = keras.Input((6,))
    parts = [
        keras.Model(ends, keras.layers.Dense(6, name="same")(ends), name=name)
        for name in ("first", "second")
    ]
    both = keras.Model(ends, parts[1](parts[0](ends)))
    with pytest.raises(ValueError, match="share the paths.*same/kernel"):
        assign_weights(both, {})
