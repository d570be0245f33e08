"""The export of a forward pass: any functional Keras model, its inputs and outputs by name."""

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.export import heads, verify
from keras_transformer.export.runtime import signature
from keras_transformer.export.tasks.samples import check_listed
from keras_transformer.export.tasks.search import vocab_sizes
from keras_transformer.models import CausalTransformer, Transformer


class ForwardTask:
    """What an export of a forward pass computes, and how it is proven.

    Args:
        model: functional Keras model in float32. A `Sequential` becomes one, as its inputs and
            outputs have no names of their own.
        head: what its outputs mean, one of `export.runtime.heads`, or `None`.

    Attributes:
        name: the task in the manifest: the head's, or "forward".
        specs: dict from the inputs' names to `tf.TensorSpec`.
        outputs: the outputs' names.
        vocab_size: `{"source", "target"}`, `None` for models that have no vocabulary.
        search_config: `None`, there being no search.

    Raises:
        ValueError: inputs and outputs do not have names of their own.
    """

    search_config = None

    def __init__(self, model, head=None):
        self.head, self.name = head, head.task if head else "forward"
        if isinstance(model, keras.Sequential):
            model = keras.Model(model.inputs, model.outputs, name=model.name)
        self.model = model
        self.longest = _smallest(model, "max_length", "sequence_length")
        self.inputs = {_plain(tensor.name): tensor for tensor in model.inputs}
        self.specs = {
            name: tf.TensorSpec(tensor.shape, tensor.dtype, name)
            for name, tensor in self.inputs.items()
        }
        outputs = keras.tree.flatten(model.output)
        names = [signature.LOGITS] if hasattr(model, "decode_step") else model.output_names
        names = list(model.output) if isinstance(model.output, dict) else names
        self.outputs = [_plain(name) for name in names]
        if len(set(self.outputs) | set(self.inputs)) < len(outputs) + len(self.inputs):
            raise ValueError(
                f"Inputs {list(self.inputs)} and outputs {self.outputs} need names of their own. "
                "Name the layers that give the outputs, or let the model return a dict."
            )
        generates = isinstance(model, Transformer | CausalTransformer)
        self.vocab_size = vocab_sizes(model) if generates else {"source": None, "target": None}

    def function(self, **inputs):
        """What is traced: inputs by name to a dict of outputs."""
        arranged = keras.tree.pack_sequence_as(
            self.model.input, [inputs[name] for name in self.inputs]
        )
        outputs = self.model(arranged, training=False)
        if isinstance(outputs, dict):
            return {_plain(name): tensor for name, tensor in outputs.items()}
        return dict(zip(self.outputs, keras.tree.flatten(outputs), strict=True))

    def axes(self, name, rank):
        """Names of the axes of an input or output, for those that have no fixed size.

        Those of our own models have documented names. Others are a batch of sequences, whose
        length is the same for all outputs where there is one input.
        """
        known = signature.AXES.get(name, ())
        length = "source_length" if len(self.inputs) == 1 else f"{name}_length"
        other = ("batch", length, *(f"{name}_axis_{i}" for i in range(2, rank)))
        return known if len(known) == rank else other[:rank]

    def limits(self, max_source_length):
        """The lengths that the manifest promises to serve."""
        return {
            "source_length": min(max_source_length, self.longest or max_source_length),
            "target_length": self.longest,
            "extra_length": None,
        }

    def cases(self, samples):
        """Inputs to prove the export on, dicts of arrays; random ones where `samples` is `None`."""
        if samples is not None:
            return [self._checked(case) for case in check_listed(samples)]
        random = np.random.default_rng(11)
        return [self._random(random, *sizes) for sizes in ((1, 3), (5, 7), (2, 13))]

    def _random(self, random, batch, length):
        """A case of this batch size and length, as far as the model's inputs leave them free."""
        length = min(length, self.longest or length)
        highest = _smallest(self.model, "vocab_size", "input_dim") or 2
        case = {}
        for name, tensor in self.inputs.items():
            free = iter((batch, length, length, length))
            shape = [next(free) if size is None else size for size in tensor.shape]
            dtype = np.dtype(tensor.dtype)
            if dtype.kind in "iu":
                case[name] = random.integers(1, highest, shape).astype(dtype)
                case[name][-1, (length + 1) // 2 :] *= batch == 1  # padding in the last row
            else:
                case[name] = random.standard_normal(shape).astype(dtype)
        return case

    def _checked(self, case):
        """A sample as it is fed: raises `ValueError` unless its arrays suit the model's inputs."""
        if not isinstance(case, dict) or set(case) != set(self.inputs):
            given = sorted(case) if isinstance(case, dict) else type(case).__name__
            raise ValueError(
                f"A sample must be a dict with an array for each of {sorted(self.inputs)}, but "
                f"{given} was passed."
            )
        arrays = {name: np.asarray(array) for name, array in case.items()}
        for name, array in arrays.items():
            tensor = self.inputs[name]
            fits = tf.TensorShape(tensor.shape).is_compatible_with(array.shape) and array.size > 0
            if not (fits and np.can_cast(array.dtype, tensor.dtype, "same_kind")):
                raise ValueError(
                    f"The sample's {name!r} has shape {array.shape} and dtype {array.dtype}, but "
                    f"the model takes {tensor.shape} and {tensor.dtype}."
                )
        return {name: array.astype(self.inputs[name].dtype) for name, array in arrays.items()}

    def expected(self, case):
        """Keras' outputs for a case, by name."""
        tensors = {name: tf.constant(array) for name, array in case.items()}
        return {name: np.asarray(tensor) for name, tensor in self.function(**tensors).items()}

    def compare(self, cases, expected, found, tolerance, exact=True):
        """Raises `ExportError` unless what the file gave is what Keras gives, and the head fits."""
        if self.head is not None:
            heads.check_outputs(self, cases, expected)
        return verify.compare_forward(expected, found, tolerance, exact)


def _smallest(model, *names):
    """The smallest integer that a layer has as one of these attributes; None where none has one."""
    found = []
    for layer in [model, *model.layers]:
        found += [getattr(layer, name, None) for name in names]
        if isinstance(layer, keras.Model) and layer is not model:
            found.append(_smallest(layer, *names))
    return min((size for size in found if isinstance(size, int) and size > 0), default=None)


def _plain(name):
    """A Keras name as an ONNX runtime and a SavedModel's signature take it."""
    return name.replace("/", "_").replace(":", "_")
