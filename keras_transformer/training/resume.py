"""Training that continues exactly where it stopped."""

import logging
import pathlib
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
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
from keras_transformer.training.optimizers import build_optimizer
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

# Path, arrays and note of a checkpoint.
_Checkpoint = tuple[pathlib.Path, dict[str, Array], dict[str, Any]]


class Run:
    """A training run in a folder, which holds the whole state of training.

    `fit` calls `model.fit` and writes checkpoints. Start the script again after an interruption:
    `fit` continues from the newest undamaged checkpoint, and the final weights are the same as
    without the interruption. A checkpoint has the weights, the optimizer state (moments, averages,
    number of updates, loss scale), the seeds of dropout, the position in the data and, within an
    epoch, the metrics.

    One line of output says where `fit` continues. A run that finished, by its last epoch or by an
    early stop, is not trained any further: the model gets its final weights, and the line says so.
    Pass more epochs to continue after that; patience then starts anew. A run that a callback
    stopped within an epoch continues at the next batch.

    The model, the optimizer and the loss must be configured as before. Only the learning rate may
    change: `fit` then continues with the new one, and the line names both.

    The order of the data must depend only on the epoch. This holds for datasets of this package;
    `fit` then starts in the middle of an epoch without building the batches before. Other datasets
    are read up to the position; one that shuffles must give the same order in the same epoch. Leave
    out `steps_per_epoch`: epochs that are parts of a pass would continue elsewhere. Within an
    epoch, changed data is an error.

    Ctrl-C (or SIGTERM) saves after the current update and then raises `KeyboardInterrupt`; a
    second one stops at once. During validation the first one waits for the end of the epoch.

    On several machines only the first one writes, and all of them read: share the folder. A run
    needs the TensorFlow backend.

    Args:
        folder: str or path of the folder to write, one for each run.
        data: the dataset of this package that the data of `fit` is made from, such as `train` for
            `train.map(function)`. Defaults to `None`: it is passed to `fit` itself.
        every: number of batches between checkpoints within an epoch. Defaults to `None`: at the end
            of each epoch only.
        keep: number of checkpoints to keep. Defaults to 2: if the newest is damaged on the disk,
            the one before it is used.
        stateful: callbacks whose progress is also saved: numbers, strings and booleans that
            training has changed, and lists of arrays. List `EarlyStopping` (its patience and its
            best weights) and `BleuCallback` (its best score) here.

    Raises:
        ValueError: `every` or `keep` below 1.

    Example:

    >>> stop = keras.callbacks.EarlyStopping("val_loss", patience=3)
    >>> run = kt.Run("run/state", every=1000, stateful=[stop])
    >>> run.fit(model, train, epochs=30, callbacks=[stop])  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: StrPath,
        data: Any = None,
        every: int | None = None,
        keep: int = 2,
        stateful: Sequence[keras.callbacks.Callback] = (),
    ) -> None:
        for name, value in (("every", every), ("keep", keep)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, but it is {value}.")
        self.folder: pathlib.Path = checked_path(folder)
        self.data = data
        self.every = every
        self.keep = keep
        self.stateful: list[keras.callbacks.Callback] = list(stateful)

    def fit(
        self,
        model: keras.Model,
        x: Any = None,
        y: Any = None,
        *,
        epochs: int = 1,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        **options: Any,
    ) -> keras.callbacks.History:
        """Calls `model.fit`, which continues from the newest checkpoint of the folder.

        Args:
            model: compiled and built `keras.Model`.
            x, y: as in `model.fit`: a dataset, or inputs and labels.
            epochs: number of epochs of the whole run. Defaults to 1.
            callbacks: callbacks of `model.fit`. A checkpoint is written after all of them, but
                before `SwapEMAWeights(swap_on_epoch=True)` replaces the weights by their average.
                Defaults to `None`.
            **options: other arguments of `model.fit`, except `initial_epoch`.

        Returns:
            The result of `model.fit`: the `History` of the epochs of this call.

        Raises:
            KeyboardInterrupt: after Ctrl-C or SIGTERM.
            ValueError: another backend than TensorFlow; a model that is not compiled or not built;
                a checkpoint of another model, of other settings, of other `stateful` callbacks or,
                within an epoch, of other data; weights to be saved that are not finite.

        Example:

        >>> run = kt.Run("run/state")
        >>> run.fit(model, train, validation_data=valid, epochs=30)  # doctest: +SKIP
        """
        if (backend := keras.backend.backend()) != "tensorflow":
            raise ValueError(
                f"A Run needs the TensorFlow backend, but Keras runs on {backend}. Set "
                "KERAS_BACKEND=tensorflow, or use keras.callbacks.BackupAndRestore."
            )
        if not model.compiled:
            raise ValueError("A Run needs a compiled model: call model.compile(optimizer, loss).")
        if not model.built:
            raise ValueError(
                f"The model {model.name!r} is not built, so its weights cannot be read back. Call "
                "it once on a batch before fit, or begin it with a keras.Input."
            )
        settings = configured_settings(model)
        with _Interrupt() as interrupt:
            batches = getattr(x if self.data is None else self.data, "batches", None)
            state = _State(self, batches, settings, epochs, interrupt)
            try:
                history = model.fit(
                    x,
                    y,
                    epochs=epochs,
                    initial_epoch=state.first_epoch,
                    callbacks=_with_state(callbacks or (), state),
                    **options,
                )
            finally:
                note_rate(model, settings)
        interrupt.stop_if_caught(self.folder)
        return history

    def newest(self) -> _Checkpoint | None:
        """Returns path, arrays and note of the newest undamaged checkpoint, or `None`."""
        for partial in self.folder.glob("*.partial"):
            _log.info("%s was not finished and is not used", partial)
        for path in sorted(self.folder.glob("checkpoint-*.npz"), reverse=True):
            try:
                arrays, info = read_checkpoint(path)
                if isinstance(info, dict) and info.keys() >= _NOTE:
                    return path, arrays, info
                raise ValueError(f"{path} is not a checkpoint of a Run.")
            except ValueError as error:
                _log.warning("%s The checkpoint before it is used.", error)
        return None


def _with_state(
    callbacks: Sequence[keras.callbacks.Callback], state: "_State"
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks and `state`, which must see the weights before an average does."""
    swaps = [getattr(callback, "swap_on_epoch", False) for callback in callbacks]
    place = swaps.index(True) if True in swaps else len(swaps)
    return [*callbacks[:place], state, *callbacks[place:]]


class _State(keras.callbacks.Callback):
    """Restores the state of a run before one call of `fit`, and saves it during that call.

    Args:
        run: the run.
        batches: the `Batches` of the data; `None` for other data.
        settings: result of `configured_settings`.
        epochs: number of epochs of the whole run.
        interrupt: the signals of this call.

    Attributes:
        first_epoch: number of the first epoch to train, from 0.
    """

    def __init__(
        self,
        run: Run,
        batches: Any,
        settings: dict[str, Any],
        epochs: int,
        interrupt: "_Interrupt",
    ) -> None:
        super().__init__()
        self._run, self._settings, self._interrupt = run, settings, interrupt
        self._batches = batches
        self._newest = run.newest()
        self._finished = 0  # epochs
        self._skipped = 0  # batches of the first epoch that an earlier call has trained on
        self._done = False
        if self._newest is not None:
            _, _, info = self._newest
            self._finished = info["epoch"]
            self._done = epochs <= (info["epochs"] if info["finished"] else info["epoch"])
            self._skipped = info["batch"]
        self.first_epoch: int = epochs if self._done else self._finished

    # Continuing

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model = self.model
        build_optimizer(model)
        self._data = getattr(self._batches, "settings", {"batches": self.params["steps"]})
        given = getattr(self._batches, "tokenizers", {})
        if given:
            check_tokenizers(model, given)
            record_digests(model, digests(given))
        self._tokenizers = recorded_digests(model) or digests(given)
        # After `on_train_begin` of the other callbacks, which may set attributes anew.
        self._fresh = [attributes(callback) for callback in self._run.stateful]
        if self._newest is not None:
            self._restore(*self._newest)
        elif is_chief(model):
            for path in (self._run.folder / "final").glob("weights-*.npz"):
                path.unlink()  # of an earlier run

    def _restore(self, path: pathlib.Path, arrays: dict[str, Array], info: dict[str, Any]) -> None:
        folder, stateful = self._run.folder, self._run.stateful
        refuse_other_tokenizers(info["tokenizers"], self._tokenizers, f"The run of {path}")
        changed = rate_changes(info["settings"], self._settings, path)
        if info["batch"]:
            refuse_other_data(info["data"], self._data, path)
        classes = [type(callback).__name__ for callback in stateful]
        if classes != (saved := [name for name, _ in info["callbacks"]]):
            raise ValueError(
                f"{path} holds the progress of {saved}, but `stateful` lists {classes}. List the "
                f"same callbacks in the same order, or delete {folder} to start anew."
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
        self._metrics = {n: a for n, a in arrays.items() if n.startswith("metrics/")}
        restore(stateful, info["callbacks"], arrays, go_on=info["finished"] and not self._done)
        position = f"batch {self._skipped + 1}" if self._skipped else "its first batch"
        text = f"Continuing at epoch {self._finished + 1}, {position}, from {path}."
        if self._done:
            most = info["epochs"] if info["finished"] else self._finished
            how = "stopped early" if self._finished < most else "is complete"
            text = (
                f"Nothing to train: the run in {folder} {how} after {self._finished} epochs. Ask "
                f"for more than {most} epochs to continue, or delete the folder to start anew."
            )
        if is_chief(self.model):
            print(" ".join([text, *changed]), flush=True)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch, self._batch, self._saved = epoch, 0, self._skipped
        if self._batches is not None:
            self._batches.seek(epoch, self._skipped)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if batch < self._skipped:
            self._skip(batch)

    def _skip(self, batch: int) -> None:
        """Replaces the model's next step by one that only reads its batches.

        `fit` still counts the step, so the progress bar is right.
        """
        model, step = self.model, self.model.train_function

        def read(iterator: Iterator[Any]) -> dict[str, Any]:
            model.train_function = step  # first: an error must not leave this function in the model
            first = next(iterator)
            for _ in range(model.steps_per_execution - 1):
                next(iterator, None)
            if not batch:
                self._restore_metrics(first)
            return model.get_metrics_result()

        model.train_function = read

    def _restore_metrics(self, batch: Any) -> None:
        model = self.model
        if len(model.metrics_variables) < len(self._metrics):
            # Without a strategy Keras creates the variables of metrics in the first step.
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            y_pred = model(x, training=False)
            model.compute_loss(x, y, y_pred, weight, training=False)
            model.compute_metrics(x, y, y_pred, weight)
        with model.distribute_strategy.scope():
            variables = keyed({"metrics": model.metrics_variables})
            assign(variables, self._metrics, "The checkpoint")

    # Saving

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._batch = batch + 1  # counted from 0
        if (steps := self.params["steps"]) is not None:
            self._batch = min(self._batch, steps)  # the last update of an epoch may have fewer
        every = self._run.every
        due = every is not None and self._batch - self._saved >= every
        if due or self._interrupt.caught or self._stops_within_epoch():
            self._save_within_epoch()
        self._interrupt.stop_if_caught(self._run.folder)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._skipped = 0
        if self._stops_within_epoch():
            self._save_within_epoch()
        else:
            self._finished = epoch + 1
            self._save(self._finished, 0)
        self._interrupt.stop_if_caught(self._run.folder)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        # `final` differs from the last checkpoint if the best weights or an average were restored.
        final = self._run.folder / "final" / f"weights-{self._finished:05d}.npz"
        arrays = read_if_whole(final) if self._done else None
        if arrays is not None:
            with self.model.distribute_strategy.scope():
                assign(keyed({"weights": self.model.weights}), arrays, final)
        elif self._finished:
            write_weights(final, self.model, self._finished, keep=1)

    def _stops_within_epoch(self) -> bool:
        steps = self.params["steps"]  # `None` if unknown
        return self.model.stop_training and steps is not None and self._batch < steps

    def _save_within_epoch(self) -> None:
        if self._batch > self._saved:
            self._save(self._epoch, self._batch)
            self._saved = self._batch

    def _save(self, epoch: int, batch: int) -> None:
        model, run = self.model, self._run
        variables = state_of(model)
        if batch:
            variables |= keyed({"metrics": model.metrics_variables})
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
                f"{run.folder} is undamaged."
            )
        if not is_chief(model):
            return
        states, lists = progress(run.stateful, self._fresh)
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
        path = run.folder / f"checkpoint-{epoch:05d}-{batch:08d}.npz"
        write_checkpoint(path, arrays | lists, info)
        keep_newest(path, run.keep)


class _Interrupt:
    """Records the first Ctrl-C or SIGTERM in a `with` block; the next one acts as usual.

    Attributes:
        caught: bool, whether a signal was recorded.
    """

    def __init__(self) -> None:
        self.caught: bool = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "_Interrupt":
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's
                    self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.__exit__()
        self.caught = True
        print("\nSaving after this update. A second signal stops at once.", flush=True)

    def stop_if_caught(self, folder: pathlib.Path) -> None:
        """Raises `KeyboardInterrupt` if a signal was recorded."""
        if self.caught:
            raise KeyboardInterrupt(f"interrupted; start again to continue from {folder}")
