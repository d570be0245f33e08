"""Importers: weights that were trained elsewhere become weights of our models.

What lives here: what every importer ends with, weights assigned by their documented paths
(`assignment`), and one file an origin; today `torch_transformer`.

What may be imported: NumPy, Keras, and models, layers and data of this package; the origin's own
library is not needed, for a checkpoint comes as a dictionary of arrays. A new importer is one file
that maps the origin's names to our paths and calls `assign_weights`, and its name below.
"""

from keras_transformer.importers import torch_transformer
from keras_transformer.importers.assignment import assign_weights

__all__ = ["assign_weights", "torch_transformer"]
