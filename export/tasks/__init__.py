"""Tasks: the function that an export computes, its inputs and outputs by name, and its proof.

Contents: one class for each kind of export, `forward` and `search`; `stepwise`, which turns
a search into two functions without the loop; and `samples`, the inputs of the proof.
An exporter asks a task for the function to trace, for samples, for Keras' results on them, and for
the comparison of these results with the written file's.

Imports: TensorFlow, Keras, models and searches; of `export` the comparison (`proof`),
the error (`staging`) and the names and heads of the artefact. A new kind of export is one class
here with the methods of `ForwardTask`, and one line in each exporter that supports it.
"""

from typing import TypeAlias

from keras_transformer.export.tasks.forward import ForwardTask
from keras_transformer.export.tasks.search import SearchTask

__all__ = ["ForwardTask", "SearchTask", "Task"]

Task: TypeAlias = ForwardTask | SearchTask
