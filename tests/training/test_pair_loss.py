"""The in-batch softmax in both directions: its value, rows of padding, two replicas."""

import os

import keras
import numpy as np
import pytest
from support import processes

from keras_transformer.training.losses import PairCrossentropy


def scores(size=4):
    return np.random.default_rng(5).normal(size=(size, size)).astype("float32") * 3


def reference(z):
    """The mean over both directions, in float64."""
    z = z.astype("float64")
    each = [z - np.log(np.exp(z).sum(axis, keepdims=True)) for axis in (0, 1)]
    return -np.mean([np.diagonal(log_p) for log_p in each])


@pytest.mark.numeric
def test_the_value_is_that_of_the_definition():
    loss = PairCrossentropy()(np.arange(4), scores())
    np.testing.assert_allclose(np.asarray(loss), reference(scores()), rtol=1e-6)


@pytest.mark.numeric
def test_pairs_of_padding_change_nothing():
    padded = np.pad(scores(), (0, 2), constant_values=50.0)
    loss = PairCrossentropy()
    value = np.asarray(loss([0, 1, 2, 3, -1, -1], padded))
    np.testing.assert_allclose(value, reference(scores()), rtol=1e-6)
    assert float(loss.batch_weight([0, 1, 2, 3, -1, -1])) == 4
    assert float(loss([-1, -1], scores(2))) == 0


@pytest.mark.numeric
def test_pairs_are_weighted():
    loss = PairCrossentropy()
    z = scores(2)
    log_p = [z - np.log(np.exp(z).sum(axis, keepdims=True)) for axis in (0, 1)]
    first, second = -np.mean([np.diagonal(each) for each in log_p], axis=0)
    value = np.asarray(loss([0, 1], z, np.array([3.0, 1.0], "float32")))
    np.testing.assert_allclose(value, (3 * first + second) / 4, rtol=1e-5)


def test_scores_must_be_of_each_against_each():
    with pytest.raises(ValueError, match=r"shape \(B, B\), but the shape is \(4, 3\)"):
        PairCrossentropy()(np.arange(4), scores()[:, :3])


def test_a_saved_model_has_its_loss(tmp_path):
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.ops.matmul(inputs, keras.ops.transpose(inputs)))
    model.compile("sgd", PairCrossentropy())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    rows = np.random.default_rng(1).normal(size=(3, 2)).astype("float32")
    expected = reference(rows @ rows.T)
    assert isinstance(loaded.loss, PairCrossentropy)
    assert loaded.evaluate(rows, np.arange(3), verbose=0) == pytest.approx(expected, rel=1e-5)


def on_two_replicas():
    """Prints the loss that each of two replicas gives for its two of four pairs."""
    import tensorflow as tf

    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    labels, parts = ([0, 1], [2, 3]), (scores()[:2, :2], scores()[2:, 2:])

    def values(pair):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(pair[context.replica_id_in_sync_group])
        )

    loss = PairCrossentropy()
    result = strategy.run(tf.function(loss.__call__), (values(labels), values(parts)))
    print(*(float(value) for value in strategy.experimental_local_results(result)))


def test_a_replica_tells_apart_the_pairs_that_it_has():
    # Replicas wait for each other within TensorFlow's pools: each one needs a thread, or all hang.
    threads = {"TF_NUM_INTEROP_THREADS": "8", "TF_NUM_INTRAOP_THREADS": "4"}
    done = processes.run(__file__, env={**os.environ, **threads})
    assert done.returncode == 0, done.stderr[-3000:]
    z = scores()
    both = (reference(z[:2, :2]) + reference(z[2:, 2:])) / 2
    # Keras multiplies what a replica reports by their number, and averages: so each has half.
    found = [float(value) for value in done.stdout.split()]
    np.testing.assert_allclose(found, [both / 2] * 2, rtol=1e-5)


if __name__ == "__main__":
    on_two_replicas()
