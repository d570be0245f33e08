"""Models that train exactly on several replicas: `Model` and `prepare`.

`model.fit` is the trainer. On one replica it runs Keras' own step, unless the optimizer clips
gradients: the gradient of an embedding table has one row per id of the batch, and Keras clips these
rows before it sums the rows of equal ids. On several replicas of a `tf.distribute` strategy Keras'
step (3.15) has four faults. In both cases the functions of `steps` replace it. The faults are:

- `fit` averages the replicas' parts of one batch to learn its shapes. This turns ids into floats.
  It fails if replicas hold different numbers of rows, and under `MultiWorkerMirroredStrategy`. One
  replica's part suffices.
- A loss is the mean over one replica's rows. The replicas' means count equally, even if the
  replicas hold different numbers of rows. `fit` averages their logs in the same way.
- Optimizers clip each replica's gradient before they add them up, so the update depends on the
  number of replicas. Loss scaling checks only the first replica for overflow.
- The optimizers' `gradient_accumulation_steps` fails under a strategy, and weights batches equally
  although they hold different numbers of tokens.

The module `replicas` explains the scale of losses.

This module imports Keras only, because models import it on every backend.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import keras

from keras_transformer.layers.lora import UpdateRecord, add_updates, merge_updates
from keras_transformer.text.vocabularies import digests, record_digests, recorded_digests
from keras_transformer.training.checks import (
    check_data,
    clear_id_errors,
    forget_compile,
    refuse_changed_layers,
    refuse_probabilities,
    warn_of_shapes,
)
from keras_transformer.training.losses import ReplicaLoss, check_class_weight
from keras_transformer.training.model_losses import ModelLoss
from keras_transformer.training.optimizers import build_optimizer, clips, inner_optimizer
from keras_transformer.types import StrPath


@keras.saving.register_keras_serializable("keras_transformer")
class Model(UpdateRecord, keras.Model):
    """A functional `keras.Model` with exact training, checked ids and LoRA.

    Use it instead of `keras.Model` around the layers and encoders of this package. The models of
    this package are of this class, too. It differs from Keras' own in `fit`, `evaluate` and
    `predict`:

    - `fit` and `evaluate` are exact on any number of replicas, and with clipped gradients, without
      `prepare`. Keras' own code runs with one replica and no clipping, on other backends than
      TensorFlow, and if a subclass has its own `train_step` or `test_step`.
    - `fit` records the tokenizer of the batches with the weights. Then `fit`, exports and
      translation refuse another tokenizer.
    - An id or a label beyond the model gives one sentence instead of a page of TensorFlow's.
    - `fit` refuses to continue if layers were frozen or unfrozen after its step was traced, or
      unfrozen after the optimizer was made, until you call `compile` again.

    Args:
        inputs: `keras.Input`, or a list or dict of them.
        outputs: output tensor, or a list or dict of tensors.
        name: name of the model. Defaults to `None`: Keras makes one.
        **kwargs: other arguments of `keras.Model`, such as `trainable`.

    Raises:
        TypeError: there are no inputs. Subclass `keras.Model` for a model without them.

    Example:

    >>> encoder = kt.TransformerEncoder(vocab_size=23, num_layers=1, d_model=16, num_heads=2)
    >>> pooled = kt.SequencePooling()(encoder.output)
    >>> model = kt.Model(encoder.input, keras.layers.Dense(3)(pooled))
    >>> model.compile("adam", kt.SequenceCrossentropy(pad_id=-1))
    """

    train_function: Any
    test_function: Any

    @property
    def tokenizers(self) -> dict[str, str]:
        """The digests of the tokenizers that the weights were trained with, by side.

        The sides are "source" and "target". Empty if they are not known, or after you set it to
        `{}` to train the weights with another vocabulary. Models that share a table of embeddings
        share its record.
        """
        return recorded_digests(self)

    @tokenizers.setter
    def tokenizers(self, record: Mapping[str, str]) -> None:
        record_digests(self, record)

    @functools.wraps(keras.Model.fit)
    def fit(
        self, x: Any = None, y: Any = None, *args: Any, class_weight: Any = None, **kwargs: Any
    ) -> Any:
        validation = kwargs.get("validation_data")
        pairs = validation if isinstance(validation, tuple | list) else (validation, None)
        for inputs, labels, *_ in ((x, y), pairs):
            check_data(self, inputs, labels)
        refuse_changed_layers(self)
        spec, outputs = getattr(x, "element_spec", None), getattr(self, "outputs", [])
        if isinstance(spec, tuple) and hasattr(spec[-1], "shape") and len(outputs) == 1:
            # Before Keras reads a batch, because it may have no weight for a number of a position.
            check_class_weight(spec[-1], outputs[0])
        batches = getattr(x, "batches", None)  # of a dataset of this package
        if tokenizers := getattr(batches, "tokenizers", {}):
            record_digests(self, digests(tokenizers))
        if hasattr(batches, "count_shapes") and self.jit_compile:
            warn_of_shapes(batches)
        with clear_id_errors():
            return super().fit(x, y, *args, class_weight=class_weight, **kwargs)

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        check_data(self, x, y)
        with clear_id_errors():
            return super().evaluate(x, y, *args, **kwargs)

    @functools.wraps(keras.Model.predict)
    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        check_data(self, x)
        with clear_id_errors():
            return super().predict(x, *args, **kwargs)

    @functools.wraps(keras.Model.train_on_batch)
    def train_on_batch(self, x: Any, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        check_data(self, x, y)
        refuse_changed_layers(self)
        with clear_id_errors():
            return super().train_on_batch(x, y, *args, **kwargs)

    @functools.wraps(keras.Model.test_on_batch)
    def test_on_batch(self, x: Any, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        check_data(self, x, y)
        with clear_id_errors():
            return super().test_on_batch(x, y, *args, **kwargs)

    @functools.wraps(keras.Model.predict_on_batch)
    def predict_on_batch(self, x: Any) -> Any:
        check_data(self, x)
        with clear_id_errors():
            return super().predict_on_batch(x)

    def enable_lora(self, rank: int, names: tuple[str, ...] = ("query", "value")) -> None:
        """Adds trainable low-rank updates to some projections, and freezes all other weights.

        LoRA (arXiv 2106.09685): W + A B with A (inputs, rank) and B (rank, outputs). As in Keras,
        the biases of these projections are trained, too. Files keep W, A and B, so a loaded model
        trains on as the saved one would (dropout draws other numbers; `kt.Run` keeps them, too). A
        model without updates that reads such a file has them merged into W, and so has an export. A
        model with updates of another rank merges them, too, and begins new ones.

        Layers that were frozen before get updates, too; freeze the updates of a layer or a side
        after this call. Call it on an encoder to leave the head around it trainable. Compile the
        model after it, and each model that contains one of the layers: `fit` refuses an earlier
        `compile`.

        Args:
            rank: r, the inner size of the updates.
            names: names of the `Dense` layers that get updates. Defaults to the queries and values
                of all attentions. Others are "key", "output" (of attentions and feed-forward
                networks) and "hidden".

        Raises:
            ValueError: `rank` is not positive or exceeds a side of a projection, no layer has one
                of the names, or a layer has updates already.
            TypeError: `names` is one string, or empty.
        """
        # An earlier optimizer has the variables of the frozen layers.
        forget_compile(add_updates(self, rank, names))

    def merge_lora(self) -> None:
        """Merges the updates of `enable_lora` into the weights; the outputs stay the same.

        The layers that had them are trainable afterwards if their updates were. All others stay
        frozen as they are. Compile the model again, and each model that contains one of the layers.

        Raises:
            ValueError: no layer has updates.
        """
        forget_compile(merge_updates(self))

    @functools.wraps(keras.Model.save)
    def save(self, filepath: StrPath, *args: Any, **kwargs: Any) -> None:
        if os.fspath(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                f"Keras would not load this model from {filepath}. End the name in .keras, or "
                "write the weights alone: model.save_weights('NAME.weights.h5')."
            )
        super().save(filepath, *args, **kwargs)

    def make_train_function(self, force: bool = False) -> Callable[..., Any]:
        """Returns the function that `fit` calls with an iterator for each execution."""
        if not _is_keras_own(self, "train_step"):
            return super().make_train_function(force)
        if not _on_several_replicas(self) and not _needs_own_clipping(self):
            build_optimizer(self)
            return super().make_train_function(force)
        if self.train_function is None or force:
            self.train_function = _steps().make_train_function(self)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Callable[..., Any]:
        """Returns the function that `evaluate` calls with an iterator for each execution."""
        if not _on_several_replicas(self) or not _is_keras_own(self, "test_step"):
            return super().make_test_function(force)
        if self.test_function is None or force:
            self.test_function = _steps().make_test_function(self)
        return self.test_function

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Computes the loss of a batch, with the terms of a `ModelLoss`."""
        if sample_weight is not None and hasattr(y, "shape") and hasattr(y_pred, "shape"):
            check_class_weight(y, y_pred)
        if hasattr(self, "decode_step") and not isinstance(self.loss, ReplicaLoss):
            refuse_probabilities(self.loss)
        if not isinstance(self.loss, ModelLoss):
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        with self.loss.called_by_model(self, x, training):
            return super().compute_loss(x, y, y_pred, sample_weight, training)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Keras has no public method to override instead.
        _build_from_one_replica(self, super()._maybe_symbolic_build, iterator, data_batch)


def prepare(model: keras.Model, accumulate: int = 1) -> keras.Model:
    """Makes `fit` exact on several replicas for any model, and accumulates gradients.

    The models of this package need it for accumulation only: their plain `compile` and `fit` are
    exact. Any other model, such as a functional model built from our layers, needs it under a
    strategy of several replicas. Without it, `fit` fails if the replicas hold different numbers of
    rows ("Inputs to operation AddN ... must have the same size and shape"). Call it after each
    `compile`, which restores Keras' own step.

    It works with any optimizer, with mixed precision, clipping, moving averages and schedules. The
    loss of a batch is its mean over all replicas: for `SequenceCrossentropy` over target tokens,
    for Keras' own losses over rows (over unmasked positions, if the output has a Keras mask).
    Several losses, for several outputs, are exact if all of them are Keras' own and no output has a
    mask, or if all are this package's and count the same tokens.

    With `accumulate=k`, each update uses k batches of the dataset. Its gradient is the gradient of
    the mean over all k batches on all replicas, even if their sizes differ. Use it instead of the
    optimizer's `gradient_accumulation_steps`. The optimizer, its schedule, its loss scale and its
    moving average count updates. `fit` runs k batches as one execution (`prepare` sets
    `steps_per_execution`), so it calls callbacks once per update. The last update of an epoch may
    have fewer batches; nothing is carried over.

    Args:
        model: compiled `keras.Model`, made and compiled under the strategy's scope, if any.
        accumulate: number of batches for one update. Defaults to 1.

    Returns:
        The same model. Logs of a training step are the metrics since the start of the epoch, summed
        over all replicas.

    Raises:
        ValueError: the backend is not TensorFlow, the model is not compiled or not built or has
            its own `train_step`, `accumulate` is below 1 or more than 1 with a loss that is a sum,
            the optimizer has `gradient_accumulation_steps`, or `jit_compile=True` is used on
            several replicas.

    Example:

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> prepare(model, accumulate=2).steps_per_execution
    2
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"prepare needs the TensorFlow backend, but Keras runs on {keras.backend.backend()}. "
            "Leave prepare out: Keras' own step is used there."
        )
    if not model.compiled or model.optimizer is None:
        raise ValueError("prepare needs a compiled model: call model.compile(optimizer, loss).")
    if not model.built:
        raise ValueError("prepare needs the model's weights: call the model once on a batch.")
    if accumulate < 1:
        raise ValueError(f"accumulate must be at least 1, but it is {accumulate}.")
    losses = keras.tree.flatten(model.loss)
    if accumulate > 1 and any(getattr(loss, "reduction", None) == "sum" for loss in losses):
        raise ValueError(
            f"accumulate={accumulate} computes the gradient of a mean over its batches, but a loss "
            'has reduction="sum". Use the reduction "sum_over_batch_size".'
        )
    if not _is_keras_own(model, "train_step"):
        raise ValueError(
            f"{type(model).__name__} has its own train_step, which prepare would replace. "
            "Override compute_loss instead, or leave prepare out."
        )
    if accumulate > 1 or getattr(model.train_function, "accumulate", 1) > 1:
        model.steps_per_execution = accumulate  # so that `fit` counts batches correctly
    model.train_function = _steps().make_train_function(model, accumulate)
    if _is_keras_own(model, "test_step"):
        model.test_function = _steps().make_test_function(model)
    build = getattr(model, "_maybe_symbolic_build", None)
    if not isinstance(model, Model) and not isinstance(build, functools.partial | None):
        model._maybe_symbolic_build = functools.partial(_build_from_one_replica, model, build)
    return model


def _steps() -> ModuleType:
    from keras_transformer.training import steps  # here and not above: imports TensorFlow

    return steps


def _on_several_replicas(model: keras.Model) -> bool:
    if keras.backend.backend() != "tensorflow":
        return False
    return model.distribute_strategy.num_replicas_in_sync > 1


def _needs_own_clipping(model: keras.Model) -> bool:
    """Returns whether the optimizer clips, and `steps` supports its other options."""
    optimizer = model.optimizer
    if keras.backend.backend() != "tensorflow" or optimizer is None or not clips(optimizer):
        return False
    return not inner_optimizer(optimizer).gradient_accumulation_steps


def _is_keras_own(model: keras.Model, name: str) -> bool:
    """Returns whether neither the model's class nor the model itself overrides this method."""
    return getattr(getattr(model, name), "__func__", None) is getattr(keras.Model, name)


def _build_from_one_replica(
    model: keras.Model,
    build: Callable[..., None],
    iterator: Iterator[Any] | None = None,
    data_batch: Any = None,
) -> None:
    """Calls Keras' `build`, which needs shapes only, with one replica's part of a batch."""
    if iterator is not None and _on_several_replicas(model):
        for _, _, batches in iterator:
            iterator, data_batch = None, _steps().first_part(model, next(batches))
            break
    build(iterator=iterator, data_batch=data_batch)
