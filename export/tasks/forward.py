"""The export of a forward pass: any functional Keras model, its inputs and outputs by name."""

import functools

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.export import float32, heads, verify
from keras_transformer.export.artefact import signature
from keras_transformer.export.staging import ExportError
from keras_transformer.export.tasks.samples import (
    check_listed,
    checked_inputs,
    made_up_inputs,
    plain_name,
    smallest,
)
from keras_transformer.export.tasks.search import vocab_sizes
from keras_transformer.layers.embeddings import TokenEmbedding


class ForwardTask:
    """What an export of a forward pass computes, and how it is proven.

    Args:
        model: functional Keras model in float32. A `Sequential` becomes one, as its inputs and
            outputs have no names of their own.
        head: what its outputs mean, one of `export.artefact.heads`, or `None`.
        passed: the user's model, where `model` is a copy of it in float32. The export is held to
            both. Defaults to `None`: it is `model`.

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

    def __init__(self, model, head=None, passed=None):
        self.head, self.name = head, head.task if head else "forward"
        self.passed = None if passed is model else passed
        if isinstance(model, keras.Sequential):
            model = keras.Model(model.inputs, model.outputs, name=model.name)
        self.model = model
        self.longest = smallest(model, "max_length", "sequence_length")
        self.inputs = {plain_name(tensor.name): tensor for tensor in model.inputs}
        self.specs = {
            name: tf.TensorSpec(tensor.shape, tensor.dtype, name)
            for name, tensor in self.inputs.items()
        }
        outputs = keras.tree.flatten(model.output)
        names = list(model.output) if isinstance(model.output, dict) else _output_names(model)
        self.outputs = [plain_name(name) for name in names]
        if len(set(self.outputs) | set(self.inputs)) < len(outputs) + len(self.inputs):
            raise ValueError(
                f"Inputs {list(self.inputs)} and outputs {self.outputs} need different names. Pass "
                "outputs as a flat dict of other names: keras.Model(inputs, {'name': output})."
            )
        generates = hasattr(model, "decode_step")
        self.vocab_size = vocab_sizes(model) if generates else {"source": None, "target": None}

    def function(self, **inputs):
        """What is traced: inputs by name to a dict of outputs."""
        return self._outputs(self.model, inputs)

    def _outputs(self, model, inputs):
        arranged = keras.tree.pack_sequence_as(model.input, [inputs[name] for name in self.inputs])
        return self._by_name(model(arranged, training=False))

    def _by_name(self, outputs):
        if isinstance(outputs, dict):
            return {plain_name(name): tensor for name, tensor in outputs.items()}
        return dict(zip(self.outputs, keras.tree.flatten(outputs), strict=True))

    def axes(self, name, rank):
        """Names of the axes of an input or output, for those that have no fixed size.

        Those of our own models have documented names. Others are a batch of sequences. With one
        input, outputs of its length share the name of that axis. ONNX Runtime reuses buffers of
        equally named shapes, so no other output may.
        """
        known = signature.AXES.get(name, ())
        if len(known) == rank:
            return known
        names = list(signature.axes_of(name, rank))
        if rank > 1 and name in self._outputs_of_input_length:
            names[1] = self.axes(*self.inputs, 2)[1]
        return tuple(names)

    @functools.cached_property
    def _outputs_of_input_length(self) -> set[str]:
        """Names of the outputs whose second axis is that of the only input, for two lengths."""
        if len(self.inputs) > 1 or len(self.model.inputs[0].shape) < 2:
            return set()
        (tensor,) = self.model.inputs
        found = set(self.outputs)
        for length in (11, 13):
            shape = (2, tensor.shape[1] or length, *(n or length for n in tensor.shape[2:]))
            given = keras.KerasTensor(shape, tensor.dtype, name=tensor.name)
            arranged = keras.tree.pack_sequence_as(self.model.input, [given])
            try:
                specs = self._by_name(self.model.compute_output_spec(arranged))
            except Exception:  # a layer may refuse a size that was made up
                return set()
            found &= {name for name, spec in specs.items() if spec.shape[1:2] == shape[1:2]}
        return found

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
            return [checked_inputs(case, self.specs) for case in check_listed(samples)]
        return made_up_inputs(self.specs, self.model, self.expected, self.longest)

    def expected(self, case):
        """Keras' outputs for a case, by name."""
        tensors = {name: tf.constant(array) for name, array in case.items()}
        return {name: np.asarray(tensor) for name, tensor in self.function(**tensors).items()}

    def compare(self, cases, expected, found, tolerance, exact=True):
        """Raises `ExportError` unless what the file gave is what Keras gives, and the head fits."""
        if self.head is not None:
            heads.check_outputs(self, cases, expected)
        try:
            worst = verify.compare_forward(expected, found, tolerance, exact)
        except ExportError:
            _check_steady(expected[-1], self.expected(cases[-1]))
            raise
        if self.passed is not None:
            float32.check_copy(lambda: self._compare_passed(cases, found, tolerance))
        return worst

    def same_tokens(self, expected, found):
        """`None`, as there is no search."""

    def _compare_passed(self, cases, found, tolerance):
        expected = []
        for case in cases:
            outputs = self._outputs(self.passed, {k: tf.constant(v) for k, v in case.items()})
            dtypes = {name: array.dtype.name for name, array in found[0].items()}
            expected.append({k: np.asarray(ops.cast(v, dtypes[k])) for k, v in outputs.items()})
        tolerance = max(tolerance, float32.COPY_TOLERANCE)
        return verify.compare_forward(expected, found, tolerance, exact=False)


def _check_steady(expected: dict, again: dict) -> None:
    """Raises `ExportError` where Keras gives other outputs for the same input a second time."""
    for name, reference in expected.items():
        if not np.array_equal(reference, again[name], equal_nan=reference.dtype.kind == "f"):
            raise ExportError(
                f"Output {name!r}: Keras gives other numbers for the same input when it is called "
                "again, so nothing can be compared. A layer counts its calls, keeps a state or "
                "draws random numbers while training=False: leave that out of the exported model."
            )


def _output_names(model):
    """Names of the outputs: those of the layers that give them, but for logits of an embedding."""
    if hasattr(model, "decode_step"):
        return [signature.LOGITS]
    embeddings = [layer.name for layer in model.layers if isinstance(layer, TokenEmbedding)]
    return [signature.LOGITS if name in embeddings else name for name in model.output_names]
