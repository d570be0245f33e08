"""How many replicas run a step together, and sums over them; one replica outside TensorFlow."""

import keras


def sum_over_replicas(values):
    """Sums scalars over all replicas of a `tf.distribute` strategy.

    Args:
        values: list of scalar tensors.

    Returns:
        List of scalar tensors: the sums over the replicas that run this step together, on all
        machines; `values` unchanged on other backends and outside `strategy.run`.
    """
    if replica_count() == 1:
        return values
    import tensorflow as tf  # here and not above: the other backends do without

    # A copy each: TensorFlow puts the sum where the tensor is, and some, like the value of a
    # metric's variable on a machine with one replica, do not say where that is.
    values = [tf.identity(value) for value in values]
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def replica_count():
    """Number of replicas that run this very call together; 1 outside `tf.distribute`."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    if tf.distribute.in_cross_replica_context():  # in the scope, but not in `strategy.run`
        return 1
    return tf.distribute.get_strategy().num_replicas_in_sync
