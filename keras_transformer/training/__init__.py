"""Training: losses, metrics, schedules, callbacks, and exact steps on several replicas.

Keras' own `fit` is the trainer. Losses, metrics and schedules use Keras only. `distribution` has
the base class of all models, and `steps` its training steps for TensorFlow. Callbacks are in
`callbacks` and `checkpoints`. `resume` has runs that continue after an interruption, and uses
`run_state`. `alignment` has guided alignment, `sharding` the division of weights between devices.

Put a new loss, metric, schedule or callback into the file of that name.
"""

from keras_transformer.training.distribution import prepare

__all__ = ["prepare"]
