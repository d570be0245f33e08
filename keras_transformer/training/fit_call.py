"""Changes that `TrainingCheckpoint` makes to one call of `fit`: its start, first steps and end.

Keras calls no callback when `fit` ends with an error. So everything here has an effect only during
the same call of `fit`, and leaves later calls unchanged.
"""

import inspect
import signal
import threading
import weakref
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import keras

from keras_transformer.training.checkpoints import assign, keyed
from keras_transformer.types import Array

if TYPE_CHECKING:  # it needs SentencePiece; callbacks do not
    from keras_transformer.data.batches import Batches


class FitCall:
    """Identifies one call of `fit` by the `History` that it gives the model.

    Args:
        model: the model whose `fit` is running.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self._history = weakref.ref(model), weakref.ref(model.history)

    def is_latest(self) -> bool:
        """Returns whether the model's `fit` was not called again."""
        model = self._model()
        return model is not None and model.history is self._history()

    def is_running(self, frame: FrameType | None) -> bool:
        """Returns whether a frame of the Python stack is within this call of `fit`."""
        while frame is not None and self.is_latest():
            if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is self._model():
                return True
            frame = frame.f_back
        return False


class FirstEpoch(int):
    """An epoch number that is false outside one call of `fit`.

    Keras reads `model._initial_epoch or initial_epoch` after all `on_train_begin`. So the value
    that an interrupted call left does not affect the next call.

    Args:
        epoch: number of the epoch, from 0.
        model: the model whose `fit` is running.
    """

    def __new__(cls, epoch: int, model: keras.Model) -> Self:
        first = super().__new__(cls, epoch)
        first._call = FitCall(model)
        return first

    def __bool__(self) -> bool:
        return int(self) > 0 and self._call.is_latest()


class SkippedBatches:
    """Skips the first steps of an epoch, if possible without reading them.

    `fit` still counts these steps, so the progress bar is right.

    Args:
        model: the model whose `fit` is running.
        epoch: number of the epoch, from 0.
        batch: number of batches to skip.
        arrays: the checkpoint's arrays, which include the values of the metrics.
        batches: the `batches` of this package's datasets; `None` for other datasets.
    """

    def __init__(
        self,
        model: keras.Model,
        epoch: int,
        batch: int,
        arrays: Mapping[str, Array],
        batches: "Batches | None",
    ) -> None:
        self._model = model
        self._metrics = {n: a for n, a in arrays.items() if n.startswith("metrics/")}
        self._left, self._rest = batch, None  # batches to skip, an iterator over the others
        if batches is not None:
            self._build_metrics(next(iter(batches.rest(epoch, 0))))
            strategy = model.distribute_strategy
            self._rest = iter(strategy.experimental_distribute_dataset(batches.rest(epoch, batch)))

    def before_batch(self) -> None:
        """Replaces the model's step for one batch, if it is skipped or read from the rest."""
        if not self._left and self._rest is None:
            return
        model, step, call = self._model, self._model.train_function, FitCall(self._model)

        def train_function(iterator: Iterator[Any]) -> Any:
            # For one batch only, so that an error in `fit` leaves nothing in the model.
            model.train_function = step
            if not call.is_latest():
                return step(iterator)
            if self._left:
                return self._skip(iterator)
            return step(iterator if self._rest is None else self._rest)

        model.train_function = train_function

    def _skip(self, iterator: Iterator[Any]) -> dict[str, Any]:
        model = self._model
        batches = min(self._left, model.steps_per_execution)
        self._left -= batches
        if self._rest is None:
            for _ in range(batches):
                self._build_metrics(next(iterator))
        with model.distribute_strategy.scope():
            assign(keyed({"metrics": model.metrics_variables}), self._metrics, "The checkpoint")
        return model.get_metrics_result()

    def _build_metrics(self, batch: Any) -> None:
        """Creates metrics' variables. Without a strategy Keras creates them in the first step."""
        model = self._model
        if len(model.metrics_variables) < len(self._metrics):
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            y_pred = model(x, training=False)
            model.compute_loss(x, y, y_pred, weight, training=False)
            model.compute_metrics(x, y, y_pred, weight)


class Interrupt:
    """Records the first Ctrl-C or SIGTERM during one call of `fit`; the next one acts as usual.

    If `fit` ends with an error, the signal handlers stay but pass every signal on to the earlier
    handlers.

    Attributes:
        caught: bool, whether a signal was recorded.
    """

    def __init__(self) -> None:
        self.caught: bool = False
        self._handlers: dict[signal.Signals, Any] = {}

    def catch(self, model: keras.Model) -> None:
        """Starts to record signals if `fit` of the model is running. Ignored ones stay ignored.

        Args:
            model: the model whose `fit` may be running.
        """
        self.release()
        self.caught = False
        if getattr(model, "history", None) is None:
            return
        self._call = FitCall(model)
        if not self._call.is_running(inspect.currentframe()):  # but `evaluate` or `predict`
            return
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's
                    self._handlers[number] = signal.signal(number, self._note)

    def release(self) -> None:
        """Restores the earlier signal handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.release()
        if not self._call.is_running(frame):
            signal.raise_signal(number)
            return
        self.caught = True
        print("\nSaving after this update. A second signal stops at once.", flush=True)
