"""Training: what `model.fit` is given, and what makes it exact on several replicas.

What lives here: losses, metrics and schedules (Keras alone); `distribution`, on which `models`
stands, and its `steps` (TensorFlow); callbacks and checkpoints. Keras' own `fit` is the trainer.

What may be imported: Keras, and data, plots, files and special ids of this package; no layers and
no models. A new loss, metric, schedule or callback goes into the file of that name.
"""

from keras_transformer.training.distribution import prepare

__all__ = ["prepare"]
