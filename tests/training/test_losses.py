"""`SequenceCrossentropy`: loss and gradient against NumPy, and refused arguments.

Shapes: B = 3, T = 5, V = 7.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.training import losses
from keras_transformer.training.losses import SequenceCrossentropy, token_crossentropy

LABELS = np.array([[1, 6, 2, 0, 0], [3, 0, 0, 0, 0], [5, 4, 3, 2, 1]], "int32")
EPSILON = 0.1


def logits(scale=3.0):
    return (np.random.default_rng(11).normal(size=(3, 5, 7)) * scale).astype("float32")


def reference(z, labels, epsilon, weights=1.0):
    """Returns loss and gradient in float64, from the definition."""
    z = z.astype("float64")
    weights = (labels != 0) * weights
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    q = np.eye(7)[labels] * (1 - epsilon) + epsilon / 7
    loss = -(q * log_p).sum(-1)
    gradient = (np.exp(log_p) - q) * weights[..., None]
    return (loss * weights).sum() / weights.sum(), gradient / weights.sum()


def value_and_gradient(loss, labels, z, sample_weight=None):
    """Returns arrays, on TensorFlow and JAX."""
    if keras.backend.backend() == "jax":
        import jax

        value = jax.value_and_grad(lambda z: loss(labels, z, sample_weight))
        return [np.asarray(part) for part in jax.jit(value)(z)]
    import tensorflow as tf

    @tf.function
    def run(z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = loss(labels, z, sample_weight)
        return value, tape.gradient(value, z)

    return [part.numpy() for part in run(tf.constant(z))]


RANDOM = np.random.default_rng(13)
WEIGHTS = [
    None,
    *(RANDOM.uniform(0.5, 2, shape).astype("float32") for shape in ((3,), (3, 1), (3, 5))),
    np.array([-1.0, 3.0, 2.0], "float32"),  # negative ones count in the sum and in the divisor
]


@pytest.mark.full("0.1-(3,)", "0.1-none", "0.0-(3,)", "0.0-none")
@pytest.mark.numeric
@pytest.mark.parametrize("weights", WEIGHTS, ids=["none", "(3,)", "(3, 1)", "(3, 5)", "negative"])
@pytest.mark.parametrize("epsilon", [0.0, EPSILON])
def test_value_and_gradient_equal_the_definition(epsilon, weights):
    value, gradient = value_and_gradient(SequenceCrossentropy(epsilon), LABELS, logits(), weights)
    wide = 1.0 if weights is None else weights.reshape(3, -1)
    expected, expected_gradient = reference(logits(), LABELS, epsilon, wide)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=5e-7)


@pytest.mark.numeric
def test_a_batch_of_padding_gives_zero_loss_and_zero_gradient():
    found = value_and_gradient(SequenceCrossentropy(EPSILON), 0 * LABELS, logits())
    assert not any(part.any() for part in found)


@pytest.mark.full("0.0-inf", "0.0-nan", "0.1--inf", "0.0-1e+30")
@pytest.mark.numeric
@pytest.mark.parametrize("wild_logit", [1e30, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("epsilon", [0.0, EPSILON])
def test_logits_of_padding_do_not_matter(epsilon, wild_logit):
    wild = logits()
    wild[LABELS == 0] = wild_logit
    value, gradient = value_and_gradient(SequenceCrossentropy(epsilon), LABELS, wild)
    plain, plain_gradient = value_and_gradient(SequenceCrossentropy(epsilon), LABELS, logits())
    assert value == plain
    np.testing.assert_array_equal(gradient, plain_gradient)


@pytest.mark.numeric
def test_classes_that_are_masked_out_by_minus_infinity_have_no_probability():
    masked, finite = logits(), logits()
    out = np.eye(7, dtype=bool)[(LABELS + 3) % 7]  # one class of each token, never its label
    masked[out], finite[out] = -np.inf, -1e4
    value, gradient = value_and_gradient(SequenceCrossentropy(), LABELS, masked)
    expected, expected_gradient = reference(finite, LABELS, 0.0)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=2e-7)


@pytest.mark.numeric
def test_large_logits_neither_overflow_nor_vanish():
    z = logits(scale=3000.0)
    value, gradient = value_and_gradient(SequenceCrossentropy(), LABELS, z)
    real = LABELS != 0
    label_logit = np.take_along_axis(z, LABELS[..., None], -1)[..., 0]
    # At this scale, the largest logit equals the log-sum-exp.
    np.testing.assert_allclose(value, (z.max(-1) - label_logit)[real].mean(), rtol=1e-6)
    assert np.isfinite(gradient).all()


def test_low_precision_logits_are_computed_in_float32_and_a_keras_mask_is_ignored():
    z = ops.convert_to_tensor(logits().astype("float16"))
    expected, _ = reference(logits().astype("float16"), LABELS, EPSILON)
    for mask in (None, ops.zeros((3, 5), "bool")):
        if mask is not None:
            z._keras_mask = mask
        value = SequenceCrossentropy(EPSILON)(LABELS, z)
        assert ops.dtype(value) == "float32"
        np.testing.assert_allclose(float(value), expected, rtol=1e-6)


def test_another_id_can_be_the_padding():
    moved = np.where(LABELS == 0, 6, np.where(LABELS == 6, 0, LABELS))
    swapped = logits()[..., [6, 1, 2, 3, 4, 5, 0]]
    ours = float(SequenceCrossentropy(EPSILON, pad_id=6)(moved, swapped))
    np.testing.assert_allclose(ours, float(SequenceCrossentropy(EPSILON)(LABELS, logits())))


def test_batch_weight_is_the_divisor():
    loss = SequenceCrossentropy()
    assert float(loss.batch_weight(LABELS)) == 9
    assert float(loss.batch_weight(LABELS, np.array([2.0, 3.0, 5.0]))) == 3 * 2 + 3 + 5 * 5


def test_xla_compiles_the_gradient_without_a_scatter(monkeypatch):
    tf = pytest.importorskip("tensorflow")
    plain = value_and_gradient(SequenceCrossentropy(EPSILON), LABELS, logits())
    monkeypatch.setattr(losses, "xla_compiles", lambda: True)
    fused = value_and_gradient(SequenceCrossentropy(EPSILON), LABELS, logits())
    for one, other in zip(plain, fused, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    labels = np.arange(5, dtype="int32")

    def gradient(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = tf.reduce_sum(token_crossentropy(logits, labels, EPSILON))
        return tape.gradient(loss, logits)

    compiled = tf.function(gradient, jit_compile=True, autograph=False)
    read = compiled.experimental_get_compiler_ir(tf.ones((5, 7)))
    program = read(stage="optimized_hlo")
    assert "f32[5,7]" in program and "scatter" not in program


FITS = r"Labels must have shape \(B, T\)"


@pytest.mark.parametrize(
    ("shape", "weights", "message"),
    [
        ((3, 7), None, FITS),
        ((3, 4, 7), None, FITS),
        ((2, 5, 7), None, FITS),
        ((3, 5, 7), np.ones((3, 5, 1)), "one weight per sentence"),
    ],
)
def test_wrong_shapes_are_refused(shape, weights, message):
    with pytest.raises(ValueError, match=message):
        SequenceCrossentropy()(LABELS, np.zeros(shape, "float32"), weights)
