"""An engine without an artefact that dies, hangs or fails at certain lines, for tests of pools."""

import os
import threading
import time

from keras_transformer.export.serving.engine import BatchResult, Description
from keras_transformer.export.serving.refusals import FAILED, Invalid, Refusal

HANGING = threading.Event()  # when set, hanging batches continue


class FaultyEngine:
    """Answers each line with its process id.

    The line "die" ends the process, "hang" waits for `HANGING`, and "sleep" takes three seconds.
    "refuse" and "fail" raise errors that `Engine` raises, "break" another one. The result of "lock"
    cannot be pickled.
    """

    def __init__(self, folder, **options):
        self._description = Description("translate", "version", False)

    def describe(self):
        return self._description

    def run_batch(self, items, options=None):
        seed = (options or {}).get("seed")
        if "die" in items:
            os._exit(3)
        if "hang" in items:
            HANGING.wait(60)
        if "sleep" in items:
            time.sleep(3)
        if "refuse" in items:
            raise Invalid("The model refuses the request: it is too long")
        if "fail" in items:
            raise Refusal(FAILED)
        if "break" in items:
            raise ZeroDivisionError("secret")
        replica = str(os.getpid())
        results = [threading.Lock() if item == "lock" else f"{item} {seed}" for item in items]
        return BatchResult(results, [1] * len(items), 0.0, self._description, replica)

    def close(self):
        pass
