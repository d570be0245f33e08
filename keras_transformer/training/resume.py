"""Training that continues exactly where it stopped."""

import logging
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.files import checked_path
from keras_transformer.text.vocabularies import (
    check_tokenizers,
    digests,
    record_digests,
    recorded_digests,
    refuse_other_tokenizers,
)
from keras_transformer.training.checkpoints import (
    arrays_of,
    assign,
    is_chief,
    keep_newest,
    keyed,
    read_checkpoint,
    read_if_whole,
    state_of,
    values_of,
    write_checkpoint,
    write_weights,
)
from keras_transformer.training.fit_call import FirstEpoch, Interrupt, SkippedBatches
from keras_transformer.training.optimizers import build_optimizer, inner_optimizer
from keras_transformer.training.run_state import (
    attributes,
    configured_settings,
    note_rate,
    progress,
    rate_changes,
    refuse_other_data,
    restore,
)
from keras_transformer.types import Array, StrPath

_log = logging.getLogger(__name__)

_NOTE = {"epoch", "batch", "epochs", "finished", "callbacks", "settings", "data", "tokenizers"}


class TrainingCheckpoint(keras.callbacks.Callback):
    """Saves the whole state of training; the same call of `fit` continues from it.

    Start the script again after an interruption: `fit` continues from the newest undamaged
    checkpoint, and the final weights are the same as without the interruption. The checkpoint has
    the weights, the optimizer state (moments, averages, number of updates, loss scale), the seeds
    of dropout, the position in the data and, within an epoch, the metrics.

    One line of output says where `fit` continues. A run that finished, by its last epoch or by an
    early stop, is not trained any further: the model gets its final weights, and the line says so.
    Pass more epochs to continue after that; patience then starts anew. A run that a callback
    stopped within an epoch continues at the next batch.

    The model, the optimizer and the loss must be configured as before. Only the learning rate may
    change: `fit` then continues with the new one, and the line names both.

    The order of the data must depend only on the epoch. This holds for datasets of this package:
    pass the dataset as `data`, and `fit` starts in the middle of an epoch at no cost. Leave out
    `steps_per_epoch`: epochs that are parts of a pass would continue elsewhere. Other datasets are
    read up to the position; one that shuffles must give the same order in the same epoch. Within an
    epoch, changed data is an error.

    Ctrl-C (or SIGTERM) saves after the current update and then raises `KeyboardInterrupt`; a
    second one stops at once. During validation the first one waits for the end of the epoch.

    Put it last in the list of callbacks, so that it saves the state of the others; only
    `SwapEMAWeights(swap_on_epoch=True)`, which replaces the weights between two epochs, comes after
    it. On several machines only the first one writes, and all of them read: share the folder. It
    needs the TensorFlow backend.

    Args:
        folder: str or path of the folder to write, one for each run.
        every: number of batches between checkpoints within an epoch. Defaults to `None`: at the end
            of each epoch only.
        data: the dataset that is passed to `fit`, if this package made it.
        keep: number of checkpoints to keep. Defaults to 2: if the newest is damaged on the disk,
            the one before it is used.
        stateful: callbacks whose progress is also saved: numbers, strings and booleans that
            training has changed, and lists of arrays. List `EarlyStopping` (its patience and its
            best weights) and `BleuCallback` (its best score) here.

    Raises:
        ValueError: `every` or `keep` below 1; another backend than TensorFlow; a model that is not
            built; a checkpoint of another model, of other settings, of other `stateful` callbacks
            or, within an epoch, of other data; weights to be saved that are not finite, or that
            `SwapEMAWeights` has replaced by their average.

    Example:

    >>> stop = keras.callbacks.EarlyStopping("val_loss", patience=3)
    >>> saved = TrainingCheckpoint("run/state", every=1000, stateful=[stop])
    >>> model.fit(train, epochs=30, callbacks=[stop, saved])  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: StrPath,
        every: int | None = None,
        data: Any = None,
        keep: int = 2,
        stateful: Sequence[keras.callbacks.Callback] = (),
    ) -> None:
        super().__init__()
        for name, value in (("every", every), ("keep", keep)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, but it is {value}.")
        self.folder: pathlib.Path = checked_path(folder)
        self.every = every
        self.keep = keep
        self.stateful: list[keras.callbacks.Callback] = list(stateful)
        self._batches = getattr(data, "batches", None)
        self._interrupt = Interrupt()

    # Continuing

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        # Before `fit` builds its step, when TensorFlow can lose a KeyboardInterrupt.
        self._interrupt.catch(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model = self.model
        if (backend := keras.backend.backend()) != "tensorflow":
            raise ValueError(
                f"TrainingCheckpoint needs the TensorFlow backend, but Keras runs on {backend}. "
                "Set KERAS_BACKEND=tensorflow, or use keras.callbacks.BackupAndRestore."
            )
        if not model.built:
            raise ValueError(
                f"The model {model.name!r} is not built, so its weights cannot be read back. Call "
                "it once on a batch before fit, or begin it with a keras.Input."
            )
        self._settings = configured_settings(model)
        self._data = getattr(self._batches, "settings", {"batches": self.params["steps"]})
        given = getattr(self._batches, "tokenizers", {})
        if given:
            check_tokenizers(model, given)
            record_digests(model, digests(given))
        self._tokenizers = recorded_digests(model) or digests(given)
        self._fresh = None  # attributes of the callbacks before the first epoch
        self._pending = None  # arrays and note of the checkpoint, until the first epoch
        self._skipped = None  # the first steps of the epoch, if it began before
        self._epochs = 0  # finished ones
        self._last = None  # one of the weights after the last update, if the optimizer averages
        model._initial_epoch = None
        build_optimizer(model)
        newest = self.newest()
        if newest is not None:
            self._continue(*newest)
        elif is_chief(model):
            for path in (self.folder / "final").glob("weights-*.npz"):
                path.unlink()  # of an earlier run
        note_rate(model)

    def newest(self) -> tuple[pathlib.Path, dict[str, Array], dict[str, Any]] | None:
        """Returns path, arrays and note of the newest undamaged checkpoint, or `None`."""
        for partial in self.folder.glob("*.partial"):
            _log.info("%s was not finished and is not used", partial)
        for path in sorted(self.folder.glob("checkpoint-*.npz"), reverse=True):
            try:
                arrays, info = read_checkpoint(path)
                if isinstance(info, dict) and info.keys() >= _NOTE:
                    return path, arrays, info
                raise ValueError(f"{path} is not a checkpoint of TrainingCheckpoint.")
            except ValueError as error:
                _log.warning("%s The checkpoint before it is used.", error)
        return None

    def _continue(self, path: pathlib.Path, arrays: dict[str, Array], info: dict[str, Any]) -> None:
        refuse_other_tokenizers(info["tokenizers"], self._tokenizers, f"The run of {path}")
        changed = rate_changes(info["settings"], self._settings, path)
        if info["batch"]:
            refuse_other_data(info["data"], self._data, path)
        classes = [type(callback).__name__ for callback in self.stateful]
        if classes != (saved := [name for name, _ in info["callbacks"]]):
            raise ValueError(
                f"{path} holds the progress of {saved}, but `stateful` lists {classes}. List the "
                f"same callbacks in the same order, or delete {self.folder} to start anew."
            )
        # A changed learning rate is not restored.
        ends = ("/learning_rate",) if changed else ()
        others = ("metrics/", "callbacks/")
        variables, saved = (
            {n: v for n, v in found.items() if not (n.startswith(others) or n.endswith(ends))}
            for found in (state_of(self.model), arrays)
        )
        with self.model.distribute_strategy.scope():
            assign(variables, saved, path)
        self._epochs, batch, asked = info["epoch"], info["batch"], self.params["epochs"]
        most = info["epochs"] if info["finished"] else self._epochs
        if done := asked <= most:
            how = "stopped early" if self._epochs < most else "is complete"
            text = (
                f"Nothing to train: the run in {self.folder} {how} after {self._epochs} epochs. "
                f"Ask for more than {most} epochs to continue, or delete the folder to start anew."
            )
            restore(self.stateful, info["callbacks"], arrays)
        else:
            position = f"batch {batch + 1}" if batch else "its first batch"
            text = f"Continuing at epoch {self._epochs + 1}, {position}, from {path}."
            self._pending = arrays, info
        if is_chief(self.model):
            print(" ".join([text, *changed]), flush=True)
        # Keras reads this after `on_train_begin`, for callbacks like this one.
        self.model._initial_epoch = FirstEpoch(asked if done else self._epochs, self.model)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch, self._batch, self._saved_at = epoch, 0, 0
        self.model._initial_epoch = None  # `fit` has read it
        note_rate(self.model)
        if self._fresh is None:
            self._fresh = [attributes(callback) for callback in self.stateful]
        pending, self._pending = self._pending, None
        if pending is not None:
            arrays, info = pending
            restore(self.stateful, info["callbacks"], arrays, go_on=info["finished"])
            if batch := info["batch"]:
                self._saved_at = batch
                self._skipped = SkippedBatches(self.model, epoch, batch, arrays, self._batches)
        if self._batches is not None:
            self._batches.seek(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._skipped is not None:
            self._skipped.before_batch()

    # Saving

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        note_rate(self.model)
        if (weight := self._averaged_weight()) is not None:
            self._last = keras.ops.copy(weight)
        self._batch = batch + 1  # counted from 0
        due = self.every is not None and self._batch - self._saved_at >= self.every
        if due or self._interrupt.caught or self._stops_within_epoch():
            self._save_within_epoch()
        self._stop_if_asked()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        note_rate(self.model)
        self._skipped = None
        self._refuse_averages()
        if self._stops_within_epoch():
            self._save_within_epoch()
        else:
            self._epochs = epoch + 1
            self._save(self._epochs, 0)
        self._stop_if_asked()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._interrupt.release()
        model = self.model
        trained = model._initial_epoch is None
        model._initial_epoch = None  # for the next call of `fit`
        # `final` differs from the last checkpoint if the best weights or an average were restored.
        final = self.folder / "final" / f"weights-{self._epochs:05d}.npz"
        arrays = None if trained else read_if_whole(final)
        if arrays is not None:
            with model.distribute_strategy.scope():
                assign(keyed({"weights": model.weights}), arrays, final)
        elif self._epochs:
            write_weights(final, model, {"epoch": self._epochs}, keep=1)
        self._stop_if_asked()

    def _averaged_weight(self) -> keras.Variable | None:
        """Returns the smallest trainable weight, or `None` if the optimizer has no averages."""
        if not getattr(inner_optimizer(self.model.optimizer), "use_ema", False):
            return None
        return min(self.model.trainable_variables, key=lambda v: math.prod(v.shape), default=None)

    def _refuse_averages(self) -> None:
        last, self._last = self._last, None
        if last is None or np.array_equal(
            last, keras.ops.convert_to_numpy(self._averaged_weight())
        ):
            return
        raise ValueError(
            "The weights have changed since the last batch, and training cannot continue from an "
            "average. Put SwapEMAWeights(swap_on_epoch=True), or what else replaces weights at the "
            "end of an epoch, after TrainingCheckpoint in the list of callbacks."
        )

    def _stops_within_epoch(self) -> bool:
        steps = self.params["steps"]  # `None` if unknown
        return self.model.stop_training and steps is not None and self._batch < steps

    def _save_within_epoch(self) -> None:
        if self._batch > self._saved_at:
            self._save(self._epoch, self._batch)
            self._saved_at = self._batch

    def _save(self, epoch: int, batch: int) -> None:
        model = self.model
        variables = state_of(model)
        if batch:
            variables |= keyed({"metrics": model.metrics_variables})
            if self._batches is not None:  # the last update of an epoch may have fewer
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
            "data": self._data,
            "tokenizers": self._tokenizers,
        }
        path = self.folder / f"checkpoint-{epoch:05d}-{batch:08d}.npz"
        write_checkpoint(path, arrays | lists, info)
        keep_newest(path, self.keep)

    def _stop_if_asked(self) -> None:
        if self._interrupt.caught:
            raise KeyboardInterrupt(f"interrupted; start again to continue from {self.folder}")
