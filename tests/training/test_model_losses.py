"""R-Drop and distillation: values and gradients by their formulas, and training with `fit`.

Shapes: B = 3, T = 5, V = 7.
"""

import keras
import numpy as np
import pytest
from helpers import exports

import keras_transformer as kt

tf = pytest.importorskip("tensorflow")

LABELS = np.array([[1, 6, 2, 0, 0], [3, 0, 0, 0, 0], [5, 4, 3, 2, 1]], "int32")
WEIGHTS = np.array([0.5, 2.0, 1.0], "float32")


def logits(seed):
    return np.random.default_rng(seed).normal(size=(3, 5, 7)).astype("float32") * 3


def log_softmax(z):
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def mean(losses):
    """Returns the weighted mean over tokens except padding."""
    weights = (LABELS != 0) * WEIGHTS[:, None]
    return (losses * weights).sum() / weights.sum()


def crossentropy(z, epsilon):
    target = np.eye(7)[LABELS] * (1 - epsilon) + epsilon / 7
    return mean(-(target * log_softmax(z)).sum(-1))


def divergence(z_q, z_p):
    log_q, log_p = log_softmax(z_q), log_softmax(z_p)
    return mean((np.exp(log_q) * (log_q - log_p)).sum(-1))


def r_drop(one, other):
    both = divergence(one, other) + divergence(other, one)
    return crossentropy(one, 0.1) + crossentropy(other, 0.1) + 3.0 / 2 * both


def distilled(student, teacher):
    return 0.75 * crossentropy(student, 0.1) + 0.25 * divergence(teacher, student)


def value_and_gradients(loss, one, other):
    """Returns loss and gradients; `other` comes from the second pass or the teacher."""
    one, other = tf.constant(one), tf.constant(other)

    def call(x, training):
        return other

    if isinstance(loss, kt.Distillation):
        loss.teacher = call
    with tf.GradientTape() as tape:
        tape.watch([one, other])
        value = loss.labels_loss(LABELS, one, WEIGHTS) + loss.more(call, None, LABELS, one, WEIGHTS)
    return float(value), tape.gradient(value, [one, other])


def differences(function, *arrays):
    """Returns central differences by each entry of the first array."""
    first, *rest = (array.astype("float64") for array in arrays)
    result, step = np.zeros_like(first), 1e-5
    for index in np.ndindex(first.shape):
        change = np.zeros_like(first)
        change[index] = step
        result[index] = function(first + change, *rest) - function(first - change, *rest)
    return result / (2 * step)


def test_values_and_gradients_equal_the_formulas():
    one, other = logits(1), logits(2)
    loss = kt.RDrop(kt.SequenceCrossentropy(0.1), alpha=3.0)
    value, (first, second) = value_and_gradients(loss, one, other)
    assert value == pytest.approx(r_drop(one, other), rel=1e-5)
    np.testing.assert_allclose(first, differences(r_drop, one, other), atol=1e-5)
    np.testing.assert_allclose(second, differences(r_drop, other, one), atol=1e-5)
    loss = kt.Distillation(None, kt.SequenceCrossentropy(0.1), weight=0.25)
    value, (first, second) = value_and_gradients(loss, one, other)
    assert value == pytest.approx(distilled(one, other), rel=1e-5)
    np.testing.assert_allclose(first, differences(distilled, one, other), atol=1e-5)
    assert second is None  # the teacher has no gradient


@pytest.mark.parametrize("loss", [kt.RDrop(), kt.Distillation()])
def test_padding_and_forbidden_ids_may_have_any_logits(loss):
    one, other = logits(1), logits(2)
    one[..., 0] = other[..., 0] = -np.inf
    value, (gradient, _) = value_and_gradients(loss, one, other)
    assert np.isfinite(value) and np.isfinite(gradient).all() and not np.any(gradient[..., 0])
    one[LABELS == 0], other[LABELS == 0] = np.nan, -np.inf
    again, (same, _) = value_and_gradients(loss, one, other)
    assert again == value
    np.testing.assert_array_equal(same, gradient)


@pytest.mark.full
def test_fit_adds_the_second_pass_and_evaluate_does_not(tmp_path):
    ids = exports.source(rows=6)
    model = exports.tiny("generate", num_layers=1, dropout=0.5)
    model.compile(keras.optimizers.SGD(0.0), kt.RDrop(alpha=2.0))
    trained = model.fit(ids, ids, verbose=0).history["loss"][0]
    alone = model.evaluate(ids, ids, verbose=0)
    assert trained > 1.8 * alone
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.loss.alpha == 2.0
    assert loaded.evaluate(ids, ids, verbose=0) == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("losses", [kt.RDrop(), [kt.RDrop()], kt.Distillation(exports.tiny)])
def test_models_that_ignore_the_added_loss_are_refused(losses):
    ids = exports.source(rows=6)
    theirs = keras.Sequential([keras.Input((None,)), keras.layers.Embedding(11, 11)])
    model = exports.tiny("generate") if isinstance(losses, list) else theirs
    model.compile("sgd", losses)
    with pytest.raises(ValueError, match="needs a model of this package"):
        model.fit(ids, ids, verbose=0)
    prepared = kt.training.prepare(model)
    with pytest.raises(ValueError, match="must be its only loss"):
        prepared.fit(ids, ids, verbose=0)


@pytest.mark.full
def test_a_student_learns_from_its_teacher(tmp_path):
    ids = exports.source(rows=6)
    teacher, student = (exports.tiny("generate", num_layers=n) for n in (2, 1))
    before = teacher.get_weights()
    student.compile(keras.optimizers.Adam(0.01), kt.Distillation(teacher))
    first = student.evaluate(ids, ids, verbose=0)
    student.fit(ids, ids, epochs=30, verbose=0)
    assert student.evaluate(ids, ids, verbose=0) < first / 4
    for one, other in zip(before, teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    student.save(tmp_path / "student.keras")
    loaded = keras.models.load_model(tmp_path / "student.keras")
    np.testing.assert_allclose(loaded(ids), student(ids), atol=1e-6)
    with pytest.raises(ValueError, match="has no teacher"):
        loaded.fit(ids, ids, verbose=0)


def test_loss_weights_scale_the_whole_loss():
    ids = exports.source(rows=6)
    teacher, student = (exports.tiny("generate", num_layers=n) for n in (2, 1))
    values = []
    for scale in (1.0, 0.25):
        student.compile("sgd", kt.Distillation(teacher, weight=0.5), loss_weights=scale)
        values.append(student.evaluate(ids, ids, verbose=0))
    assert values[1] == pytest.approx(values[0] / 4, rel=1e-5)


def test_another_loss_is_refused():
    with pytest.raises(TypeError, match="must be a SequenceCrossentropy"):
        kt.RDrop("mse")
