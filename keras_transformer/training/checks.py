"""The checks of `Model` before and during training: data, ids, losses and changed layers.

The checks run on the host, before a step is traced. Ids of datasets are seen by the model only;
TensorFlow's errors for them become one sentence.
"""

import contextlib
import gc
import inspect
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras

from keras_transformer.layers.checks import check_id_range, check_no_text
from keras_transformer.layers.positions import LONGER_THAN
from keras_transformer.text.vocabularies import check_tokenizers, vocabulary_sizes
from keras_transformer.training.losses import SequenceCrossentropy, check_labels
from keras_transformer.training.model_losses import ModelLoss
from keras_transformer.training.optimizers import variables_without_state

# `fit` warns if XLA compiles more programs than this.
MANY_SHAPES = 15
# TensorFlow's errors for an id beyond a table, and for a label beyond the logits.
_WRONG_ID = (
    r"indices\[[\d,]*\] = (?:\[\d+, )?(-?\d+)\]? "
    r"(?:is not in \[0, |does not index into(?: shape)? \[\d+,)(\d+)"
)


def check_data(model: keras.Model, x: Any, y: Any = None) -> None:
    """Raises `ValueError` for tokenizers and ids in memory that do not fit a model.

    It runs on the host before training. Ids of other datasets are seen by the model only.
    """
    if tokenizers := getattr(getattr(x, "batches", None), "tokenizers", {}):
        check_tokenizers(model, tokenizers)
    sizes, tensors = vocabulary_sizes(model), getattr(model, "inputs", None) or ()
    if all(tensor.dtype != "string" for tensor in tensors):
        check_no_text(x)
    names = [tensor.name for tensor in tensors]
    if tensors and not isinstance(getattr(model, "loss", None), ModelLoss):  # may read all of x
        _refuse_unread(model, x)
    arrays = x if isinstance(x, Mapping) else dict(zip(names, keras.tree.flatten(x), strict=False))
    for name, size in (("source_ids", sizes["source"]), ("target_ids", sizes["target"])):
        if size is not None and name in arrays:
            check_id_range(arrays[name], size, name)
    loss = getattr(model, "loss", None)
    if isinstance(loss, SequenceCrossentropy) and hasattr(model, "decode_step"):
        check_labels(y, sizes["target"], loss.pad_id)


def _refuse_unread(model: keras.Model, x: Any) -> None:
    """Raises `ValueError` for data by name that a functional model does not read."""
    spec = getattr(x, "element_spec", x)
    inputs = next(iter(spec), None) if isinstance(spec, tuple) else spec
    read = model.input
    names = list(read) if isinstance(read, Mapping) else [tensor.name for tensor in model.inputs]
    if isinstance(inputs, Mapping) and (unread := [name for name in inputs if name not in names]):
        raise ValueError(
            f"The data has {list(inputs)}, but the model reads {names}: {unread} would have no "
            "effect. Pass batches for this model, or leave them out."
        )


def refuse_probabilities(losses: Any) -> None:
    """Raises `ValueError` for a Keras loss that takes the logits of a model for probabilities.

    `compile` cannot check it: Keras does not compile a loaded model of a class that overrides it.
    """
    for loss in filter(None, map(keras.losses.get, keras.tree.flatten(losses))):
        if isinstance(loss, keras.losses.Loss):
            takes_logits = loss.get_config().get("from_logits", True)
        else:
            parameters = inspect.signature(loss).parameters
            takes_logits = "from_logits" not in parameters or parameters["from_logits"].default
        divergences = keras.losses.kl_divergence, keras.losses.KLDivergence
        if not takes_logits or loss in divergences or type(loss) in divergences:
            name = getattr(loss, "name", None) or loss.__name__
            raise ValueError(
                f"loss={name!r} expects probabilities, but the model gives logits. Compile it with "
                "loss=kt.SequenceCrossentropy(), or with a Keras loss that has from_logits=True."
            )


@contextlib.contextmanager
def clear_id_errors() -> Iterator[None]:
    """Replaces TensorFlow's errors, a page about graphs, for rows that do not fit a table."""
    try:
        yield
    except Exception as error:  # of TensorFlow, which this module does not import
        if found := re.search(LONGER_THAN + r"(\d+)", str(error)):
            raise ValueError(
                f"A row of the data is longer than the {found[1]} learned positions of the model. "
                "Shorten the rows, or build the model with more positions."
            ) from error
        found = re.search(_WRONG_ID, str(error))
        if found is None:
            raise
        raise ValueError(
            f"An id or a label of the data is {found[1]}, but the model's are 0 to "
            f"{int(found[2]) - 1}. Make ids with the tokenizer of the model."
        ) from error


def refuse_changed_layers(model: keras.Model) -> None:
    """Raises `ValueError` for layers that changed after `compile`.

    Frozen and unfrozen layers count after the training step was traced. Keras has a warning for
    them, but version 3.15 never reaches it.
    """
    if not model.compiled and getattr(model, "optimizer", None) is not None:
        raise ValueError(
            "The layers of this model changed after model.compile, by enable_lora, merge_lora or "
            "recompute. Call model.compile again, with a new optimizer, and then fit."
        )
    before = getattr(model, "_compiled_trainable_state", {})
    changed = [
        layer.path or layer.name  # a functional model has no path
        for layer, state in before.items()
        if layer.trainable != state and layer.weights
    ]
    traced = model.compiled and model.train_function is not None and not model.run_eagerly
    if changed and traced:
        raise ValueError(
            f"The training step was made before trainable changed in {changed[:5]}, so the change "
            "would have no effect. Call model.compile again, with a new optimizer, and then fit."
        )
    if unknown := variables_without_state(model):
        raise ValueError(
            f"The optimizer was made before {unknown[:5]} became trainable. Call model.compile "
            "again, with a new optimizer, and then fit."
        )


def forget_compile(changed: Iterable[keras.Layer]) -> None:
    """Makes `fit` refuse an earlier `compile` of each model that contains a changed layer.

    A step that was traced before would ignore the change; `predict` traces a new one. Keras does
    not tell a layer which models contain it, so the function looks through the objects of the
    process.

    Args:
        changed: layers that compute something else now.
    """
    known = {id(layer) for layer in changed}
    models = [each for each in gc.get_objects() if issubclass(type(each), keras.Model)]
    for model in models:
        parts = model._flatten_layers() if hasattr(model, "_layers") else ()
        if any(id(layer) in known for layer in parts):
            model.compiled, model.predict_function = False, None


def warn_of_shapes(batches: Any) -> None:
    """Warns if XLA will compile the training step for many shapes of `Batches`."""
    count = batches.count_shapes()
    if count > MANY_SHAPES:
        warnings.warn(
            f"XLA compiles this model anew for each shape of a batch, and the first batches have "
            f"{count} shapes. Pass static_shapes=True to the function that makes the batches: then "
            "there is one shape for each bucket of lengths. Each takes seconds to a minute.",
            stacklevel=4,
        )
