"""Where a call of `fit` starts: the epoch, and the batch within it."""

import weakref
from collections.abc import Mapping

import keras
import numpy as np

from keras_transformer.training.checkpoints import assign, keyed


class FirstEpoch(int):
    """An epoch that is false outside one call of `fit`.

    Keras reads `model._initial_epoch` after all `on_train_begin`, as `epoch or 0`. A value of a
    call that broke off before has no effect on the next one.

    Args:
        epoch: number of the epoch, from 0.
        model: the model in whose `fit` this is called.
    """

    def __new__(cls, epoch: int, model: keras.Model):
        first = super().__new__(cls, epoch)
        # Each call of `fit` gives the model a new `History`.
        first._model, first._history = weakref.ref(model), weakref.ref(model.history)
        return first

    def __bool__(self):
        model = self._model()
        return int(self) > 0 and model is not None and model.history is self._history()


class PassedOver:
    """The first steps of an epoch, without training, and without reading if avoidable.

    `fit` still counts these steps, so that their number and the progress bar are right.

    Args:
        model: the model in whose `fit` this is called.
        epoch: number of the epoch, from 0.
        batch: number of batches to pass over.
        arrays: the checkpoint's arrays. The metrics are taken from them.
        batches: the `batches` of this package's datasets; `None` for other datasets.
    """

    def __init__(
        self,
        model: keras.Model,
        epoch: int,
        batch: int,
        arrays: Mapping[str, np.ndarray],
        batches: object,
    ):
        self._model = model
        self._metrics = {n: a for n, a in arrays.items() if n.startswith("metrics/")}
        self._left, self._rest = batch, None  # batches to pass over, an iterator over the others
        if batches is not None:
            self._build_metrics(next(iter(batches.rest(epoch, 0))))
            strategy = model.distribute_strategy
            self._rest = iter(strategy.experimental_distribute_dataset(batches.rest(epoch, batch)))

    def before_batch(self):
        """Replaces the model's step for one batch, if that is passed over or read from the rest."""
        if not self._left and self._rest is None:
            return
        model, step = self._model, self._model.train_function
        history = model.history  # of this call of `fit`

        def train_function(iterator):
            # For one batch only: if `fit` ends by an error, nothing is left in the model.
            model.train_function = step
            if model.history is history and self._left:
                return self._pass_over(iterator)
            rest = self._rest if model.history is history else None
            return step(iterator if rest is None else rest)

        model.train_function = train_function

    def _pass_over(self, iterator):
        model = self._model
        batches = min(self._left, model.steps_per_execution)
        self._left -= batches
        if self._rest is None:
            for _ in range(batches):
                self._build_metrics(next(iterator))
        with model.distribute_strategy.scope():
            assign(keyed({"metrics": model.metrics_variables}), self._metrics, "The checkpoint")
        return model.get_metrics_result()

    def _build_metrics(self, batch):
        """Metrics get their variables at first use; without a strategy that is the first step."""
        model = self._model
        if len(model.metrics_variables) < len(self._metrics):
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            y_pred = model(x, training=False)
            model.compute_loss(x, y, y_pred, weight, training=False)
            model.compute_metrics(x, y, y_pred, weight)
