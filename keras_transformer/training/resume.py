"""Training that continues exactly where it stopped."""

import logging
import os
import pathlib
from collections.abc import Sequence

import keras
import numpy as np

from keras_transformer.files import checked_path
from keras_transformer.training.callback_state import attributes, progress, restore
from keras_transformer.training.checkpoints import (
    arrays_of,
    assign,
    is_chief,
    keep_newest,
    keyed,
    read_checkpoint,
    values_of,
    write_checkpoint,
    write_weights,
)
from keras_transformer.training.distribution import build_optimizer
from keras_transformer.training.interrupt import Interrupt
from keras_transformer.training.settings import rate_changes, settings_of

_log = logging.getLogger(__name__)


class TrainingCheckpoint(keras.callbacks.Callback):
    """Saves the whole state of training; the same call of `fit` continues from it.

    However the process ended, start the script again: `fit` goes on from the newest whole
    checkpoint, and the final weights equal those of a run without interruption. Saved are the
    weights, the optimizer (moments, averages, number of updates, loss scale), the seeds of
    dropout, the position in the data and, within an epoch, the metrics.

    One line of output says where `fit` continues. A run that is finished, by its last epoch or by
    an early stop, is not trained any further: the model gets the weights that it had at the end,
    and the line says so. Ask for more epochs to go on after that.

    The model, the optimizer and the loss must be configured as before. Only the learning rate may
    change: `fit` then goes on with the new one, and the line names both.

    The order of the data must depend on the epoch alone. That is so for this package's datasets,
    such as `translation_batches` makes: pass it as `data`, and `fit` starts in the middle of an
    epoch at no cost. Other datasets are read up to the position; one that shuffles must give the
    same order in the same epoch.

    Ctrl-C (or SIGTERM) saves after the current update and then raises `KeyboardInterrupt`; a
    second one stops at once. During validation the first one waits for the end of the epoch.

    Put it last in the list of callbacks, so that it saves the others' decisions. On several
    machines only the first one writes, and all of them read: share the folder.

    Args:
        folder: str or path of the folder to write. It holds one run.
        every: number of batches between checkpoints within an epoch. Defaults to `None`: at the end
            of each epoch only.
        data: the dataset that `fit` gets, if it is one of this package's, with `batches`.
        keep: number of checkpoints to keep. Defaults to 2: if the newest is damaged on the disk,
            the one before it is used.
        stateful: callbacks whose progress is saved too: attributes that are numbers, strings,
            booleans or lists of arrays, if training has changed them. List `EarlyStopping` (its
            patience and its best weights) and `BleuCallback` (its best score) here.

    Raises:
        ValueError: `every` or `keep` below 1; a checkpoint of another model, of other settings or
            of other `stateful` callbacks; weights to be saved that are not finite.

    Example:

    >>> stop = keras.callbacks.EarlyStopping("val_loss", patience=3)
    >>> saved = TrainingCheckpoint("run/state", every=1000, stateful=[stop])
    >>> model.fit(train, epochs=30, callbacks=[stop, saved])  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        every: int | None = None,
        data: object = None,
        keep: int = 2,
        stateful: Sequence[keras.callbacks.Callback] = (),
    ):
        super().__init__()
        for name, value in (("every", every), ("keep", keep)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, but it is {value}.")
        self.folder = checked_path(folder)
        self.every = every
        self.keep = keep
        self.stateful = list(stateful)
        self._batches = getattr(data, "batches", None)
        self._interrupt = Interrupt()

    # Continuing

    def set_model(self, model):
        super().set_model(model)
        # Before `fit` builds its step: TensorFlow can lose a KeyboardInterrupt in making variables.
        self._interrupt.catch(model)

    def on_train_begin(self, logs=None):
        model = self.model
        self._settings = settings_of(model)
        self._fresh = None  # attributes of the callbacks before the first epoch
        self._pending = None  # arrays and note of the checkpoint, until the first epoch
        self._to_pass, self._rest = 0, None  # batches to pass over, and an iterator over the others
        self._epochs = 0  # that are done
        model._initial_epoch = None
        build_optimizer(model)
        newest = self.newest()
        if newest is not None:
            self._continue(*newest)

    def newest(self) -> tuple[pathlib.Path, dict[str, np.ndarray], dict] | None:
        """Path, arrays and note of the newest whole checkpoint, or `None`."""
        for partial in self.folder.glob("*.partial"):
            _log.info("%s was not finished and is not used", partial)
        for path in sorted(self.folder.glob("checkpoint-*.npz"), reverse=True):
            try:
                return path, *read_checkpoint(path)
            except ValueError as error:
                _log.warning("%s The checkpoint before it is used.", error)
        return None

    def _continue(self, path, arrays, info):
        changed = rate_changes(info["settings"], self._settings, path)
        classes = [type(callback).__name__ for callback in self.stateful]
        if classes != (saved := [name for name, _ in info["callbacks"]]):
            raise ValueError(
                f"{path} holds the progress of {saved}, but `stateful` lists {classes}. List the "
                f"same callbacks in the same order, or delete {self.folder} to start anew."
            )
        # A learning rate that was changed is not read back.
        ends = ("/learning_rate",) if changed else ()
        others = ("metrics/", "callbacks/")
        variables, saved = (
            {n: v for n, v in found.items() if not (n.startswith(others) or n.endswith(ends))}
            for found in (_state(self.model), arrays)
        )
        with self.model.distribute_strategy.scope():
            assign(variables, saved, path)
        self._epochs, batch, asked = info["epoch"], info["batch"], self.params["epochs"]
        most = info["epochs"] if info["finished"] else self._epochs
        if done := asked <= most:
            how = "stopped early" if self._epochs < most else "is complete"
            text = (
                f"Nothing to train: the run in {self.folder} {how} after {self._epochs} epochs. "
                f"Ask for more than {most} epochs to go on, or delete the folder to start anew."
            )
            restore(self.stateful, info["callbacks"], arrays)
        else:
            position = f"batch {batch + 1}" if batch else "its first batch"
            text = f"Continuing at epoch {self._epochs + 1}, {position}, from {path}."
            self._pending = arrays, info
        if is_chief(self.model):
            print(" ".join([text, *changed]), flush=True)
        # Keras reads this after `on_train_begin`, for callbacks like this one.
        self.model._initial_epoch = asked if done else self._epochs

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._saved_at = epoch, 0
        self.model._initial_epoch = None  # `fit` has read it
        if self._fresh is None:
            self._fresh = [attributes(callback) for callback in self.stateful]
        pending, self._pending = self._pending, None
        if pending is not None:
            restore(self.stateful, pending[1]["callbacks"], pending[0])
            if pending[1]["batch"]:
                self._start_at(pending[1]["batch"], pending[0])
        if self._batches is not None:
            self._batches.seek(epoch)

    def _start_at(self, batch, arrays):
        """Passes over the first steps of this epoch: no training, and no reading if avoidable.

        `fit` still counts these steps, so that their number and the progress bar are right.
        """
        self._saved_at = self._to_pass = batch
        self._metrics = {n: a for n, a in arrays.items() if n.startswith("metrics/")}
        if self._batches is not None:
            self._build_metrics(next(iter(self._batches.rest(self._epoch, 0))))
            dataset = self._batches.rest(self._epoch, batch)
            strategy = self.model.distribute_strategy
            self._rest = iter(strategy.experimental_distribute_dataset(dataset))

    def on_train_batch_begin(self, batch, logs=None):
        if not self._to_pass and self._rest is None:
            return
        model, step = self.model, self.model.train_function
        history = model.history  # of this call of `fit`

        def train_function(iterator):
            # For one batch only: if `fit` ends by an error, nothing is left in the model.
            model.train_function = step
            if model.history is history and self._to_pass:
                return self._pass_over(iterator)
            rest = self._rest if model.history is history else None
            return step(iterator if rest is None else rest)

        model.train_function = train_function

    def _pass_over(self, iterator):
        model = self.model
        batches = min(self._to_pass, model.steps_per_execution)
        self._to_pass -= batches
        if self._rest is None:
            for _ in range(batches):
                self._build_metrics(next(iterator))
        with model.distribute_strategy.scope():
            assign(keyed({"metrics": model.metrics_variables}), self._metrics, self.folder)
        return model.get_metrics_result()

    def _build_metrics(self, batch):
        """Metrics get their variables at first use; without a strategy that is the first step."""
        model = self.model
        if len(model.metrics_variables) < len(self._metrics):
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
        self._to_pass, self._rest = 0, None
        self._epochs = epoch + 1
        self._save(self._epochs, 0)
        self._stop_if_asked()

    def on_train_end(self, logs=None):
        self._interrupt.release()
        model = self.model
        trained = model._initial_epoch is None
        model._initial_epoch = None  # for the next call of `fit`
        # Not the weights of the last checkpoint, if the best ones or an average were restored.
        final = self.folder / "final" / f"weights-{self._epochs:05d}.npz"
        if not trained and final.exists():
            with model.distribute_strategy.scope():
                assign(keyed({"weights": model.weights}), read_checkpoint(final)[0], final)
        elif self._epochs:
            write_weights(final, model, {"epoch": self._epochs}, keep=1)
        self._stop_if_asked()

    def _save(self, epoch, batch):
        model = self.model
        variables = _state(model)
        if batch:
            variables |= keyed({"metrics": model.metrics_variables})
            if self._batches is not None:  # an update of several batches may end short of its last
                batch = min(batch, self._batches.batches_per_epoch)
        with model.distribute_strategy.scope():
            arrays = values_of(variables)  # all machines: reading a metric sums over them
        broken = [
            name
            for name, array in arrays_of(arrays, "weights").items()
            if not np.all(np.isfinite(array.astype("float32")))
        ]
        if broken:
            raise ValueError(
                f"{len(broken)} weights are not finite any more in epoch {self._epoch + 1}: "
                f"{broken[0]} and others. They are not saved: the last checkpoint in "
                f"{self.folder} is sound."
            )
        if not is_chief(model):
            return
        states, lists = progress(self.stateful, self._fresh)
        info = {
            "epoch": epoch,
            "batch": batch,
            "epochs": self.params["epochs"],
            "finished": bool(model.stop_training) and not batch,
            "callbacks": states,
            "settings": self._settings,
        }
        path = self.folder / f"checkpoint-{epoch:05d}-{batch:08d}.npz"
        write_checkpoint(path, arrays | lists, info)
        keep_newest(path, self.keep)

    def _stop_if_asked(self):
        if self._interrupt.caught:
            raise KeyboardInterrupt(f"interrupted; start again to continue from {self.folder}")


def _state(model: keras.Model) -> dict[str, keras.Variable]:
    """All variables that the rest of training depends on, except those of metrics."""
    known = {id(v) for v in model.weights}
    seeds = [v for v in model.variables if id(v) not in known]  # of dropout
    return keyed({"weights": model.weights, "seeds": seeds, "optimizer": model.optimizer.variables})
