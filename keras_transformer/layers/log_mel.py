"""Log-mel features of sound, in front of a speech model.

Shapes: B batch, N samples, S frames, M mel bands, F frequencies.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.checks import check_positive
from keras_transformer.mel import HOP, WINDOW, hann_window, mel_filters
from keras_transformer.types import Array, Shape, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class LogMel(keras.Layer):
    """Log-mel features of sound at 16 kHz, as in Whisper (arXiv 2212.04356, section 2.2).

    Two convolutions compute the features: the discrete Fourier transform of windows of 400 samples
    every 160 samples, and the mel bands. So the layer can be exported and runs on every backend.
    Logarithms are clamped at 8 below the largest one of the row, then scaled to about [-1, 1]. The
    layer has no weights, and it computes in float32 under any dtype policy.

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
    """Returns cosines and sines of all frequencies under a Hann window, float32 (400, 1, 2 F)."""
    time = np.arange(WINDOW)
    angles = 2 * np.pi / WINDOW * (time[:, None] * np.arange(WINDOW // 2 + 1) % WINDOW)
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return (hann_window()[:, None] * waves).astype("float32")[:, None]
