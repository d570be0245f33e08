"""Tasks: the function that an export computes, its inputs and outputs by name, and its proof.

Contents: one class for each kind of export, `forward`, `search` and `text`; `stepwise`, which turns
a search into two functions without the loop; `heads`, the rules of heads; and `samples`, the inputs
of the proof. A task provides the function to trace, samples, Keras' results on them, and the
comparison with the written file's results.

Imports: TensorFlow, Keras, models and searches; of `export` the comparison (`proof`), the rules
(`exporter`), the error (`staging`) and the names and heads of the artefact. A new kind of export is
one class here with the methods of `exporter.Task`, and one line in each exporter that supports it.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import keras
import tensorflow as tf

from keras_transformer.export.tasks.forward import ForwardTask
from keras_transformer.export.tasks.search import SearchTask
from keras_transformer.types import Tensor

__all__ = ["ForwardTask", "GraphSource", "SearchTask", "Task"]

Task: TypeAlias = ForwardTask | SearchTask


class GraphSource(NamedTuple):
    """The source of one graph: a task, or one of the two functions of a stepwise search.

    Attributes:
        model: the Keras model whose weights the function reads.
        function: function of inputs by name that returns a dict of outputs; it is traced.
        specs: the `tf.TensorSpec` of each input, by name.
        axes: function of the name and the rank of an input or output to the names of its axes.
        row_scales: as in `quantize.reduce_precision`.
    """

    model: keras.Model
    function: Callable[..., dict[str, Tensor]]
    specs: dict[str, tf.TensorSpec]
    axes: Callable[[str, int], tuple[str, ...]]
    row_scales: bool = False
