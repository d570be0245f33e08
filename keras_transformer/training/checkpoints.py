"""Checkpoints that are whole or not there, runs that continue exactly, averages of weights.

A checkpoint is one `.npz` file. It is written aside, flushed to the disk and then moved into place
(`files`), so that a run killed while writing leaves a `.partial` folder that nobody reads. Every
array in it carries a checksum (CRC-32, of the zip format), which is verified on reading.
"""

import json
import logging
import os
import pathlib
import signal
import threading
import zipfile
import zlib

import keras
import numpy as np

from keras_transformer.files import whole_file

_log = logging.getLogger(__name__)
_CORRUPT = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


def write_checkpoint(path, arrays, info):
    """Writes arrays and a note, atomically and through to the disk.

    Args:
        path: where to; an existing file is replaced.
        arrays: dictionary from name to NumPy array.
        info: anything that JSON can hold.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, sync=True) as aside, open(aside, "wb") as file:
        np.savez(file, info=np.array(json.dumps(info)), **arrays)


def read_checkpoint(path):
    """Reads what `write_checkpoint` has written, and verifies all of it.

    Returns:
        The arrays (dictionary) and the note.

    Raises:
        ValueError: the file is damaged or no checkpoint.
        FileNotFoundError: there is none.
    """
    try:
        # Opened here: `np.load` would leave a file open that is not a whole zip.
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        info = json.loads(str(arrays.pop("info")))
    except FileNotFoundError:
        raise
    except _CORRUPT as error:
        raise ValueError(
            f"{path} is damaged or no checkpoint of this package ({error}). Remove it; the one "
            "before it is used then."
        ) from error
    return arrays, info


def write_weights(path, model, info):
    """Writes the weights of a model; `model.set_weights(average_checkpoints([path]))` reads them.

    Under a strategy of several machines the first one writes.
    """
    if _is_chief(model.distribute_strategy):
        write_checkpoint(path, _arrays({"weights": model.weights}), info)


def average_checkpoints(paths, last=None):
    """Averages the weights of several checkpoints (section 6.1: the last 5, "big" the last 20).

    Args:
        paths: list of checkpoint files, or a folder, whose `.npz` files are taken in the order of
            their names; `CheckpointAveraging` and `TrainingCheckpoint` name them by epoch.
        last: use only this many, from the end. Defaults to all.

    Returns:
        List of NumPy arrays for `model.set_weights`, averaged in float64. Integer weights are not
        averaged but taken from the last file.

    Raises:
        ValueError: no file, `last` below 1 or above the number of files, a damaged file, or files
            of different models.

    Example:

    >>> model.set_weights(average_checkpoints("run/weights", last=5))  # doctest: +SKIP
    """
    if isinstance(paths, str | os.PathLike):
        paths = sorted(pathlib.Path(paths).glob("*.npz"))
    available = len(paths)
    if last is not None and not 1 <= last <= available:
        raise ValueError(f"last={last} checkpoints were asked for, but there are {available}.")
    paths = paths[-last:] if last else paths
    if not paths:
        raise ValueError("There is no checkpoint to average: the list or folder is empty.")
    sums = shapes = None
    for path in paths:
        arrays = _group(read_checkpoint(path)[0], "weights")
        if shapes is None:
            shapes = [a.shape for a in arrays]
            sums = [np.zeros(s, "float64") for s in shapes]
        if [a.shape for a in arrays] != shapes:
            raise ValueError(f"{path} holds weights of other shapes than {paths[0]}.")
        for total, array in zip(sums, arrays, strict=True):
            total += array
    whole = [np.issubdtype(a.dtype, np.integer) for a in arrays]  # the last file's arrays
    return [
        array if integer else (total / len(paths)).astype(array.dtype)
        for total, array, integer in zip(sums, arrays, whole, strict=True)
    ]


def _group(arrays, name):
    """The arrays `name/0`, `name/1`, ... as a list."""
    return [arrays[f"{name}/{i}"] for i in range(sum(k.startswith(f"{name}/") for k in arrays))]


def _arrays(groups):
    """Current values of variables, as a dictionary that `_group` takes apart again."""
    return {
        f"{name}/{i}": keras.ops.convert_to_numpy(variable)
        for name, variables in groups.items()
        for i, variable in enumerate(variables)
    }


def _state(model):
    """All variables on which the rest of a run depends, without those of metrics."""
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


def _is_chief(strategy):
    """Whether this process writes: on one machine, or as the first of several workers."""
    resolver = getattr(strategy, "cluster_resolver", None)
    return resolver is None or not resolver.task_id


class CheckpointAveraging(keras.callbacks.Callback):
    """Keeps the weights of the last epochs on disk, one file each, to be averaged.

    Args:
        folder: where to; it holds nothing else.
        last: how many epochs to keep. Defaults to 5.

    Raises:
        ValueError: `last` below 1.

    Example:

    >>> averaging = CheckpointAveraging("run/weights", last=10)
    >>> model.fit(train, epochs=30, callbacks=[averaging])  # doctest: +SKIP
    >>> model.set_weights(averaging.average())  # doctest: +SKIP
    """

    def __init__(self, folder, last=5):
        super().__init__()
        if last < 1:
            raise ValueError(f"last must be at least 1, but it is {last}.")
        self.folder = pathlib.Path(folder)
        self.last = last

    def on_epoch_end(self, epoch, logs=None):
        write_weights(self.folder / f"weights-{epoch:05d}.npz", self.model, {"epoch": epoch})
        for old in sorted(self.folder.glob("weights-*.npz"))[: -self.last]:
            old.unlink(missing_ok=True)  # another machine may be quicker

    def average(self):
        """The mean of the weights on disk, for `model.set_weights`."""
        return average_checkpoints(self.folder)


class TrainingCheckpoint(keras.callbacks.Callback):
    """Saves all that a run depends on; the same call of `fit`, made again, continues it.

    Whenever the process ends, killed, interrupted or with the power lost, start the script again:
    `fit` goes on from the newest whole checkpoint and ends with the weights of a run that was
    never stopped. Saved are weights, optimizer (moments, averages, number of updates, loss scale),
    the seeds of dropout, the metrics of a begun epoch, and the position in the data.

    The data must be a function of the epoch: `translation_batches` is. Give it as `data`, and `fit`
    starts in the middle of an epoch at no cost. Other datasets are read up to the position and
    the batches dropped; one that shuffles anew must do it by epoch, or the order is another one.

    Ctrl-C (and SIGTERM) saves after the current update and then raises `KeyboardInterrupt`; a
    second one stops at once. During validation the first one waits for the end of the epoch.

    Put it last in the list of callbacks, so that it saves what the others have decided. Under a
    strategy of several machines only the first one writes; all read, so the folder is shared.

    Args:
        folder: where to.
        every: number of batches between checkpoints within an epoch. Defaults to `None`: at the end
            of each epoch only.
        data: the dataset that `fit` gets, if it comes from `translation_batches`.
        keep: number of checkpoints to keep. Defaults to 2: should the newest be damaged on the
            disk, the one before it is taken.
        stateful: callbacks whose plain attributes (numbers, strings, booleans) are saved, too:
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
        self._asked = False
        self._handlers = {}

    # Where a run begins

    def on_train_begin(self, logs=None):
        model = self.model
        self._asked = False
        self._pending = self.newest()
        with model.distribute_strategy.scope():
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
            if self._pending is not None:
                arrays, info = self._pending
                for name, variables in _state(model).items():
                    _assign(variables, _group(arrays, name), name)
                # Keras reads this after `on_train_begin`, for callbacks like this one.
                stopped = info["finished"]
                model._initial_epoch = self.params["epochs"] if stopped else info["epoch"]
                _log.info("continuing at epoch %(epoch)d, batch %(batch)d", info)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._ask)

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
        """Lets the first steps of this epoch pass without training, and without data if it can.

        `fit` counts on, so that the number of steps and the progress bar are right.
        """
        model, batches = self.model, self._batches
        step = self._own_step = model.train_function
        rest, metrics = None, _group(arrays, "metrics")
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

    # Where it is saved

    def on_train_batch_end(self, batch, logs=None):
        batch += 1  # counted from 0
        due = self.every is not None and batch - self._saved_at >= self.every
        if (due or self._asked) and batch > self._saved_at:
            self._save(self._epoch, batch)
            self._saved_at = batch
        self._stop_if_asked()

    def on_epoch_end(self, epoch, logs=None):
        if self._own_step is not None:
            self.model.train_function, self._own_step = self._own_step, None
        self._save(epoch + 1, 0)
        self._stop_if_asked()

    def on_train_end(self, logs=None):
        self._restore_handlers()
        self.model._initial_epoch = None  # for the next call of `fit`

    def _save(self, epoch, batch):
        model = self.model
        groups = _state(model)
        if batch:
            groups["metrics"] = model.metrics_variables
            if self._batches is not None:  # an update of several batches may end short of its last
                batch = min(batch, self._batches.batches_per_epoch)
        with model.distribute_strategy.scope():
            arrays = _arrays(groups)  # all machines: reading a metric sums over them
        broken = [
            v.path
            for v, a in zip(groups["weights"], _group(arrays, "weights"), strict=True)
            if not np.all(np.isfinite(a.astype("float32")))
        ]
        if broken:
            raise ValueError(
                f"{len(broken)} weights are not finite any more, {broken[0]} among them, at epoch "
                f"{self._epoch}. They are not saved: the last checkpoint in {self.folder} is sound."
            )
        if not _is_chief(model.distribute_strategy):
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

    # Ctrl-C

    def _ask(self, number, frame):
        self._asked = True
        self._restore_handlers()  # a second signal stops at once
        print("\nSaving after this update; once more stops at once.", flush=True)

    def _stop_if_asked(self):
        if self._asked:
            raise KeyboardInterrupt(f"interrupted; start again to continue from {self.folder}")

    def _restore_handlers(self):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


def _plain(attributes):
    """What JSON can hold and a resumed callback needs; names with an underscore are Keras' own."""
    kinds = bool | int | float | str | np.generic
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in attributes.items()
        if isinstance(value, kinds) and not name.startswith("_")
    }
