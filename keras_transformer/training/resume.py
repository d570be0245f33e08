"""Training that continues exactly where it stopped."""

import logging
import pathlib
import signal
import threading

import keras
import numpy as np

from keras_transformer.training.checkpoints import (
    arrays_of,
    is_chief,
    read_checkpoint,
    values_of,
    write_checkpoint,
)

_log = logging.getLogger(__name__)


class TrainingCheckpoint(keras.callbacks.Callback):
    """Saves the whole state of training; the same call of `fit` continues from it.

    However the process ended, start the script again: `fit` goes on from the newest whole
    checkpoint, and the final weights are those of a run without interruption. Saved are the
    weights, the optimizer (moments, averages, number of updates, loss scale), the seeds of
    dropout, the position in the data and, within an epoch, the metrics.

    The order of the data must depend on the epoch alone. That is so for this package's datasets,
    such as `translation_batches` makes: pass it as `data`, and `fit` starts in the middle of an
    epoch at no cost. Other datasets are read up to the position; one that shuffles must give the
    same order in the same epoch.

    Ctrl-C (or SIGTERM) saves after the current update and then raises `KeyboardInterrupt`; a
    second one stops at once. During validation the first one waits for the end of the epoch.

    Put it last in the list of callbacks, so that it saves the others' decisions. On several
    machines only the first one writes, and all of them read: share the folder.

    Args:
        folder: where to.
        every: number of batches between checkpoints within an epoch. Defaults to `None`: at the end
            of each epoch only.
        data: the dataset that `fit` gets, if it is one of this package's, with `batches`.
        keep: number of checkpoints to keep. Defaults to 2: if the newest is damaged on the disk,
            the one before it is used.
        stateful: callbacks whose plain attributes (numbers, strings, booleans) are saved too:
            `EarlyStopping` with its patience, `BleuCallback` with its best score.

    Raises:
        ValueError: `every` or `keep` below 1; a checkpoint of another model; weights to be saved
            that are not finite.

    Example:

    >>> stop = keras.callbacks.EarlyStopping("val_loss", patience=3)
    >>> saved = TrainingCheckpoint("run/state", every=1000, stateful=[stop])
    >>> model.fit(train, epochs=30, callbacks=[stop, saved])  # doctest: +SKIP
    """

    def __init__(self, folder, every=None, data=None, keep=2, stateful=()):
        super().__init__()
        for name, value in (("every", every), ("keep", keep)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, but it is {value}.")
        self.folder = pathlib.Path(folder)
        self.every = every
        self.keep = keep
        self.stateful = list(stateful)
        self._batches = getattr(data, "batches", None)
        self._pending = self._own_step = None
        self._interrupt = _Interrupt()

    # Continuing

    def on_train_begin(self, logs=None):
        model = self.model
        self._pending = self.newest()
        with model.distribute_strategy.scope():
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
            if self._pending is not None:
                arrays, info = self._pending
                for name, variables in _state(model).items():
                    _assign(variables, arrays_of(arrays, name), name)
                # Keras reads this after `on_train_begin`, for callbacks like this one.
                stopped = info["finished"]
                model._initial_epoch = self.params["epochs"] if stopped else info["epoch"]
                _log.info("continuing at epoch %(epoch)d, batch %(batch)d", info)
        self._interrupt.catch()

    def newest(self):
        """Arrays and note of the newest whole checkpoint, or `None`."""
        for partial in self.folder.glob("*.partial"):
            _log.info("%s was not finished and is not used", partial)
        for path in sorted(self.folder.glob("checkpoint-*.npz"), reverse=True):
            try:
                return read_checkpoint(path)
            except ValueError as error:
                _log.warning("%s", error)
        return None

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._saved_at = epoch, 0
        pending, self._pending = self._pending, None
        if pending is not None:
            for callback, state in zip(self.stateful, pending[1]["callbacks"], strict=True):
                vars(callback).update(state)
            if pending[1]["batch"]:
                self._start_at(pending[1]["batch"], pending[0])
        if self._batches is not None:
            self._batches.seek(epoch)

    def _start_at(self, batch, arrays):
        """Passes over the first steps of this epoch: no training, and no reading if avoidable.

        `fit` still counts these steps, so that their number and the progress bar are right.
        """
        model, batches = self.model, self._batches
        step = self._own_step = model.train_function
        rest, metrics = None, arrays_of(arrays, "metrics")
        if batches is not None:
            self._build_metrics(next(iter(batches.rest(self._epoch, 0))), len(metrics))
            dataset = batches.rest(self._epoch, batch)
            rest = iter(model.distribute_strategy.experimental_distribute_dataset(dataset))
        left = batch

        def train_function(iterator):
            nonlocal left
            if left <= 0:
                return step(iterator if rest is None else rest)
            for _ in range(min(left, model.steps_per_execution) if rest is None else 0):
                self._build_metrics(next(iterator), len(metrics))
            left -= model.steps_per_execution
            with model.distribute_strategy.scope():
                _assign(model.metrics_variables, metrics, "metrics")
            return model.get_metrics_result()

        self._saved_at = batch
        model.train_function = train_function

    def _build_metrics(self, batch, count):
        """Metrics get their variables at first use; without a strategy that is the first step."""
        model = self.model
        if len(model.metrics_variables) < count:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            y_pred = model(x, training=False)
            model.compute_loss(x, y, y_pred, weight, training=False)
            model.compute_metrics(x, y, y_pred, weight)

    # Saving

    def on_train_batch_end(self, batch, logs=None):
        batch += 1  # counted from 0
        due = self.every is not None and batch - self._saved_at >= self.every
        if (due or self._interrupt.caught) and batch > self._saved_at:
            self._save(self._epoch, batch)
            self._saved_at = batch
        self._stop_if_asked()

    def on_epoch_end(self, epoch, logs=None):
        if self._own_step is not None:
            self.model.train_function, self._own_step = self._own_step, None
        self._save(epoch + 1, 0)
        self._stop_if_asked()

    def on_train_end(self, logs=None):
        self._interrupt.release()
        self.model._initial_epoch = None  # for the next call of `fit`

    def _save(self, epoch, batch):
        model = self.model
        groups = _state(model)
        if batch:
            groups["metrics"] = model.metrics_variables
            if self._batches is not None:  # an update of several batches may end short of its last
                batch = min(batch, self._batches.batches_per_epoch)
        with model.distribute_strategy.scope():
            arrays = values_of(groups)  # all machines: reading a metric sums over them
        broken = [
            v.path
            for v, a in zip(groups["weights"], arrays_of(arrays, "weights"), strict=True)
            if not np.all(np.isfinite(a.astype("float32")))
        ]
        if broken:
            raise ValueError(
                f"{len(broken)} weights are not finite any more, {broken[0]} among them, at epoch "
                f"{self._epoch}. They are not saved: the last checkpoint in {self.folder} is sound."
            )
        if not is_chief(model):
            return
        info = {
            "epoch": epoch,
            "batch": batch,
            "finished": bool(model.stop_training),
            "callbacks": [_plain(vars(callback)) for callback in self.stateful],
        }
        write_checkpoint(self.folder / f"checkpoint-{epoch:05d}-{batch:08d}.npz", arrays, info)
        for old in sorted(self.folder.glob("checkpoint-*.npz"))[: -self.keep]:
            old.unlink()

    def _stop_if_asked(self):
        if self._interrupt.caught:
            raise KeyboardInterrupt(f"interrupted; start again to continue from {self.folder}")


class _Interrupt:
    """Catches the first Ctrl-C or SIGTERM and notes it; the next one acts as usual."""

    def __init__(self):
        self.caught = False
        self._handlers = {}

    def catch(self):
        self.caught = False
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._note)

    def release(self):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _note(self, number, frame):
        self.caught = True
        self.release()
        print("\nSaving after this update; once more stops at once.", flush=True)


def _plain(attributes):
    """The attributes that JSON can hold; names with an underscore are Keras' own."""
    kinds = bool | int | float | str | np.generic
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in attributes.items()
        if isinstance(value, kinds) and not name.startswith("_")
    }


def _state(model):
    """All variables that the rest of training depends on, except those of metrics."""
    weights = model.weights
    known = {id(v) for v in weights}
    return {
        "weights": weights,
        "seeds": [v for v in model.variables if id(v) not in known],  # of dropout
        "optimizer": model.optimizer.variables,
    }


def _assign(variables, arrays, what):
    found = [tuple(a.shape) for a in arrays]
    expected = [tuple(v.shape) for v in variables]
    if found != expected:
        raise ValueError(
            f"The checkpoint's {what} do not fit this model: {len(found)} arrays for "
            f"{len(expected)} variables, or other shapes. Was the model or its optimizer changed? "
            "Take another folder to start anew."
        )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
