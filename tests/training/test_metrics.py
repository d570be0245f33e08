"""Token accuracy and perplexity: values, ragged batches, resets, weights and padding."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.training.losses import SequenceCrossentropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy

# B = 2, T = 3, V = 5. Of five tokens, the first, second and last are guessed right.
LABELS = np.array([[1, 4, 2], [3, 2, 0]], "int32")
GUESSES = np.array([[1, 4, 3], [1, 2, 0]])


def logits():
    return np.eye(5, dtype="float32")[GUESSES] * 2.0


def reference(labels, z, weights):
    """Returns accuracy and perplexity in float64, from the definition."""
    weights = (labels != 0) * (weights[:, None] if weights.ndim == 1 else weights)
    log_p = z - np.log(np.exp(z.astype("float64")).sum(-1, keepdims=True))
    of_label = np.take_along_axis(log_p, labels[..., None], -1)[..., 0]
    accuracy = np.average(z.argmax(-1) == labels, weights=weights)
    return accuracy, np.exp(-np.average(of_label, weights=weights))


@pytest.mark.numeric
@pytest.mark.parametrize("low, high, shape", [(1, 1, 7), (0, 2, 7), (-1, 3, 7), (0.5, 2, (7, 3))])
def test_metrics_of_ragged_batches_equal_the_definition(low, high, shape):
    """Negative weights count in the sum and in the divisor."""
    rng = np.random.default_rng(17)
    labels = rng.integers(0, 5, (7, 3)).astype("int32")
    z = rng.normal(size=(7, 3, 5)).astype("float32")
    weights = rng.uniform(low, high, shape).astype("float32")
    expected = reference(labels, z, weights)
    for metric, value in zip((TokenAccuracy(), Perplexity()), expected, strict=True):
        for part in (slice(0, 1), slice(1, 5), slice(5, 7)):
            given = [weights[part]] if low < high else []
            metric.update_state(labels[part], z[part], *given)
        assert float(metric.result()) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(("make", "nothing"), [(TokenAccuracy, 0.0), (Perplexity, 1.0)])
def test_a_reset_restores_the_result_without_tokens(make, nothing):
    metric = make()
    assert float(metric.result()) == nothing
    metric.update_state(np.zeros((2, 3), "int32"), logits())
    assert float(metric.result()) == nothing
    metric.update_state(LABELS, logits())
    assert float(metric.result()) != nothing
    metric.reset_state()
    assert float(metric.result()) == nothing


def test_more_tokens_than_float32_can_count_are_counted():
    if keras.backend.backend() == "jax":
        pytest.skip("JAX has no float64 by default")
    metric = TokenAccuracy()
    metric.total.assign(2.0**24)
    metric.count.assign(2.0**24)
    metric.update_state(np.array([[1]]), np.eye(5, dtype="float32")[[[1]]])
    assert float(ops.convert_to_numpy(metric.count)) == 2**24 + 1


@pytest.mark.parametrize("metric, best", [(TokenAccuracy(), max), (Perplexity(), min)])
def test_keras_callbacks_choose_the_direction_of_a_metric(metric, best):
    """They need no `mode`, as for Keras' metrics."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)])
    model.compile(keras.optimizers.SGD(1.0), SequenceCrossentropy(), weighted_metrics=[metric])
    x = np.random.default_rng(3).normal(size=(32, 4)).astype("float32")
    y = 1 + (x[:, 0] > 0).astype("int32") + 2 * (x[:, 1] > 0)
    stopping = keras.callbacks.EarlyStopping(metric.name, patience=9)
    history = model.fit(x, y, epochs=5, verbose=0, callbacks=[stopping]).history[metric.name]
    assert max(history) > min(history)
    assert stopping.best == best(history)


@pytest.mark.numeric
@pytest.mark.parametrize("wild_logit", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("make", [TokenAccuracy, Perplexity])
def test_logits_of_padding_do_not_matter(make, wild_logit):
    wild = logits()
    wild[LABELS == 0] = wild_logit
    metric, plain = make(), make()
    metric.update_state(LABELS, wild)
    plain.update_state(LABELS, logits())
    assert float(metric.result()) == float(plain.result())


@pytest.mark.numeric
def test_the_first_of_equal_logits_is_the_guess_as_in_keras():
    labels = np.array([[1, 2, 3, 4, 1]])
    z = np.zeros((1, 5, 5), "float32")
    z[0, 0, [1, 3]] = z[0, 1, [1, 2]] = 2.0  # the label comes first, and last
    z[0, 2, 4] = -np.inf  # the label ties with all before it
    metric, theirs = TokenAccuracy(pad_id=-1), keras.metrics.SparseCategoricalAccuracy()
    metric.update_state(labels, z)
    theirs.update_state(labels, z)
    assert float(metric.result()) == pytest.approx(1 / 5) == float(theirs.result())


def test_nan_logits_are_wrong_and_shapes_must_fit():
    metric = TokenAccuracy()
    metric.update_state(LABELS, np.full((2, 3, 5), np.nan, "float32"))
    assert float(metric.result()) == 0
    with pytest.raises(ValueError, match=r"Labels must have shape \(B, T\)"):
        metric.update_state(LABELS, logits()[:, :2])
