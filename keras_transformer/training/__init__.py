"""Training: what `model.fit` needs, and what makes it exact on several replicas.

Losses, metrics and schedules use Keras only. `distribution` is the base of all models; its training
steps for TensorFlow are in `steps`. Callbacks are in `callbacks`, `checkpoints` and `resume`;
`fit_call` and `run_state` belong to `resume`. `alignment` has guided alignment. Keras' own `fit` is
the trainer.

Put a new loss, metric, schedule or callback into the file of that name.
"""

from keras_transformer.training.distribution import prepare

__all__ = ["prepare"]
