"""What an export computes: its function, its inputs and outputs by name, and its proof.

What lives here: one class for each kind of export, `forward` and `search`; `stepwise`, which turns
a search into two functions without the loop; and `samples`, the inputs of the proof.
An exporter asks a task for the function to trace, for samples, for Keras' results on them, and for
the comparison of these results with those of the written file.

What may be imported: TensorFlow, Keras, models and searches; of `export` the comparison (`proof`),
the error (`staging`) and the names and heads of the artefact. A new kind of export is one class
here with the methods of `ForwardTask`, and one line in each exporter that supports it.
"""

from collections.abc import Callable
from typing import Protocol

import keras
import tensorflow as tf

from keras_transformer.export.tasks.forward import ForwardTask
from keras_transformer.export.tasks.search import SearchTask
from keras_transformer.types import Tensor

__all__ = ["ForwardTask", "SearchTask", "Task", "Traceable"]

Task = ForwardTask | SearchTask


class Traceable(Protocol):
    """What becomes one graph: a task, or a part of a stepwise search.

    Attributes:
        model: the Keras model whose weights the function reads.
        function: function of inputs by name that returns a dict of outputs.
        specs: the `tf.TensorSpec` of each input, by name.
    """

    @property
    def model(self) -> keras.Model: ...

    @property
    def function(self) -> Callable[..., dict[str, Tensor]]: ...

    @property
    def specs(self) -> dict[str, tf.TensorSpec]: ...

    def axes(self, name: str, rank: int) -> tuple[str, ...]:
        """Names of the axes of an input or output."""
        ...
