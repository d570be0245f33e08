"""Two-dimensional position encodings, for patches and pixels.

Shapes: B batch, T number of vectors, D d_model.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.checks import check_positive
from keras_transformer.layers.positions import AngleEncoding, check_base
from keras_transformer.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class GridPositionEncoding(AngleEncoding):
    """Adds encodings of the row and column of each vector, for patches or pixels in reading order.

    The first half of the channels gets the sinusoids of the row, the second half the
    sinusoids of the column (Image Transformer, arXiv 1802.05751). It has no weights and no maximum
    length.

    Args:
        columns: number of vectors in a row of the grid.
        start: position of the first vector of the grid, such as 1 after a class token. Positions
            before it continue the grid backwards, so they are encoded as the end of row -1.
            Defaults to 0.
        base: base of the wavelengths. Small grids need no long ones. Defaults to the paper's 10000.

    Call arguments:
        inputs: (B, T, D) embeddings, D divisible by 4.
        offset, length: as in `PositionEncoding`.

    Returns:
        (B, T, D): `inputs` + encoding. A Keras mask passes through.

    Raises:
        ValueError: D is not divisible by 4, `columns` is not positive, `start` is negative, or
            `base` is not above 1.

    Example, row 0 and row 1 of a grid with two columns:

    >>> GridPositionEncoding(columns=2)(keras.ops.zeros((1, 4, 4)))
    array([[[0.        , 1.        , 0.        , 1.        ],
            [0.        , 1.        , 0.84147096, 0.54030233],
            [0.84147096, 0.54030233, 0.        , 1.        ],
            [0.84147096, 0.54030233, 0.84147096, 0.54030233]]], dtype=float32)
    """

    def __init__(self, columns: int, start: int = 0, base: float = 10000.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive(columns=columns)
        if start < 0:
            raise ValueError(f"start must be at least 0, but {start} was passed.")
        self.columns, self.start, self.base = columns, start, check_base(base)

    def build(self, input_shape: Shape) -> None:
        if input_shape[-1] is None or input_shape[-1] % 4:
            raise ValueError(
                "GridPositionEncoding pairs sines with cosines for row and column and needs a "
                f"number of channels divisible by 4, but the input's last axis is "
                f"{input_shape[-1]}. Choose another size."
            )

    def call(self, inputs: Tensor, offset: int | Tensor = 0, length: int | None = None) -> Tensor:
        length = length or ops.shape(inputs)[1]
        positions = ops.arange(length, dtype="int32") + offset - self.start
        # In floats: ONNX rounds negative quotients of integers towards 0.
        positions, size = ops.cast(positions, "float32"), inputs.shape[-1]
        rows = ops.floor(positions / self.columns)
        places = rows, positions - rows * self.columns
        halves = [
            ops.stack(self.sines_and_cosines(place, size // 2, self.base), axis=-1)
            for place in places
        ]
        encoding = ops.reshape(ops.concatenate(halves, axis=1), (-1, size))  # (T, D)
        return inputs + ops.cast(encoding, inputs.dtype)[None]

    def get_config(self) -> dict[str, Any]:
        config = {"columns": self.columns, "start": self.start, "base": self.base}
        return {**super().get_config(), **config}
