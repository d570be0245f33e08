"""A fake pool of a speech model, with known windows."""

import asyncio

from keras_transformer.export.runtime.speech.transcripts import Segment, Transcript, Word
from keras_transformer.export.serving.engine import BatchResult, Description
from keras_transformer.export.serving.refusals import Invalid

WORDS = (Word(" No", 0.0, 0.5, 0.9), Word(" matter.", 0.5, 1.2, 0.8))
SEGMENTS = [
    Segment(0.0, 1.2, " No matter.", (52, 5, 53), -0.25, 0.125, 1.5, 0.0, WORDS),
    Segment(31.0, 32.5, " Try again.", (60, 6, 61), -0.5, 0.25, 1.25, 0.5, (), 3000),
]
WINDOWS = [SEGMENTS[:1], [], SEGMENTS[1:]]
DESCRIPTION = Description("transcribe", "version", False, hears=True)


class SoundPool:
    """The pool.

    Attributes:
        calls: the received sounds, with their options; also `batches`, as of `local_service.Pool`.
        gate: asyncio.Event; each window but the first waits for it.
        emitted: number of emitted windows.
    """

    workers, batch_tokens, ready, in_use = 1, 512, True, DESCRIPTION

    async def open(self):
        self.calls, self.gate, self.emitted = [], asyncio.Event(), 0
        self.batches = self.calls
        self.gate.set()
        return DESCRIPTION

    def measure(self, items):
        return [16] * len(items)

    async def run_stream(self, sound, options, emit):
        self.calls.append((sound, options))
        if sound == b"noise":
            raise Invalid("The model refuses the request.")
        for window in WINDOWS:
            if not emit(window):
                break
            self.emitted += 1
            await self.gate.wait()
        result = Transcript("en", 32.25, SEGMENTS)
        return BatchResult([result], [3225], 0.1, DESCRIPTION, "1")

    async def close(self):
        pass
