"""Training: what `model.fit` is given, and what makes its updates exact on several replicas.

What lives here: losses, metrics and schedules (Keras alone), callbacks and checkpoints, and the
training steps (`steps`, TensorFlow). Keras' own `fit` is the trainer.

What may be imported: Keras, and data and special ids of this package; no layers and no models. A
new loss, metric, schedule or callback goes into the file of that name.
"""

try:
    from keras_transformer.training.steps import prepare
except ModuleNotFoundError as error:  # without TensorFlow, Keras' own steps are what there is
    if error.name != "tensorflow":
        raise

__all__ = ["prepare"]
