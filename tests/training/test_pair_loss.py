"""The in-batch softmax in both directions: its value, rows of padding, weights."""

import keras
import numpy as np
import pytest

from keras_transformer.training.losses import PairCrossentropy


def scores(size=4):
    return np.random.default_rng(5).normal(size=(size, size)).astype("float32") * 3


def reference(z):
    """Returns the mean over both directions, in float64."""
    z = z.astype("float64")
    each = [z - np.log(np.exp(z).sum(axis, keepdims=True)) for axis in (0, 1)]
    return -np.mean([np.diagonal(log_p) for log_p in each])


@pytest.mark.numeric
def test_the_value_equals_the_definition_with_and_without_padding():
    loss, padded = PairCrossentropy(), np.pad(scores(), (0, 2), constant_values=50.0)
    for labels, z in ((np.arange(4), scores()), ([0, 1, 2, 3, -1, -1], padded)):
        np.testing.assert_allclose(np.asarray(loss(labels, z)), reference(scores()), rtol=1e-6)
        assert float(loss.batch_weight(labels)) == 4
    assert float(loss([-1, -1], scores(2))) == 0


@pytest.mark.numeric
def test_pairs_are_weighted():
    z = scores(2)
    log_p = [z - np.log(np.exp(z).sum(axis, keepdims=True)) for axis in (0, 1)]
    first, second = -np.mean([np.diagonal(each) for each in log_p], axis=0)
    value = PairCrossentropy()([0, 1], z, np.array([3.0, 1.0], "float32"))
    np.testing.assert_allclose(np.asarray(value), (3 * first + second) / 4, rtol=1e-5)


def test_scores_must_be_square():
    with pytest.raises(ValueError, match=r"shape \(B, B\), but the shape is \(4, 3\)"):
        PairCrossentropy()(np.arange(4), scores()[:, :3])


def test_the_number_of_pairs_may_be_known_at_run_time_only():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.ops.matmul(inputs, keras.ops.transpose(inputs)))
    model.compile("sgd", PairCrossentropy())
    rows = np.random.default_rng(1).normal(size=(3, 2)).astype("float32")
    expected = reference(rows @ rows.T)
    assert model.evaluate(rows, np.arange(3), verbose=0) == pytest.approx(expected, rel=1e-5)
