"""Training steps whose update does not depend on how a batch was cut: replicas, machines, parts.

`model.fit` is the trainer. `prepare` gives a compiled model another training step for it, where
Keras' own falls short (Keras 3.15, TensorFlow backend):

- `fit` looks at one batch first, to learn its shapes, and averages the replicas' parts of it. That
  fails where replicas hold different numbers of rows, and under `MultiWorkerMirroredStrategy`,
  always: the part of the one local replica cannot be averaged. Any replica's part shows the shapes.
- `fit` averages the metrics of several machines' replicas along an axis that scalars do not have.
  Metric variables, read outside the replicas, are summed over all of them: exact, and no axis.
- Optimizers clip each replica's gradient before they add them up, so that the update depends on
  the number of replicas; and loss scaling looks for overflow in the first replica alone.
- `gradient_accumulation_steps` of the optimizers cannot run under a strategy, weights micro-batches
  equally though they hold different numbers of tokens, and moves the schedule with each of them.

No private module is imported for this. `fit` asks the model for everything by public names
(`train_function`, `test_function`, `steps_per_execution`, `get_metrics_result`), save the first
point: there one private method of the model is wrapped, because what is wrong sits inside it.
"""

import functools

import keras
import tensorflow as tf

from keras_transformer.training.losses import sum_over_replicas


def prepare(model, accumulate=1):
    """Makes `model.fit` exact on any number of replicas and machines, and accumulates gradients.

    Call it after `compile`, each time (`compile` puts Keras' own step back), and in place of the
    optimizer's `gradient_accumulation_steps`. Works for any compiled `keras.Model` and for any
    optimizer: mixed precision, clipping, moving averages and schedules are the optimizer's.

    With `accumulate=k`, each update uses k batches of the dataset: its gradient is that of the
    mean over all target tokens of the k batches together, on all replicas, whatever their sizes.
    The optimizer counts updates; so do its schedule, its loss scale and its moving average. `fit`
    takes k batches as one execution: callbacks are called once an update. At the end of an epoch
    an update may have fewer batches; nothing is carried over.

    Weights of batches come from the loss's method `batch_weight(y_true, sample_weight)`; a loss
    without one (Keras' own) is weighted by rows.

    Args:
        model: compiled `keras.Model`, made and compiled under the strategy's scope, if any.
        accumulate: number of batches for one update. Defaults to 1.

    Returns:
        The same model. Logs of a training step are the metrics since the epoch's begin, summed
        over all replicas.

    Raises:
        ValueError: the model is not compiled, `accumulate` is below 1, or the optimizer has
            `gradient_accumulation_steps`.

    Example:

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> prepare(model, accumulate=2).steps_per_execution
    2
    """
    if not model.compiled or model.optimizer is None:
        raise ValueError("prepare needs a compiled model: call model.compile(optimizer, loss).")
    if accumulate < 1:
        raise ValueError(f"accumulate must be at least 1, but it is {accumulate}.")
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if inner.gradient_accumulation_steps:
        raise ValueError(
            f"The optimizer has gradient_accumulation_steps={inner.gradient_accumulation_steps}. "
            "Leave that out and pass accumulate to prepare instead."
        )
    steps = _Steps(model, accumulate)
    model.steps_per_execution = accumulate  # `fit` then counts batches rightly
    model.train_function = steps.train
    model.test_function = steps.test
    strategy, build = model.distribute_strategy, getattr(model, "_maybe_symbolic_build", None)
    wrapped = build is None or isinstance(build, functools.partial)
    if strategy.num_replicas_in_sync > 1 and not wrapped:
        model._maybe_symbolic_build = functools.partial(_build_from_one_replica, strategy, build)
    return model


def _build_from_one_replica(strategy, build, iterator=None, data_batch=None):
    """Shows Keras the first local replica's part of a batch, of which it wants the shapes only."""
    for _, _, batches in iterator if iterator is not None else ():
        data_batch = tf.nest.map_structure(
            lambda part: strategy.experimental_local_results(part)[0], next(batches)
        )
        break
    return build(data_batch=data_batch)


class _Steps:
    """The functions that `fit` and `evaluate` call for every execution.

    The loss of replica r is S_r / n: the sum over its tokens, by the number n of tokens of the
    batch on all replicas. The gradient of k batches is the sum of n_i grad_i over the sum of n_i.
    """

    def __init__(self, model, accumulate):
        self.model = model
        self.accumulate = accumulate
        self.strategy = model.distribute_strategy
        with self.strategy.scope():
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
            if accumulate > 1:
                self.gradients = [_local_sum(v.shape, v.dtype) for v in model.trainable_variables]
                self.loss, self.weight, self.rows = (_local_sum((), "float32") for _ in range(3))
        self._train_batch = self._on_next(self._whole_update if accumulate == 1 else self._add)
        self._test_batch = self._on_next(model.test_step)
        self._update = self._compiled(lambda: self.strategy.run(self._apply_sum))
        # Outside the replicas a metric's variables read as their sum over all of them.
        self._logs = self._compiled(model.get_metrics_result)

    def train(self, iterator):
        self._execute(self._train_batch, iterator)
        if self.accumulate > 1:
            self._update()
        return self._logs()

    def test(self, iterator):
        self._execute(self._test_batch, iterator)
        return self._logs()

    def _execute(self, step, iterator):
        """Up to `accumulate` batches; the first must exist."""
        for number in range(self.accumulate):
            if not step(iterator):
                if number == 0:
                    raise StopIteration
                break

    def _compiled(self, function, jit_compile=False):
        if self.model.run_eagerly:
            return function
        return tf.function(
            function, reduce_retracing=True, autograph=False, jit_compile=jit_compile
        )

    def _on_next(self, step):
        """A function of an iterator: runs the step on its next batch; False when there is none."""
        run = self._compiled(
            lambda data: self.strategy.run(step, args=(data,)), jit_compile=self.model.jit_compile
        )
        # Taking the batch is a part of the graph: batches of many shapes then share one trace.
        run_next = self._compiled(lambda iterator: run(iterator.get_next()))

        def on_next(iterator):
            try:
                if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
                    run_next(iterator)
                else:  # `train_on_batch` passes a generator
                    run(next(iterator))
            except (StopIteration, tf.errors.OutOfRangeError):
                return False
            return True

        return on_next

    # What follows runs in each replica.

    def _backward(self, data):
        """One batch: updates the metrics; returns loss, this replica's weight, rows, gradients."""
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = model.compute_loss(x, y, y_pred, sample_weight, training=True)
            scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(
            scaled, _values(model.trainable_variables), unconnected_gradients="zero"
        )
        model.compute_metrics(x, y, y_pred, sample_weight)
        rows = tf.cast(tf.shape(tf.nest.flatten(x)[0])[0], "float32")
        of_loss = getattr(model.loss, "batch_weight", None)
        weight = rows if of_loss is None else of_loss(y, sample_weight)
        return loss, weight, rows, [tf.convert_to_tensor(g) for g in gradients]

    def _whole_update(self, data):
        loss, _, rows, gradients = self._backward(data)
        self._apply(loss, rows, gradients)

    def _add(self, data):
        loss, weight, rows, gradients = self._backward(data)
        (weight,) = sum_over_replicas([weight])
        self.loss.assign_add(loss * weight)
        self.weight.assign_add(weight)
        self.rows.assign_add(rows)
        # After the backward pass: a loss that is weighted before it would overflow in float16.
        for total, gradient in zip(self.gradients, gradients, strict=True):
            total.assign_add(gradient * tf.cast(weight, gradient.dtype))

    def _apply_sum(self):
        weight = tf.math.reciprocal_no_nan(self.weight)
        gradients = [g * tf.cast(weight, g.dtype) for g in self.gradients]
        self._apply(self.loss * weight, self.rows, gradients)
        for total in [self.loss, self.weight, self.rows, *self.gradients]:
            total.assign(tf.zeros_like(total))

    def _apply(self, loss, rows, gradients):
        model, replicas = self.model, self.strategy.num_replicas_in_sync
        tracker = next((m for m in model.metrics if m.name == "loss"), None)
        if tracker is not None:  # every replica's loss is 1/R of the batch's
            tracker.update_state(loss * replicas, sample_weight=rows)
        if replicas > 1 and _depends_on_whole_gradient(model.optimizer):
            # The optimizer will clip, or look for overflow, and then sum over the replicas. So it
            # gets from each of them 1/R of the gradient that is whole and clipped already.
            gradients = sum_over_replicas(gradients)
            gradients = [g / replicas for g in clip(gradients, model.optimizer)]
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def clip(gradients, optimizer):
    """Clips gradients as the optimizer is told to, before it does.

    Doing it twice changes nothing: what is clipped, or a fraction of it, is left as it is.

    Args:
        gradients: list of tensors, scaled by the optimizer's loss scale, if it has one.
        optimizer: `keras.optimizers.Optimizer`; its `clipvalue`, `clipnorm` or `global_clipnorm`.

    Returns:
        List of tensors.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    scale = optimizer.scale_loss(tf.constant(1.0))
    if inner.clipvalue is not None:
        limit = inner.clipvalue * scale
        return [tf.clip_by_value(g, -limit, limit) for g in gradients]
    if inner.clipnorm is not None:
        return [tf.clip_by_norm(g, inner.clipnorm * scale) for g in gradients]
    if inner.global_clipnorm is not None:
        return tf.clip_by_global_norm(gradients, inner.global_clipnorm * scale)[0]
    return gradients


def _depends_on_whole_gradient(optimizer):
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    clips = (inner.clipvalue, inner.clipnorm, inner.global_clipnorm)
    return inner is not optimizer or any(limit is not None for limit in clips)


def _local_sum(shape, dtype):
    """A variable that each replica adds to on its own: no communication until the update."""
    return tf.Variable(
        tf.zeros(shape, dtype),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


def _values(variables):
    return [v.value for v in variables]
