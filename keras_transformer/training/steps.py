"""Functions that `fit` and `evaluate` call, exact on any number of replicas (TensorFlow).

`replicas` explains the scale of losses. With gradient accumulation, the gradient of k batches
is the sum of n_i grad_i over the sum of n_i, where n_i is the weight of batch i: its number of
target tokens, or of rows.

The functions import no private module of Keras: `fit` gets them by the public names
`train_function` and `test_function` of the model.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.training.losses import ReplicaLoss
from keras_transformer.training.optimizers import build_optimizer, clips, inner_optimizer
from keras_transformer.training.replicas import share_of_mean, sum_over_replicas
from keras_transformer.types import Tensor


def make_train_function(model: keras.Model, accumulate: int = 1) -> Callable[[Any], dict[str, Any]]:
    """Returns the function that `fit` calls with an iterator for each execution.

    Args:
        model: compiled `keras.Model`.
        accumulate: number of batches for one update. If it is more than 1,
            `model.steps_per_execution` must be the same number.

    Returns:
        Function of an iterator over batches. It returns the metrics since the start of the epoch,
        summed over all replicas.

    Raises:
        ValueError: see `prepare`.
    """
    accumulation_steps = inner_optimizer(model.optimizer).gradient_accumulation_steps
    if accumulation_steps:
        raise ValueError(
            f"The optimizer has gradient_accumulation_steps={accumulation_steps}. Leave that out "
            "and call keras_transformer.training.prepare("
            f"model, accumulate={accumulation_steps}) after compile instead."
        )
    strategy = model.distribute_strategy
    build_optimizer(model)
    with strategy.scope():
        sums = GradientSums(model.trainable_variables) if accumulate > 1 else None

    def step(data: Any) -> None:
        loss, weight, rows, gradients = _backward(model, data)
        if sums is None:
            _update(model, loss, rows, gradients)
        else:
            sums.add(loss, weight, rows, gradients)

    run_execution = _make_run_execution(model, step)
    logs = _compiled(model, model.get_metrics_result)
    update = _compiled(model, lambda: strategy.run(lambda: _update(model, *sums.take_mean())))
    discard = _compiled(model, lambda: strategy.run(lambda: sums.take_mean()[1]))

    def train(iterator: Iterator[Any]) -> dict[str, Any]:
        try:
            run_execution(iterator)
        except BaseException:  # also Ctrl-C: the next `fit` starts with empty sums
            if sums is not None:
                discard()
            raise
        if sums is not None:
            update()
        return logs()

    train.accumulate = accumulate
    return train


def make_test_function(model: keras.Model) -> Callable[[Any], dict[str, Any]]:
    """Returns the function that `evaluate` calls with an iterator; see `make_train_function`."""
    run_execution = _make_run_execution(model, lambda data: _evaluate(model, data))
    logs = _compiled(model, model.get_metrics_result)

    def test(iterator: Iterator[Any]) -> dict[str, Any]:
        run_execution(iterator)
        return logs()

    return test


def first_part(model: keras.Model, batch: Any) -> Any:
    """Returns the first local replica's part of a batch that a strategy has distributed."""
    strategy = model.distribute_strategy
    return tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], batch)


def _compiled(
    model: keras.Model, function: Callable[..., Any], jit_compile: bool = False
) -> Callable[..., Any]:
    if model.run_eagerly:
        return function
    return tf.function(function, reduce_retracing=True, autograph=False, jit_compile=jit_compile)


def _make_run_execution(model: keras.Model, step: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns a function of an iterator that runs the step in all replicas, on each batch.

    The function takes the batches of one execution, and raises `StopIteration` if there is none.
    """
    strategy = model.distribute_strategy
    if model.jit_compile and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "jit_compile=True does not work on several replicas: XLA cannot compile a step that "
            'uses the variables of several devices. Leave jit_compile at "auto".'
        )

    def run_batch(data: Any) -> None:
        # Keras passes an empty `Optional` if a generator's batch has no sample weight.
        data = tf.nest.map_structure(
            lambda v: None if isinstance(v, tf.experimental.Optional) else v, data
        )
        strategy.run(step, args=(data,))

    compiled_run_batch = _compiled(model, run_batch, jit_compile=model.jit_compile)
    # The graph takes the batch, so that batches of many shapes share one trace.
    run_next_batch = _compiled(model, lambda iterator: compiled_run_batch(iterator.get_next()))

    def run_execution(iterator: Iterator[Any]) -> None:
        for number in range(model.steps_per_execution):
            try:
                if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
                    run_next_batch(iterator)
                else:  # `train_on_batch` passes a generator
                    compiled_run_batch(next(iterator))
            except (StopIteration, tf.errors.OutOfRangeError) as end:
                if number == 0:
                    raise StopIteration from end
                break

    return run_execution


# Everything below runs in each replica.


def _forward(model: keras.Model, data: Any, training: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Calls the model and updates the metrics.

    Returns this replica's part of the batch loss, its weight and its number of rows.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    first = next(value for value in tf.nest.flatten(x) if value is not None)
    rows = tf.cast(tf.shape(first)[0], "float32")
    y_pred = model(x, training=training)
    loss = model.compute_loss(x, y, y_pred, sample_weight, training=training)
    loss, weight = _loss_and_weight(model.loss, loss, rows, y, y_pred, sample_weight)
    model.compute_metrics(x, y, y_pred, sample_weight)
    return loss, weight, rows


def _backward(model: keras.Model, data: Any) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Returns the loss of the batch, and weight, rows and gradients of this replica."""
    with tf.GradientTape() as tape:
        loss, weight, rows = _forward(model, data, training=True)
        scaled = model.optimizer.scale_loss(loss)
    variables = [v.value for v in model.trainable_variables]
    if not variables:
        warnings.warn("The model has no trainable weights.", stacklevel=2)
    gradients = tape.gradient(scaled, variables, unconnected_gradients="zero")
    (loss,) = sum_over_replicas([loss])
    # Dense: clipping a sparse gradient would treat rows of equal ids separately.
    return loss, weight, rows, [tf.convert_to_tensor(g) for g in gradients]


def _evaluate(model: keras.Model, data: Any) -> None:
    loss, _, rows = _forward(model, data, training=False)
    _report(model, sum_over_replicas([loss])[0], rows)


def _loss_and_weight(
    function: Any, loss: Tensor, rows: Tensor, y: Any, y_pred: Any, sample_weight: Any
) -> tuple[Tensor, Tensor]:
    """Returns this replica's part of the batch loss, and its weight.

    Args:
        function: the model's loss, or a nest of losses for several outputs.
        loss: result of `compute_loss` in this replica.
        rows: number of rows of this replica.
        y, y_pred, sample_weight: as in a loss.
    """
    parts = [part for part in tf.nest.flatten(function) if part is not None]
    if parts and all(isinstance(part, ReplicaLoss) for part in parts):
        # The losses of several outputs count the same tokens or rows.
        return loss, parts[0].batch_weight(*(_first(function, nest) for nest in (y, sample_weight)))
    weight = _divisor(function, rows, y, y_pred, sample_weight)
    if any(isinstance(part, ReplicaLoss) for part in parts):
        return loss, weight  # at least one of several losses is scaled already
    if getattr(function, "reduction", None) == "sum":
        return loss, weight  # the sums of the replicas add up without a scale
    return share_of_mean(loss, weight), weight


def _divisor(function: Any, rows: Tensor, y: Any, y_pred: Any, sample_weight: Any) -> Tensor:
    """Returns the divisor of a mean of Keras, apart from a factor that all replicas share."""
    counted = getattr(y_pred, "_keras_mask", None)  # means are over the True positions of a mask
    config = function.get_config() if isinstance(function, keras.losses.Loss) else {}
    if config.get("ignore_class") is not None:
        known = tf.not_equal(y, tf.cast(config["ignore_class"], y.dtype))
        if counted is not None:
            known = tf.logical_and(counted, tf.reshape(known, tf.shape(counted)))
        counted = known
    counted = None if counted is None else tf.cast(counted, "float32")
    by_weight = getattr(function, "reduction", None) == "mean_with_sample_weight"
    if by_weight and sample_weight is not None:
        weights = tf.cast(sample_weight, "float32")
        counted = weights if counted is None else weights * counted
    return rows if counted is None else tf.reduce_sum(counted)


def _first(losses: Any, values: Any) -> Any:
    """Returns the labels or sample weights of the first output that has a loss."""
    if isinstance(losses, Mapping) and isinstance(values, Mapping):
        name = min(name for name, loss in losses.items() if loss is not None)
        return values.get(name)
    if isinstance(losses, (list, tuple)) and isinstance(values, (list, tuple)):
        return next(value for loss, value in zip(losses, values, strict=False) if loss is not None)
    return next(iter(tf.nest.flatten(values)), None)


def _report(model: keras.Model, loss: Tensor, rows: Tensor) -> None:
    tracker = next((m for m in model.metrics if m.name == "loss"), None)
    if tracker is not None:
        tracker.update_state(loss, sample_weight=rows)


def _update(model: keras.Model, loss: Tensor, rows: Tensor, gradients: list[Tensor]) -> None:
    _report(model, loss, rows)
    optimizer, replicas = model.optimizer, tf.distribute.get_strategy().num_replicas_in_sync
    scales_loss = inner_optimizer(optimizer) is not optimizer
    if replicas > 1 and (clips(optimizer) or scales_loss):
        # The optimizer clips, or checks for overflow, before it sums over the replicas. So each
        # replica gives it 1/R of the gradient of the batch, already clipped.
        gradients = [g / replicas for g in clip(sum_over_replicas(gradients), optimizer)]
    if gradients:
        # The optimizer sums the gradients over the replicas. Each replica's loss is its share, so
        # no division is needed.
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


class GradientSums:
    """Sums over the batches of one update. Each replica has its own until the update."""

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self.gradients: list[Tensor] = [self._zero(v.shape, v.dtype) for v in variables]
        self.loss: Tensor = self._zero((), "float32")
        self.weight: Tensor = self._zero((), "float32")
        self.rows: Tensor = self._zero((), "float32")

    @staticmethod
    def _zero(shape: Any, dtype: str) -> Tensor:
        return tf.Variable(
            tf.zeros(shape, dtype),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def add(self, loss: Tensor, weight: Tensor, rows: Tensor, gradients: list[Tensor]) -> None:
        """Adds one batch: its loss, its weight and number of rows in this replica, gradients."""
        (weight,) = sum_over_replicas([weight])
        self.loss.assign_add(loss * weight)
        self.weight.assign_add(weight)
        self.rows.assign_add(rows)
        # After the backward pass, because a loss weighted before it would overflow in float16.
        for total, gradient in zip(self.gradients, gradients, strict=True):
            total.assign_add(gradient * tf.cast(weight, gradient.dtype))

    def take_mean(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Returns mean loss, number of rows and mean gradients; sets all sums to 0."""
        weight = tf.math.reciprocal_no_nan(self.weight)
        gradients = [g * tf.cast(weight, g.dtype) for g in self.gradients]
        loss, rows = self.loss * weight, tf.identity(self.rows)
        for total in [self.loss, self.weight, self.rows, *self.gradients]:
            total.assign(tf.zeros_like(total))
        return loss, rows, gradients


def clip(gradients: list[Tensor], optimizer: keras.optimizers.Optimizer) -> list[Tensor]:
    """Clips gradients by the optimizer's `clipvalue`, `clipnorm` or `global_clipnorm`.

    The optimizer clips again, which changes nothing: clipped gradients are within the limit.

    Args:
        gradients: list of tensors, scaled by the optimizer's loss scale, if it has one.
        optimizer: `keras.optimizers.Optimizer`.

    Returns:
        List of tensors.
    """
    inner = inner_optimizer(optimizer)
    scale = optimizer.scale_loss(tf.constant(1.0))
    # Unscaled: the squares in the norm of a scaled gradient may be too large for float32.
    gradients = [g / tf.cast(scale, g.dtype) for g in gradients]
    if inner.clipvalue:  # Keras ignores a limit of 0
        limit = inner.clipvalue
        # Infinity and NaN must stay: the optimizer then skips the update.
        gradients = [
            tf.where(tf.math.is_finite(g), tf.clip_by_value(g, -limit, limit), g) for g in gradients
        ]
    elif inner.clipnorm:
        gradients = [tf.clip_by_norm(g, inner.clipnorm) for g in gradients]
    elif inner.global_clipnorm:
        gradients, _ = tf.clip_by_global_norm(gradients, inner.global_clipnorm)
    return [g * tf.cast(scale, g.dtype) for g in gradients]
