"""What an export computes: a search or a forward pass, its names and sizes, and how to prove it.

What lives here: one class for each kind of export. An exporter asks it for the function to trace,
for names of inputs, outputs and axes, for samples, for Keras' results on them, and to compare these
with what the written file gives. `samples` has the inputs that are made up, `steps` the two
functions that a search is where its loop is outside of the graph.

What may be imported: TensorFlow, Keras, models and searches, and of `export` the comparison
(`verify`), copies (`float32`), the error (`staging`) and the names of the artefact
(`runtime.signature`). A new kind of export is one file here, with the methods that `forward` has,
and a line where exporters choose.
"""

from keras_transformer.export.tasks.forward import ForwardTask
from keras_transformer.export.tasks.search import SearchTask

__all__ = ["ForwardTask", "SearchTask"]
