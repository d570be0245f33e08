"""Log-mel features of sound, in front of a speech model.

Shapes: B batch, N samples, S frames, M mel bands, F frequencies.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.checks import check_positive
from keras_transformer.types import Array, Shape, Tensor

SAMPLE_RATE = 16_000  # samples per second
WINDOW = 400  # samples, 25 ms
HOP = 160  # samples between two frames, 10 ms


@keras.saving.register_keras_serializable("keras_transformer")
class LogMel(keras.Layer):
    """Log-mel features of sound at 16 kHz, as Whisper reads them (arXiv 2212.04356, section 2.2).

    Two convolutions compute the features: the discrete Fourier transform of windows of 400 samples
    every 160 samples, and the mel bands. So the layer exports and runs on every backend. Logarithms
    are clamped at 8 below the largest one of the row, then scaled to about [-1, 1]. The layer has
    no weights, and it computes in float32 under any dtype policy.

    Args:
        mels: int, M, number of mel bands. Defaults to 80.

    Call arguments:
        samples: float32 (B, N), sound at 16 kHz in [-1, 1]; N is at least 201. Whisper pads sound
            with zeros to 480,000 samples, 30 s.

    Returns:
        float32 (B, S, M), S = N // 160.

    Raises:
        ValueError: `mels` is not positive.

    Example:

    >>> LogMel(mels=80)(keras.ops.zeros((2, 1600))).shape
    (2, 10, 80)
    """

    def __init__(self, mels: int = 80, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "float32"})
        check_positive(mels=mels)
        self.mels = mels
        self._waves, self._filters = _waves(), mel_filters(mels)

    def call(self, samples: Tensor) -> Tensor:
        half = WINDOW // 2
        x = ops.pad(samples, [[0, 0], [half, half]], mode="reflect")[..., None]
        x = ops.conv(x, ops.convert_to_tensor(self._waves), HOP, padding="valid")[:, :-1]
        power = ops.square(x[..., : half + 1]) + ops.square(x[..., half + 1 :])  # (B, S, F)
        x = ops.conv(power, ops.convert_to_tensor(self._filters[None]), padding="valid")
        x = ops.log(ops.maximum(x, 1e-10)) / math.log(10)
        x = ops.maximum(x, ops.max(x, axis=(1, 2), keepdims=True) - 8.0)
        return (x + 4.0) / 4.0

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch_size, length = input_shape
        return batch_size, None if length is None else length // HOP, self.mels

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mels": self.mels}


def _waves() -> Array:
    """Cosines and sines of all frequencies under a Hann window, float32 (400, 1, 2 F)."""
    time = np.arange(WINDOW)
    window = np.hanning(WINDOW + 1)[:-1].astype("float32")
    angles = 2 * np.pi / WINDOW * (time[:, None] * np.arange(WINDOW // 2 + 1) % WINDOW)
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return (window[:, None] * waves).astype("float32")[:, None]


def mel_filters(mels: int) -> Array:
    """Triangular filters on Slaney's mel scale, each of unit area: float32 (F, M).

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
    return filters.astype("float32")
