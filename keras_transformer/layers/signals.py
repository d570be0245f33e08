"""Sound and images as sequences of vectors: log-mel features, convolutions, and image patches.

Shapes: B batch, S frames, S' frames after the strides, N number of patches or of samples, C
channels, M mel bands, F frequencies, D size of the vectors.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from keras_transformer.layers.checks import check_positive
from keras_transformer.sound.mel import HOP, WINDOW, hann_window, mel_filters
from keras_transformer.types import Array, Shape, Tensor

PADDINGS = ("valid", "same", "causal")


@keras.saving.register_keras_serializable("keras_transformer")
class MaskedConv1D(layers.Conv1D):
    """`keras.layers.Conv1D` that respects the Keras mask and passes it on, also with strides.

    Speech models shorten sound by a few strided convolutions before the first block (Dong et al.
    2018, "Speech-Transformer"; Whisper, arXiv 2212.04356, section 2.2). On embeddings of text, it
    mixes each piece of a word with its neighbours before attention, which helps with little data.
    Keras' layer drops the mask. Here masked frames count as zeros, so that right padding does not
    change a row's vectors. To mask frames of zeros, put `keras.layers.Masking` in front.

    Frame j of the output belongs to frame j * strides of the input. If a filter spans k frames,
    "same" puts (k - 1) // 2 zeros on the left for any length, as in PyTorch. With strides above 1,
    Keras' "same" depends on the length.

    Weights: `kernel` (kernel_size, C, D), drawn by default like the kernel of `PatchEmbedding`;
    `bias` (D,).

    Args:
        filters: D, size of the output's vectors.
        kernel_size: number of frames that a filter reads.
        strides: number of frames between two outputs. Defaults to 1.
        padding: "same" or "causal", S' = ceil(S / strides); or "valid", where filters read
            existing frames only. Defaults to "same".
        **kwargs: all others of `keras.layers.Conv1D`.

    Call arguments:
        inputs: (B, S, C).
        mask: boolean (B, S), True = a real frame. Defaults to the Keras mask of `inputs`.

    Returns:
        (B, S', D), with the Keras mask (B, S').

    Raises:
        ValueError: `padding` is unknown, or `data_format` is not "channels_last".

    Example:

    >>> MaskedConv1D(filters=8, kernel_size=3, strides=2)(keras.ops.ones((2, 7, 4))).shape
    (2, 4, 8)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int],
        strides: int | tuple[int] = 1,
        padding: str = "same",
        **kwargs: Any,
    ) -> None:
        kwargs = {"kernel_initializer": "lecun_uniform", **kwargs}
        super().__init__(filters, kernel_size, strides=strides, padding=padding, **kwargs)
        if self.padding not in PADDINGS:
            raise ValueError(f"padding must be one of {PADDINGS}, but {padding!r} was passed.")
        if self.data_format != "channels_last":
            raise ValueError("MaskedConv1D supports channels_last only: (batch, frames, channels).")
        self.supports_masking = True
        # Distance between the first and the last frame that a filter reads.
        self._span = (self.kernel_size[0] - 1) * self.dilation_rate[0]

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            inputs = ops.where(mask[..., None], inputs, ops.zeros_like(inputs))
        left = {"valid": 0, "same": self._span // 2, "causal": self._span}[self.padding]
        right = self._span - left if self.padding == "same" else 0
        x = ops.conv(
            ops.pad(inputs, [[0, 0], [left, right], [0, 0]]),
            self.kernel,
            list(self.strides),
            padding="valid",
            dilation_rate=self.dilation_rate,
        )
        x = x + self.bias if self.use_bias else x
        return x if self.activation is None else self.activation(x)  # (B, S', D)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        mask = previous_mask
        if mask is None:
            return None
        if self.padding == "valid":  # both ends of the filter must be on real frames
            mask = ops.logical_and(mask[:, : -self._span or None], mask[:, self._span :])
        return mask[:, :: self.strides[0]]


@keras.saving.register_keras_serializable("keras_transformer")
class PatchEmbedding(keras.Layer):
    """Cuts images into patches and projects each to a vector (ViT, section 3.1).

    After Dosovitskiy et al. (arXiv 2010.11929). It equals a `Conv2D` whose strides are its kernel
    size, and whose kernel (height, width, channels, D) is reshaped to this layer's. Patches come
    row by row. Add positions afterwards, as to tokens.

    Images of free width, such as lines of text, are padded on the right, as `image_batches` does.
    With `keras.layers.Masking(mask_value=-1.0)` in front, a patch that consists of padding is
    masked out, so padding does not change a row's vectors. Then use patches of the whole height:
    with several rows of patches, padding moves the later rows to other positions.

    Weights: `kernel` (height * width * channels of a patch, D), `bias` (D,). The kernel is drawn
    with variance 1 / rows, so that vectors have the mean square of the pixels at every D. Glorot's
    variance makes the vectors of few pixels small beside positions.

    Args:
        d_model: D, size of the vectors.
        patch_size: size of a patch in pixels, an int for squares, or a pair (height, width).

    Call arguments:
        inputs: (B, height, width, channels). A height or width that is fixed when the layer is
            built must be a multiple of the patch's. If it is free (`None`), zeros on the right and
            at the bottom fill the last patch.
        mask: boolean (B, height, width), True = a real pixel. Masked pixels count as zeros.
            Defaults to the Keras mask of `inputs`.

    Returns:
        (B, N, D). If `inputs` has a Keras mask, with the Keras mask (B, N), True for patches that
        have a real pixel.

    Raises:
        ValueError: a size is not positive, `patch_size` is no int and no pair, `inputs` is not of
            rank 4, or a fixed height or width is not a multiple of the patch's.

    Example:

    >>> PatchEmbedding(d_model=8, patch_size=4)(keras.ops.ones((2, 8, 12, 3))).shape
    (2, 6, 8)
    >>> PatchEmbedding(d_model=8, patch_size=(8, 2))(keras.ops.ones((2, 8, 12, 3))).shape
    (2, 6, 8)
    """

    def __init__(self, d_model: int, patch_size: int | tuple[int, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        is_pair = isinstance(patch_size, (tuple, list))
        sizes = tuple(patch_size) if is_pair else (patch_size, patch_size)
        if len(sizes) != 2:
            raise ValueError(
                "patch_size must be an int or a pair (height, width), but "
                f"{patch_size!r} was passed."
            )
        check_positive(d_model=d_model)
        for size in sizes:
            check_positive(patch_size=size)
        self.d_model = int(d_model)
        self._sizes, self._is_free = tuple(map(int, sizes)), (False, False)
        self._flat = layers.Reshape((-1,))
        self.patch_size = self._sizes if is_pair else self._sizes[0]
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        self.compute_output_shape(input_shape)  # refuses images that do not fit
        self._is_free = tuple(size is None for size in input_shape[1:3])
        size = math.prod(self._sizes) * input_shape[-1]
        self.kernel = self.add_weight((size, self.d_model), "lecun_uniform", name="kernel")
        self.bias = self.add_weight((self.d_model,), "zeros", name="bias")

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        self.compute_output_shape(inputs.shape)
        if mask is not None:
            inputs = ops.where(mask[..., None], inputs, ops.zeros_like(inputs))
        return ops.matmul(self._cut(inputs), self.kernel) + self.bias  # (B, N, D)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        if previous_mask is None:
            return None
        # Without the sizes of the mask, which a functional model does not know.
        free = zip(self._sizes, self._is_free, strict=True)
        ends = [[0, (size - 1) * is_free] for size, is_free in free]
        pixels = ops.pad(ops.cast(previous_mask, "float32")[..., None], [[0, 0], *ends, [0, 0]])
        counts = ops.max_pool(pixels, self._sizes, self._sizes, padding="valid")
        return ops.cast(self._flat(counts), "bool")  # (B, N)

    def _cut(self, x: Tensor) -> Tensor:
        """Returns the pixels of each patch: (B, height, width, C) -> (B, N, pixels)."""
        channels, (tall, wide) = x.shape[-1], self._sizes
        if any(self._is_free):
            sizes = zip(ops.shape(x)[1:3], self._sizes, self._is_free, strict=True)
            ends = [
                (size + step - 1) // step * step - size if free else 0 for size, step, free in sizes
            ]
            x = ops.pad(x, [[0, 0], [0, ends[0]], [0, ends[1]], [0, 0]])
        batch_size, height, width, _ = ops.shape(x)
        rows, columns = height // tall, width // wide
        x = ops.reshape(x, (batch_size, rows, tall, columns, wide, channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))  # rows, columns, then pixels
        return ops.reshape(x, (batch_size, rows * columns, tall * wide * channels))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        if len(input_shape) != 4:
            raise ValueError(
                "Images must have shape (batch, height, width, channels), but "
                f"{tuple(input_shape)} was passed."
            )
        counts = []
        axes = zip(("height", "width"), input_shape[1:3], self._sizes, self._is_free, strict=True)
        for name, size, step, is_free in axes:
            if size is not None and size % step and not is_free:
                raise ValueError(
                    f"Patches of {step} pixels do not fill a {name} of {size}. Resize "
                    "or pad the images first (keras.layers.Resizing, ZeroPadding2D), or choose "
                    "another patch_size."
                )
            counts.append(None if size is None else -(-size // step))
        number = None if None in counts else math.prod(counts)
        return input_shape[0], number, self.d_model

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "d_model": self.d_model, "patch_size": self.patch_size}


@keras.saving.register_keras_serializable("keras_transformer")
class LogMel(keras.Layer):
    """Log-mel features of sound at 16 kHz, as in Whisper (arXiv 2212.04356, section 2.2).

    Two convolutions compute the features: the discrete Fourier transform of windows of 400 samples
    every 160 samples, and the mel bands. So the layer can be exported and runs on every backend.
    Logarithms are clamped at 8 below the largest one of the row, then scaled to about [-1, 1]. The
    layer has no weights, and it computes in float32 under any dtype policy.

    With `frames`, the layer fills a window as OpenAI's `transcribe` does. Zeros follow the last
    sample, in place of the reflected sound, and features of 0 follow the last whole frame.

    Args:
        mels: int, M, number of mel bands. Defaults to 80.
        frames: int, S, number of frames of a window, 3,000 in Whisper. Defaults to `None`: the
            frames of the sound.

    Call arguments:
        samples: float32 (B, N), sound at 16 kHz in [-1, 1]. Without `frames`, N is at least 201,
            and Whisper pads sound with zeros to 480,000 samples, 30 s. With `frames`, N is at least
            160, a frame, and below 160 (S + 1).

    Returns:
        float32 (B, S, M), S = N // 160 or `frames`.

    Raises:
        ValueError: `mels` or `frames` is not positive; or the sound has no whole frame, or more
            frames than `frames`. An exported file checks no lengths.

    Example:

    >>> LogMel(mels=80)(keras.ops.zeros((2, 1600))).shape
    (2, 10, 80)
    >>> LogMel(mels=80, frames=3000)(keras.ops.zeros((2, 1600))).shape
    (2, 3000, 80)
    """

    strides = (HOP,)  # samples between two frames

    def __init__(self, mels: int = 80, frames: int | None = None, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "float32"})
        check_positive(mels=mels)
        if frames is not None:
            check_positive(frames=frames)
        self.mels, self.frames = mels, frames
        self._waves, self._filters = _waves(), mel_filters(mels)

    @property
    def max_length(self) -> int | None:
        """The largest number of frames; `None` for no limit."""
        return self.frames

    def call(self, samples: Tensor) -> Tensor:
        half = WINDOW // 2
        self.compute_output_shape(samples.shape)  # refuses sound that does not fit
        if self.frames is None:
            x = ops.pad(samples, [[0, 0], [half, half]], mode="reflect")
        else:
            x = ops.pad(samples, [[0, 0], [0, half]])
            x = ops.pad(x, [[0, 0], [half, 0]], mode="reflect")
        x = ops.conv(x[..., None], ops.convert_to_tensor(self._waves), HOP, padding="valid")[:, :-1]
        power = ops.square(x[..., : half + 1]) + ops.square(x[..., half + 1 :])  # (B, S, F)
        batch_size, count, _ = ops.shape(power)
        if self.frames is not None:
            zeros = ops.zeros((batch_size, ops.maximum(self.frames - count, 0), half + 1))
            power = ops.concatenate([power, zeros], axis=1)
            power = ops.reshape(power, (batch_size, self.frames, half + 1))  # too long: an error
        x = ops.conv(power, ops.convert_to_tensor(self._filters[None]), padding="valid")
        x = ops.log(ops.maximum(x, 1e-10)) / math.log(10)
        x = ops.maximum(x, ops.max(x, axis=(1, 2), keepdims=True) - 8.0)
        x = (x + 4.0) / 4.0
        if self.frames is None:
            return x
        is_sound = ops.arange(self.frames) < count
        return x * ops.cast(is_sound, "float32")[:, None]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch_size, length = input_shape
        count = None if length is None else length // HOP
        if self.frames is None:
            return batch_size, count, self.mels
        if count is not None and not 1 <= count <= self.frames:
            raise ValueError(
                f"A window has {HOP} to {HOP * self.frames} samples at 16 kHz, "
                f"{self.frames / 100:g} s, but the sound has {length}. Record it again, or cut it "
                "into windows."
            )
        return batch_size, self.frames, self.mels

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mels": self.mels, "frames": self.frames}


def _waves() -> Array:
    """Returns cosines and sines of all frequencies under a Hann window, float32 (400, 1, 2 F)."""
    time = np.arange(WINDOW)
    angles = 2 * np.pi / WINDOW * (time[:, None] * np.arange(WINDOW // 2 + 1) % WINDOW)
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return (hann_window()[:, None] * waves).astype("float32")[:, None]
