"""The frames and mel bands of Whisper's features, shared by the Keras layer and the runtime.

Shapes: F frequencies, M mel bands.
"""

import math

import numpy as np

from keras_transformer.types import Array

SAMPLE_RATE = 16_000  # samples per second
WINDOW = 400  # samples, 25 ms
HOP = 160  # samples between two frames, 10 ms


def hann_window() -> Array:
    """Returns the periodic Hann window, float32 (400,)."""
    return np.hanning(WINDOW + 1)[:-1].astype(np.float32)


def mel_filters(mels: int) -> Array:
    """Returns triangular filters of unit area on Slaney's mel scale, float32 (F, M).

    Args:
        mels: int, M.
    """
    top = 15 + 27 / math.log(6.4) * math.log(SAMPLE_RATE / 2 / 1000)  # 8 kHz in mels
    scale = np.linspace(0, top, mels + 2)
    # The scale is linear up to 1 kHz, which is 15 mels, then logarithmic.
    hertz = np.where(scale < 15, scale * 200 / 3, 1000 * 6.4 ** ((scale - 15) / 27))
    frequencies = np.linspace(0, SAMPLE_RATE / 2, WINDOW // 2 + 1)
    rise = (frequencies[:, None] - hertz[:-2]) / (hertz[1:-1] - hertz[:-2])
    fall = (hertz[2:] - frequencies[:, None]) / (hertz[2:] - hertz[1:-1])
    filters = np.maximum(0, np.minimum(rise, fall)) * 2 / (hertz[2:] - hertz[:-2])
    return filters.astype(np.float32)
