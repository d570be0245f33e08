"""Properties of an optimizer that training steps need, and the creation of its variables."""

from typing import Any

import keras


def build_optimizer(model: keras.Model) -> None:
    """Creates the variables of a compiled model's optimizer, if they do not exist yet.

    Keras' own step creates them while TensorFlow traces it, which takes far longer.
    """
    optimizer = model.optimizer
    if keras.backend.backend() != "tensorflow" or optimizer is None:
        return
    if model.built and not optimizer.built:
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


def variables_without_state(model: keras.Model) -> list[str]:
    """Returns the paths of trainable variables that a model's optimizer was not built with."""
    optimizer = inner_optimizer(getattr(model, "optimizer", None))
    if optimizer is None or not optimizer.built:
        return []
    known = {id(variable) for variable in optimizer._trainable_variables}
    return [variable.path for variable in model.trainable_variables if id(variable) not in known]


def clips(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether an optimizer clips gradients. As in Keras, a limit of 0 clips nothing."""
    inner = inner_optimizer(optimizer)
    return any((inner.clipvalue, inner.clipnorm, inner.global_clipnorm))


def inner_optimizer(optimizer: Any) -> Any:
    """Returns the optimizer within one that scales the loss, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)
