"""Ctrl-C that waits until training can stop without a loss."""

import inspect
import signal
import threading
import weakref
from types import FrameType

import keras


class Interrupt:
    """Notes the first Ctrl-C or SIGTERM during one call of `fit`; the next one acts as usual.

    A callback cannot see that `fit` ends by an error. The handlers then stay, but they pass every
    signal on to the earlier handlers: they note it only while that call of `fit` is running.

    Attributes:
        caught: bool, whether a signal was noted.
    """

    def __init__(self):
        self.caught = False
        self._handlers = {}

    def catch(self, model: keras.Model):
        """Begins to note signals, if `fit` of the model is running. An ignored one stays ignored.

        Args:
            model: the model in whose `fit` this is called.
        """
        self.release()
        self.caught = False
        if (history := getattr(model, "history", None)) is None:
            return
        # Each call of `fit` gives the model a new `History`.
        self._model, self._history = weakref.ref(model), weakref.ref(history)
        if not self._in_fit(inspect.currentframe()):  # but in `evaluate` or `predict`
            return
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's
                    self._handlers[number] = signal.signal(number, self._note)

    def release(self):
        """Gives the signals back to the earlier handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _note(self, number: int, frame: FrameType | None):
        self.release()
        if not self._in_fit(frame):
            signal.raise_signal(number)
            return
        self.caught = True
        print("\nSaving after this update; once more stops at once.", flush=True)

    def _in_fit(self, frame: FrameType | None) -> bool:
        model = self._model()
        if model is None or model.history is not self._history():
            return False
        while frame is not None:
            if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model:
                return True
            frame = frame.f_back
        return False
