"""Functions that `fit` and `evaluate` call, exact on any number of replicas (TensorFlow).

On R replicas, replica r returns the loss l_r, so scaled that the batch's loss and gradient are the
sums of the l_r and of their gradients. The gradient of k batches is the sum of n_i grad_i over the
sum of n_i, where n_i is the weight of batch i: its number of target tokens, or of rows.

No private module of Keras is imported: `fit` asks the model for these functions by the public
names `train_function` and `test_function`.
"""

import warnings

import keras
import tensorflow as tf

from keras_transformer.training.gradients import (
    GradientSums,
    clip,
    inner_optimizer,
    needs_whole_gradient,
)
from keras_transformer.training.replicas import sum_over_replicas


def train_function(model, accumulate=1):
    """What `fit` calls with an iterator for each execution, in place of Keras' own function.

    Args:
        model: compiled `keras.Model`.
        accumulate: number of batches for one update. More than 1 must be
            `model.steps_per_execution`, too.

    Returns:
        Function of an iterator over batches. It returns the metrics since the epoch's begin,
        summed over all replicas.

    Raises:
        ValueError: see `prepare`.
    """
    _refuse_accumulation(model.optimizer)
    strategy = model.distribute_strategy
    with strategy.scope():
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        sums = GradientSums(model.trainable_variables) if accumulate > 1 else None

    def step(data):
        loss, weight, rows, gradients = _backward(model, data)
        if sums is None:
            _update(model, loss, rows, gradients)
        else:
            sums.add(loss, weight, rows, gradients)

    run = _on_batches(model, step)
    logs = _compiled(model, model.get_metrics_result)
    update = _compiled(model, lambda: strategy.run(lambda: _update(model, *sums.take_mean())))

    def train(iterator):
        run(iterator)
        if sums is not None:
            update()
        return logs()

    return train


def test_function(model):
    """What `evaluate` calls with an iterator for each execution; see `train_function`."""
    run = _on_batches(model, lambda data: _evaluate(model, data))
    logs = _compiled(model, model.get_metrics_result)

    def test(iterator):
        run(iterator)
        return logs()

    return test


def first_part(model, batch):
    """The first local replica's part of a batch that a strategy has distributed."""
    strategy = model.distribute_strategy
    return tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], batch)


def _refuse_accumulation(optimizer):
    steps = inner_optimizer(optimizer).gradient_accumulation_steps
    if steps:
        raise ValueError(
            f"The optimizer has gradient_accumulation_steps={steps}. Leave that out and call "
            f"keras_transformer.training.prepare(model, accumulate={steps}) after compile instead."
        )


def _compiled(model, function, jit_compile=False):
    if model.run_eagerly:
        return function
    return tf.function(function, reduce_retracing=True, autograph=False, jit_compile=jit_compile)


def _on_batches(model, step):
    """A function of an iterator: runs the step in all replicas, on each batch of an execution.

    It raises `StopIteration` if there is no batch at all.
    """
    strategy = model.distribute_strategy
    if model.jit_compile and model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "jit_compile=True does not work on several replicas: XLA cannot compile a step that "
            'uses the variables of several devices. Leave jit_compile at "auto".'
        )

    def run(data):
        # Keras passes an empty `Optional` where a generator's batch has no sample weight.
        data = tf.nest.map_structure(
            lambda v: None if isinstance(v, tf.experimental.Optional) else v, data
        )
        strategy.run(step, args=(data,))

    run = _compiled(model, run, jit_compile=model.jit_compile)
    # Taking the batch is a part of the graph: batches of many shapes then share one trace.
    run_next = _compiled(model, lambda iterator: run(iterator.get_next()))

    def run_all(iterator):
        for number in range(model.steps_per_execution):
            try:
                if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
                    run_next(iterator)
                else:  # `train_on_batch` passes a generator
                    run(next(iterator))
            except (StopIteration, tf.errors.OutOfRangeError) as end:
                if number == 0:
                    raise StopIteration from end
                break

    return run_all


# What follows runs in each replica.


def _backward(model, data):
    """One batch: updates the metrics; returns its loss, this replica's weight, rows, gradients."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    rows = _count_rows(x)
    with tf.GradientTape() as tape:
        y_pred = model(x, training=True)
        loss = model.compute_loss(x, y, y_pred, sample_weight, training=True)
        loss, weight = _share(model.loss, loss, rows, y, y_pred, sample_weight)
        scaled = model.optimizer.scale_loss(loss)
    variables = [v.value for v in model.trainable_variables]
    if not variables:
        warnings.warn("The model has no trainable weights.", stacklevel=2)
    gradients = tape.gradient(scaled, variables, unconnected_gradients="zero")
    model.compute_metrics(x, y, y_pred, sample_weight)
    (loss,) = sum_over_replicas([loss])
    return loss, weight, rows, [tf.convert_to_tensor(g) for g in gradients]


def _evaluate(model, data):
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    rows = _count_rows(x)
    y_pred = model(x, training=False)
    loss = model.compute_loss(x, y, y_pred, sample_weight, training=False)
    loss, _ = _share(model.loss, loss, rows, y, y_pred, sample_weight)
    model.compute_metrics(x, y, y_pred, sample_weight)
    _report(model, sum_over_replicas([loss])[0], rows)


def _share(function, loss, rows, y, y_pred, sample_weight):
    """This replica's share of the batch's loss, and its weight among the replicas.

    Keras returns 1/R of the mean over the replica's own rows. Exact is the mean over all rows, in
    which a replica counts by its rows. Losses with `batch_weight` see to that themselves.
    """
    of_loss = getattr(function, "batch_weight", None)
    if of_loss is not None:
        return loss, of_loss(y, sample_weight)
    weight = rows
    mask = getattr(y_pred, "_keras_mask", None)  # Keras' losses are means over its True positions
    if mask is not None:
        weight = tf.reduce_sum(tf.cast(mask, "float32"))
    if getattr(function, "ignore_class", None) is not None:  # a mean over the other labels
        counts = tf.not_equal(y, tf.cast(function.ignore_class, y.dtype))
        weight = tf.reduce_sum(tf.cast(counts, "float32"))
    ours = any(hasattr(part, "batch_weight") for part in tf.nest.flatten(function))
    if ours or getattr(function, "reduction", None) == "sum":
        return loss, weight
    (total,) = sum_over_replicas([weight])
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    share = tf.math.divide_no_nan(weight * replicas, total)
    return loss * tf.cast(share, loss.dtype), weight


def _count_rows(x):
    first = next(value for value in tf.nest.flatten(x) if value is not None)
    return tf.cast(tf.shape(first)[0], "float32")


def _report(model, loss, rows):
    tracker = next((m for m in model.metrics if m.name == "loss"), None)
    if tracker is not None:
        tracker.update_state(loss, sample_weight=rows)


def _update(model, loss, rows, gradients):
    _report(model, loss, rows)
    optimizer, replicas = model.optimizer, tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1 and needs_whole_gradient(optimizer):
        # The optimizer will clip, or look for overflow, and then sum over the replicas. So it
        # gets from each of them 1/R of the gradient that is whole and clipped already.
        gradients = [g / replicas for g in clip(sum_over_replicas(gradients), optimizer)]
    if gradients:
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
