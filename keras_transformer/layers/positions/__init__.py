"""Position encodings (section 3.5 of the paper): attention does not see order, they put it in.

What lives here: what blocks and models ask of an encoding (`encoding`), and one file for each:
`sinusoidal` (the paper's), `learned` (Table 3, row E) and `rotary`. Positions count from 0 and are
computed in float32, then cast to the layer's compute dtype.

What may be imported: Keras and the layers' checks. A new encoding is one file with a subclass of
`PositionEncoding`, and, if it is to have a name, one line in `position_encoding`.
"""

import keras

from keras_transformer.layers.positions.encoding import PositionEncoding
from keras_transformer.layers.positions.learned import LearnedPositionEncoding
from keras_transformer.layers.positions.rotary import RotaryPositionEncoding
from keras_transformer.layers.positions.sinusoidal import SinusoidalPositionEncoding

__all__ = [
    "LearnedPositionEncoding",
    "PositionEncoding",
    "RotaryPositionEncoding",
    "SinusoidalPositionEncoding",
    "attention_positions",
    "position_encoding",
]


def position_encoding(positions, **options):
    """A position encoding of its own for whoever asks, from a name or from an object.

    Args:
        positions: "sinusoidal", "learned" or "rotary"; a `PositionEncoding`, which is copied, or
            the configuration of one; or `None` for one that does nothing.
        **options: `name` and `dtype` of the new layer.

    Returns:
        A `PositionEncoding`.

    Raises:
        ValueError: an unknown name, or something else.
    """
    if positions is None:
        return PositionEncoding(**options)
    if isinstance(positions, dict):
        positions = keras.saving.deserialize_keras_object(positions)
    if isinstance(positions, PositionEncoding):
        return positions.from_config({**positions.get_config(), **options})
    names = {
        "sinusoidal": SinusoidalPositionEncoding,
        "learned": LearnedPositionEncoding,
        "rotary": RotaryPositionEncoding,
    }
    if positions not in names:
        raise ValueError(
            f'positions must be "sinusoidal", "learned" or "rotary", or an encoding such as '
            f"LearnedPositionEncoding(max_length=512), but {positions!r} was passed."
        )
    return names[positions](**options)


def attention_positions(positions, **options):
    """`position_encoding` for attention: refuses an encoding that does nothing there."""
    encoding = position_encoding(positions, **options)
    if positions is not None and not encoding.in_attention:
        raise ValueError(
            f"{type(encoding).__name__} does nothing inside attention: call it on the "
            "embeddings, or pass it to a model as `positions`."
        )
    return encoding
