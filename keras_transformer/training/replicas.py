"""Sums over the replicas of a `tf.distribute` strategy, and the scale of losses.

Replica r of R has the losses v_ri with weights w_ri, i = 1, 2, ... The loss of the batch is L =
sum_ri(w_ri v_ri) / W with W = sum_ri(w_ri). A step needs one number l_r from each replica, such
that L = sum_r(l_r) and the gradient of L is the sum of the gradients of the l_r:

- Losses of this package return L / R, with the gradient of sum_i(w_ri v_ri) / W: see
  `mean_over_replicas`. All replicas report the same value, so Keras' average of logs is exact.
- Losses of Keras return m_r / R, where m_r is the replica's own mean. Multiplied by
  R sum_i(w_ri) / W, this is sum_i(w_ri v_ri) / W: see `share_of_mean`.

This module imports Keras only: losses and metrics import it on every backend.
"""

import keras
from keras import ops

from keras_transformer.types import Tensor


def sum_over_replicas(values: list[Tensor]) -> list[Tensor]:
    """Sums tensors over all replicas of a `tf.distribute` strategy.

    Args:
        values: list of tensors.

    Returns:
        List of tensors: the sums over the replicas that run this step together, on all machines;
        `values` unchanged on other backends and outside `strategy.run`.
    """
    if replica_count() == 1:
        return values
    import tensorflow as tf  # here and not above: other backends do not need it

    # `all_reduce` needs the device of each tensor. Some, such as the value of a metric's variable
    # on a machine with one replica, have none until they are copied.
    values = [tf.identity(value) for value in values]
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def replica_count() -> int:
    """Returns the number of replicas that run this call together; 1 outside `tf.distribute`."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    if tf.distribute.in_cross_replica_context():  # in the scope, but not in `strategy.run`
        return 1
    return tf.distribute.get_strategy().num_replicas_in_sync


def mean_over_replicas(total: Tensor, weight: Tensor) -> Tensor:
    """Computes a loss from this replica's sums.

    With sums over all replicas s, the value is L / R = sum_s(total_s) / (R sum_s(weight_s)). The
    gradient is the gradient of total / sum_s(weight_s).

    Args:
        total: scalar, sum_i(w_ri v_ri) of this replica.
        weight: scalar, sum_i(w_ri).

    Returns:
        Float scalar. On one replica it is the mean, total / weight.
    """
    replicas = replica_count()
    if replicas == 1:
        return ops.divide_no_nan(total, weight)
    all_total, all_weight = sum_over_replicas([ops.stop_gradient(total), weight])
    loss = ops.divide_no_nan(total, all_weight)
    reported = ops.divide_no_nan(all_total, all_weight * replicas)
    return loss + ops.stop_gradient(reported - loss)


def share_of_mean(loss: Tensor, weight: Tensor) -> Tensor:
    """Scales a mean from Keras to this replica's part of the batch loss.

    The result is loss R weight / W, where W is the sum of the weights of all R replicas.

    Args:
        loss: scalar, m_r / R of this replica.
        weight: scalar, sum_i(w_ri).

    Returns:
        Scalar, l_r: the results of all replicas add up to L.
    """
    (all_weight,) = sum_over_replicas([weight])
    share = ops.divide_no_nan(weight * replica_count(), all_weight)
    return loss * ops.cast(share, loss.dtype)
