"""The loss and the metric for classes and tags: labels of -1 are ignored.

Shapes: B = 4, T = 3, V = 5 classes.
"""

import keras
import numpy as np
import pytest

from keras_transformer.training.losses import SequenceCrossentropy
from keras_transformer.training.metrics import TokenAccuracy

CLASSES = np.array([1, -1, 4, 0], "int32")  # (B,)
TAGS = np.array([[1, -1, 4], [-1, -1, -1], [0, 2, -1], [3, 3, 3]], "int32")  # (B, T)


def logits(*shape):
    return np.random.default_rng(3).normal(size=shape).astype("float32")


@pytest.mark.parametrize(("labels", "shape"), [(CLASSES, (4, 5)), (TAGS, (4, 3, 5))])
def test_loss_and_accuracy_leave_out_ignored_labels(labels, shape):
    z = logits(*shape)
    kept = labels != -1
    expected = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels[kept], z[kept])
    loss = SequenceCrossentropy(pad_id=-1)(labels, z)
    np.testing.assert_allclose(np.asarray(loss), np.asarray(expected), rtol=1e-6)
    accuracy = TokenAccuracy(pad_id=-1)
    accuracy.update_state(labels, z)
    expected = (z.argmax(-1) == labels)[kept].mean()
    np.testing.assert_allclose(np.asarray(accuracy.result()), expected, rtol=1e-6)


@pytest.mark.parametrize("axis", [(), (1,)], ids=["(B,)", "(B, 1)"])  # Keras adds an axis
def test_classes_take_one_weight_per_row(axis):
    z, weights = logits(4, 5), np.array([2.0, 9.0, 0.0, 1.0], "float32")
    loss = SequenceCrossentropy(pad_id=-1)
    losses = np.asarray(loss.call(CLASSES, z))
    assert losses.shape == (4,)
    found = loss(CLASSES.reshape(4, *axis), z, weights.reshape(4, *axis))
    np.testing.assert_allclose(np.asarray(found), (2 * losses[0] + losses[3]) / 3, rtol=1e-6)
    assert float(loss.batch_weight(CLASSES, weights)) == 3


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_positions_of_a_row_may_be_the_classes(smoothing):
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, keras.layers.Embedding(9, 1)(ids)[..., 0])
    model.compile("sgd", SequenceCrossentropy(smoothing, pad_id=-1))
    labels = np.array([0, 2, -1, 1])
    kept = labels >= 0
    for width in (3, 6):
        rows = np.random.default_rng(width).integers(0, 9, (4, width))
        z = np.asarray(model(rows), "float64")[kept]
        log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
        q = np.eye(width)[labels[kept]] * (1 - smoothing) + smoothing / width
        loss = model.train_on_batch(rows, labels)
        np.testing.assert_allclose(loss, -(q * log_p).sum(-1).mean(), rtol=1e-5)
    assert model.evaluate(rows, labels, verbose=0) < loss


def test_two_outputs_have_a_loss_each():
    x = keras.Input((4,))
    outputs = {name: keras.layers.Dense(3, name=name)(x) for name in ("start", "end")}
    model = keras.Model(x, outputs)
    loss = {name: SequenceCrossentropy(pad_id=-1) for name in outputs}
    model.compile("sgd", loss)
    labels = {"start": np.array([0, -1]), "end": np.array([2, -1])}
    rows = logits(2, 4)
    both = model.evaluate(rows, labels, verbose=0)
    first = {name: value[:1] for name, value in labels.items()}
    alone = model.evaluate(rows[:1], first, verbose=0)
    both, alone = (value[0] if isinstance(value, list) else value for value in (both, alone))
    np.testing.assert_allclose(both, alone, rtol=1e-6)
