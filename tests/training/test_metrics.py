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


@pytest.mark.numeric
def test_accuracy_and_perplexity_are_means_over_tokens_without_padding():
    accuracy, perplexity = TokenAccuracy(), Perplexity()
    for metric in (accuracy, perplexity):
        metric.update_state(LABELS, logits())
    assert float(accuracy.result()) == pytest.approx(3 / 5)
    # A guess has probability e^2 / (e^2 + 4), any other token 1 / (e^2 + 4).
    total = np.exp(2) + 4
    expected = np.exp(-(3 * np.log(np.exp(2) / total) + 2 * np.log(1 / total)) / 5)
    assert float(perplexity.result()) == pytest.approx(expected, rel=1e-6)
    loss = float(SequenceCrossentropy()(LABELS, logits()))
    assert float(perplexity.result()) == pytest.approx(np.exp(loss), rel=1e-6)


@pytest.mark.numeric
@pytest.mark.parametrize("make", [TokenAccuracy, Perplexity])
def test_ragged_batches_give_the_result_of_one_batch(make):
    rng = np.random.default_rng(17)
    labels = rng.integers(0, 5, (7, 3)).astype("int32")
    z = rng.normal(size=(7, 3, 5)).astype("float32")
    whole, parts = make(), make()
    whole.update_state(labels, z)
    for begin, end in ((0, 1), (1, 5), (5, 7)):
        parts.update_state(labels[begin:end], z[begin:end])
    assert float(parts.result()) == pytest.approx(float(whole.result()), rel=1e-6)


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


@pytest.mark.parametrize("weights", [[-1.0, 3.0], [1.0, 0.0]])
@pytest.mark.parametrize("make", [TokenAccuracy, Perplexity])
def test_sample_weights_weight_the_sum_and_the_divisor(make, weights):
    weights = np.array(weights)
    metric = make()
    metric.update_state(LABELS, logits(), weights)
    parts = [make(), make()]
    for row, part in enumerate(parts):
        part.update_state(LABELS[row : row + 1], logits()[row : row + 1])
    totals, counts = ([float(getattr(p, name)) for p in parts] for name in ("total", "count"))
    expected = np.dot(weights, totals) / np.dot(weights, counts)
    expected = expected if make is TokenAccuracy else np.exp(expected)
    assert float(metric.result()) == pytest.approx(expected, rel=1e-6)


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
