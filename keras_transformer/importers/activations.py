"""Activations and their names in each origin. A new origin is one more field of `Activation`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from keras_transformer.layers.blocks import gelu_sigmoid, gelu_tanh

Function = Callable[..., Any]


class Activation(NamedTuple):
    """An activation.

    Attributes:
        ours: name of Keras, or a function.
        ctranslate2: its number in CTranslate2's files.
        hugging_face: its names in `config.json`. An export writes the first.
        marian: its name in the configuration of Marian's binary files, or `None`.
    """

    ours: str | Function
    ctranslate2: int
    hugging_face: tuple[str, ...] = ()
    marian: str | None = None

    @property
    def function(self) -> Function:
        return keras.activations.get(self.ours)


ACTIVATIONS = (
    Activation("relu", 0, ("relu",), "relu"),
    Activation(gelu_tanh, 1, ("gelu_new", "gelu_pytorch_tanh")),
    Activation("silu", 2, ("swish", "silu"), "swish"),
    Activation("gelu", 3, ("gelu", "gelu_python")),
    # Marian computes "gelu" as a swish with the factor 1.702.
    Activation(gelu_sigmoid, 4, ("quick_gelu",), "gelu"),
    Activation("tanh", 5, ("tanh",)),
    Activation("sigmoid", 6),
)
HUGGING_FACE = {name: one.ours for one in ACTIVATIONS for name in one.hugging_face}
CTRANSLATE2 = {one.ctranslate2: one.ours for one in ACTIVATIONS}
# Names that exports write for the function of a model.
TO_HUGGING_FACE = {one.function: one.hugging_face[0] for one in ACTIVATIONS if one.hugging_face}
TO_CTRANSLATE2 = {one.function: one.ctranslate2 for one in ACTIVATIONS}
MARIAN = {one.marian: one.ours for one in ACTIVATIONS if one.marian}


def named(known: dict[Any, Any], name: Any, setting: str) -> str | Function:
    """Returns our name of an activation, or its function.

    Args:
        known: `HUGGING_FACE`, `CTRANSLATE2` or `MARIAN`.
        name: the origin's name.
        setting: str, the name of the setting in the origin, for the error.

    Raises:
        ValueError: another activation.
    """
    if name not in known:
        raise ValueError(f"{setting} is {name!r:.100}, but must be one of {sorted(known)}.")
    return known[name]
