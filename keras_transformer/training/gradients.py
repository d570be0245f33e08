"""Gradients between the backward pass and the optimizer: summed over batches, and clipped."""

import tensorflow as tf

from keras_transformer.training.replicas import sum_over_replicas


class GradientSums:
    """Sums over the batches of one update. Each replica has its own until the update."""

    def __init__(self, variables):
        self.gradients = [self._zero(v.shape, v.dtype) for v in variables]
        self.loss, self.weight, self.rows = (self._zero((), "float32") for _ in range(3))

    @staticmethod
    def _zero(shape, dtype):
        return tf.Variable(
            tf.zeros(shape, dtype),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def add(self, loss, weight, rows, gradients):
        (weight,) = sum_over_replicas([weight])
        self.loss.assign_add(loss * weight)
        self.weight.assign_add(weight)
        self.rows.assign_add(rows)
        # After the backward pass: a loss that is weighted before it would overflow in float16.
        for total, gradient in zip(self.gradients, gradients, strict=True):
            total.assign_add(gradient * tf.cast(weight, gradient.dtype))

    def take_mean(self):
        """Mean loss, number of rows and mean gradients; sets all sums to 0."""
        weight = tf.math.reciprocal_no_nan(self.weight)
        gradients = [g * tf.cast(weight, g.dtype) for g in self.gradients]
        loss, rows = self.loss * weight, tf.identity(self.rows)
        for total in [self.loss, self.weight, self.rows, *self.gradients]:
            total.assign(tf.zeros_like(total))
        return loss, rows, gradients


def clip(gradients, optimizer):
    """Clips gradients as the optimizer is told to, before it does.

    Doing it twice changes nothing: what is clipped, or a fraction of it, is left as it is.

    Args:
        gradients: list of tensors, scaled by the optimizer's loss scale, if it has one.
        optimizer: `keras.optimizers.Optimizer`; its `clipvalue`, `clipnorm` or `global_clipnorm`.

    Returns:
        List of tensors.
    """
    inner = inner_optimizer(optimizer)
    scale = optimizer.scale_loss(tf.constant(1.0))
    # Unscaled: the squares in the norm of a scaled gradient may be too large for float32.
    gradients = [g / tf.cast(scale, g.dtype) for g in gradients]
    if inner.clipvalue is not None:
        limit = inner.clipvalue
        # What is not finite must stay so: the optimizer then skips the update.
        gradients = [
            tf.where(tf.math.is_finite(g), tf.clip_by_value(g, -limit, limit), g) for g in gradients
        ]
    elif inner.clipnorm is not None:
        gradients = [tf.clip_by_norm(g, inner.clipnorm) for g in gradients]
    elif inner.global_clipnorm is not None:
        gradients, _ = tf.clip_by_global_norm(gradients, inner.global_clipnorm)
    return [g * tf.cast(scale, g.dtype) for g in gradients]


def inner_optimizer(optimizer):
    """The optimizer itself, within one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def needs_whole_gradient(optimizer):
    """Whether it clips or looks for overflow: one replica's gradient then is not enough."""
    inner = inner_optimizer(optimizer)
    clips = (inner.clipvalue, inner.clipnorm, inner.global_clipnorm)
    return inner is not optimizer or any(limit is not None for limit in clips)
