"""Images as sequences of vectors.

Shapes: B batch, N number of patches, D d_model.
"""

import keras
from keras import layers, ops

from keras_transformer.layers.checks import check_positive


@keras.saving.register_keras_serializable("keras_transformer")
class PatchEmbedding(layers.Layer):
    """Cuts images into square patches and projects each to a vector (ViT, section 3.1).

    After Dosovitskiy et al. (arXiv 2010.11929). One product of patches and a matrix: what a
    `Conv2D` gives whose strides are its kernel's size; that kernel (size, size, channels, D)
    reshaped is this one. Patches come row by row. Positions are added behind it, as to tokens.

    Weights: `kernel` (size * size * channels, D), `bias` (D,).

    Args:
        d_model: D, size of the vectors.
        patch_size: height and width of a patch in pixels.

    Call arguments:
        inputs: (B, height, width, channels), height and width multiples of `patch_size`.

    Returns:
        (B, N, D).

    Raises:
        ValueError: sizes are not positive, inputs are not of rank 4, or height and width are
            no multiples. Sizes that are known at run time only are refused then, by the backend.

    Example:

    >>> PatchEmbedding(d_model=8, patch_size=4)(keras.ops.ones((2, 8, 12, 3))).shape
    (2, 6, 8)
    """

    def __init__(self, d_model, patch_size, **kwargs):
        super().__init__(**kwargs)
        check_positive(d_model=d_model, patch_size=patch_size)
        self.d_model, self.patch_size = d_model, patch_size

    def build(self, input_shape):
        self.compute_output_shape(input_shape)  # refuses what does not fit
        size = self.patch_size**2 * input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel", shape=(size, self.d_model), initializer="glorot_uniform"
        )
        self.bias = self.add_weight(name="bias", shape=(self.d_model,), initializer="zeros")

    def call(self, inputs):
        self.compute_output_shape(inputs.shape)
        batch_size, height, width, channels = ops.shape(inputs)
        size, rows, columns = self.patch_size, height // self.patch_size, width // self.patch_size
        x = ops.reshape(inputs, (batch_size, rows, size, columns, size, channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))  # rows, columns, then pixels
        x = ops.reshape(x, (batch_size, rows * columns, size * size * inputs.shape[-1]))
        return ops.matmul(x, self.kernel) + self.bias  # (B, N, D)

    def compute_output_shape(self, input_shape):
        if len(input_shape) != 4:
            raise ValueError(
                f"Images must have shape (batch, height, width, channels), but "
                f"{tuple(input_shape)} was passed."
            )
        batch_size, *sizes, _ = input_shape
        for name, size in zip(("height", "width"), sizes, strict=True):
            if size is not None and size % self.patch_size:
                raise ValueError(
                    f"Patches of {self.patch_size} pixels do not fill a {name} of {size}. Resize "
                    "or pad the images first (keras.layers.Resizing, ZeroPadding2D), or choose "
                    "another patch_size."
                )
        known = None not in sizes
        count = (sizes[0] // self.patch_size) * (sizes[1] // self.patch_size) if known else None
        return batch_size, count, self.d_model

    def get_config(self):
        return {
            **super().get_config(),
            "d_model": self.d_model,
            "patch_size": self.patch_size,
        }
