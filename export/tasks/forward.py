"""The export of a forward pass: any functional Keras model, its inputs and outputs by name.

Shapes: B rows, S tokens, C classes.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import id_inputs
from keras_transformer.export.artefact.task_heads import (
    Head,
    QuestionAnswering,
    TokenClassification,
    describe_head,
)
from keras_transformer.export.model_inputs import longest_input, plain_name, vocab_sizes
from keras_transformer.export.proof import comparison
from keras_transformer.export.staging import ExportError
from keras_transformer.export.tasks.samples import (
    MAX_SOURCE_LENGTH,
    check_inputs,
    check_listed,
    made_up_inputs,
    source_limit,
    with_last_id,
)
from keras_transformer.layers.embeddings import TokenEmbedding
from keras_transformer.types import Array, Tensor

Case: TypeAlias = Mapping[str, Array]

# Probabilities sum to 1 within this tolerance.
SUM_TOLERANCE = 1e-3
# If this many outputs for two classes all lie in [0, 1], they are probabilities.
ENOUGH = 8
# Padding that tests whether a model ignores it. Results may change by UNCHANGED, relative to a
# number's size but at least to 1.
PADDING, UNCHANGED = 3, 1e-4


class ForwardTask:
    """The export of a forward pass.

    Args:
        model: functional Keras model in float32. A `Sequential` becomes one, because its inputs and
            outputs have no names.
        head: meaning of the outputs, one of `artefact.task_heads`. Defaults to `None`:
            plain outputs.
        passed: the user's model, if `model` is its float32 copy. The export is compared with both.
            Defaults to `None`: there is no copy.
        tokenizer: the tokenizer of the ids. Defaults to `None`. The proof then reads its last id.

    Attributes:
        name: the task in the manifest: the head's, or "forward".
        model: the model that is traced.
        specs: the `tf.TensorSpec` of each input, by name.
        outputs: names of the outputs.
        ids: names of the inputs that hold rows of ids.
        longest: greatest length that the model reads, or `None`.
        vocab_size: `{"source", "target"}`, both `None` for a model without a vocabulary.
        search_config: `None`, because there is no search.
        option_defaults: empty, because only a search has options.
        row_scales: `False`, as in `quantize.reduce_precision`.

    Raises:
        ValueError: two inputs or outputs have the same name.
    """

    search_config = None
    row_scales = False
    option_defaults: ClassVar[dict[str, Array]] = {}

    def __init__(
        self,
        model: keras.Model,
        head: Head | None = None,
        passed: keras.Model | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.head: Head | None = head
        self.name: str = head.task if head else "forward"
        self.passed: keras.Model | None = None if passed is model else passed
        if isinstance(model, keras.Sequential):
            model = keras.Model(model.inputs, model.outputs, name=model.name)
        self.model: keras.Model = model
        self.longest: int | None = longest_input(model)
        self.specs: dict[str, tf.TensorSpec] = {
            name: tf.TensorSpec(tensor.shape, tensor.dtype, name)
            for tensor in model.inputs
            for name in [plain_name(tensor.name)]
        }
        self.ids: list[str] = id_inputs(
            {"name": name, "dtype": spec.dtype.name, "axes": spec.shape.as_list()}
            for name, spec in self.specs.items()
        )
        names = list(model.output) if isinstance(model.output, dict) else _output_names(model)
        self.outputs: list[str] = [plain_name(name) for name in names]
        outputs, inputs = keras.tree.flatten(model.output), model.inputs
        if len(set(self.outputs) | set(self.specs)) < len(outputs) + len(inputs):
            raise ValueError(
                f"Inputs {list(self.specs)} and outputs {self.outputs} need different names. Pass "
                "outputs as a flat dict of other names: keras.Model(inputs, {'name': output})."
            )
        self.vocab_size: dict[str, int | None] = {"source": None, "target": None}
        self.tokenizer: Any = tokenizer
        if hasattr(model, "decode_step"):
            self.vocab_size = vocab_sizes(model)

    def function(self, /, **inputs: Tensor) -> dict[str, Tensor]:
        """Returns outputs by name for inputs by name; exporters trace this function."""
        return self._run(self.model, inputs)

    def _run(self, model: keras.Model, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # A `Sequential` of the user, unlike `self.model`, may have no `input`.
        given = [inputs[name] for name in self.specs]
        arranged = keras.tree.pack_sequence_as(self.model.input, given)
        return self._by_name(model(arranged, training=False))

    def _by_name(self, outputs: Any) -> dict[str, Any]:
        if isinstance(outputs, dict):
            return {plain_name(name): tensor for name, tensor in outputs.items()}
        return dict(zip(self.outputs, keras.tree.flatten(outputs), strict=True))

    def output_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Returns the shapes of the outputs, by name."""
        tensors = self._by_name(self.model.output)
        return {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def axes(self, name: str, rank: int) -> tuple[str, ...]:
        """Returns the names of an input's or output's axes, for axes without a fixed size.

        In a model with one input, outputs of the input's length share the name of that axis. ONNX
        Runtime reuses the buffers of shapes with equal names, so no other output may share it.
        """
        names = signature.axes_of(name, rank)
        documented = names == signature.AXES.get(name)
        if rank > 1 and not documented and name in self._outputs_of_input_length:
            names = (names[0], self.axes(*self.specs, 2)[1], *names[2:])
        return names

    @functools.cached_property
    def _outputs_of_input_length(self) -> set[str]:
        """Names of the outputs whose second axis has the length of the only input.

        Keras infers the shapes for two lengths.
        """
        if len(self.specs) > 1 or len(self.model.inputs[0].shape) < 2:
            return set()
        (tensor,) = self.model.inputs
        found = set(self.outputs)
        for length in (11, 13):
            shape = (2, tensor.shape[1] or length, *(n or length for n in tensor.shape[2:]))
            given = keras.KerasTensor(shape, tensor.dtype, name=tensor.name)
            arranged = keras.tree.pack_sequence_as(self.model.input, [given])
            try:
                specs = self._by_name(self.model.compute_output_spec(arranged))
            except Exception:  # a layer may refuse a made-up size
                return set()
            found &= {name for name, spec in specs.items() if spec.shape[1:2] == shape[1:2]}
        return found

    def limits(self, max_source_length: int | None) -> dict[str, int | None]:
        """Returns the lengths that the manifest promises to serve."""
        return {
            "source_length": source_limit(self.longest, max_source_length, MAX_SOURCE_LENGTH),
            "target_length": self.longest,
            "extra_length": None,
        }

    def cases(self, samples: Sequence[Any] | None) -> list[dict[str, Array]]:
        """Returns the inputs of the proof; random ones if `samples` is `None`."""
        if samples is None:
            cases = made_up_inputs(self.specs, self.model, self.expected, self.longest)
        else:
            cases = [check_inputs(case, self.specs) for case in check_listed(samples)]
        tokenizer = None if hasattr(self.model, "decode_step") else self.tokenizer
        return with_last_id(cases, self.ids, tokenizer if self.ids else None, self.expected)

    def expected(self, case: Case) -> dict[str, Array]:
        """Returns Keras' outputs for a case, by name."""
        tensors = {name: tf.constant(array) for name, array in case.items()}
        return {name: np.asarray(tensor) for name, tensor in self.function(**tensors).items()}

    def compare(
        self,
        cases: Sequence[Case],
        expected: Sequence[Case],
        found: Sequence[Case],
        tolerance: float,
        exact: bool = True,
    ) -> float:
        """Raises `ExportError` unless the file gave Keras' outputs and the head fits them.

        Args:
            cases: the inputs.
            expected, found: outputs of Keras and of the exported file.
            tolerance, exact: as in `comparison.compare_forward`.

        Returns:
            The largest error.
        """
        self._check_lengths(cases, expected)
        self._check_probabilities(cases, expected)
        try:
            worst = comparison.compare_forward(expected, found, tolerance, exact)
        except ExportError:
            _check_steady(expected[-1], self.expected(cases[-1]))
            raise
        if self.passed is not None:
            comparison.check_copy(lambda: self._compare_passed(cases, found, tolerance))
        return worst

    def _compare_passed(
        self, cases: Sequence[Case], found: Sequence[Case], tolerance: float
    ) -> float:
        expected = []
        for case in cases:
            outputs = self._run(self.passed, {k: tf.constant(v) for k, v in case.items()})
            dtypes = {name: array.dtype.name for name, array in found[0].items()}
            expected.append({k: np.asarray(ops.cast(v, dtypes[k])) for k, v in outputs.items()})
        tolerance = max(tolerance, comparison.TOLERANCES["copy"])
        return comparison.compare_forward(expected, found, tolerance, exact=False)

    def _check_lengths(self, cases: Sequence[Case], expected: Sequence[Case]) -> None:
        """Raises `ExportError` if Keras does not give a vector for each token to such a head."""
        if self.head is None or not self.ids:
            return
        for name, head in self.head.parts(self.outputs).items():
            if isinstance(head, (TokenClassification, QuestionAnswering)):
                for case, outputs in zip(cases, expected, strict=True):
                    tokens, size = case[self.ids[-1]].shape[1], outputs[name].shape[1]
                    if size != tokens:
                        raise ExportError(
                            f"{type(head).__name__} needs the numbers of each token, but the "
                            f"output {name!r} has the length {size} for {tokens} ids. Remove the "
                            "layers that change the length, such as convolutions with strides."
                        )

    def _check_probabilities(self, cases: Sequence[Case], expected: Sequence[Case]) -> None:
        """Raises `ExportError` if Keras gives probabilities for a head of logits, or vice versa."""
        for name, head in self.head.parts(self.outputs).items() if self.head else ():
            if hasattr(head, "from_logits"):
                self._check_output(cases, [outputs[name] for outputs in expected], head.from_logits)

    def _check_output(
        self, cases: Sequence[Case], expected: Sequence[Array], from_logits: bool
    ) -> None:
        parts = []
        for case, numbers in zip(cases, expected, strict=True):  # (B, C) or (B, S, C)
            ids = case[self.ids[0]] if len(self.ids) == 1 else None
            if ids is not None and numbers.ndim == 3 and ids.shape == numbers.shape[:2]:
                numbers = numbers[ids != signature.SPECIAL_IDS["pad"]]
            parts.append(numbers.reshape(-1, numbers.shape[-1]))
        rows = np.concatenate(parts).astype(np.float64)
        within = (rows >= -SUM_TOLERANCE) & (rows <= 1 + SUM_TOLERANCE)
        if rows.shape[1] > 1:
            within &= np.abs(rows.sum(axis=1, keepdims=True) - 1) <= SUM_TOLERANCE
        if not from_logits and not within.all():
            raise ExportError(
                "The head says from_logits=False, but the model gives "
                f"{rows[~within.all(axis=1)][0]} for a sample, which are not probabilities. Pass "
                "from_logits=True."
            )
        enough = rows.shape[1] > 1 or rows.size >= ENOUGH
        if from_logits and enough and within.all():
            raise ExportError(
                "The head says from_logits=True, but the model gives probabilities, such as "
                f"{rows[0]}. Pass from_logits=False, or leave out the model's last softmax or "
                "sigmoid."
            )

    def same_tokens(self, expected: Sequence[Any], found: Sequence[Case]) -> None:
        """Returns `None`, because there is no search."""

    def manifest_fields(self, cases: Sequence[Case]) -> dict[str, Any]:
        """Returns the fields that a head adds to the manifest; none without a head."""
        if self.head is None:
            return {}
        return {"head": describe_head(self.head), "ignores_padding": self.ignores_padding(cases)}

    def ignores_padding(self, cases: Sequence[Case]) -> bool:
        """Returns whether padding rows of ids on the right leaves Keras' results unchanged."""
        return bool(self.ids) and all(self._ignores_padding(case) for case in cases)

    def _ignores_padding(self, case: Case) -> bool:
        room = (self.longest or np.inf) - PADDING
        if room < 1:
            return False
        plain, padded = dict(case), dict(case)
        for name in {*self.ids, signature.SEGMENT_IDS} & set(self.specs):
            if self.specs[name].shape[1] is None:
                plain[name] = case[name][:, : int(min(room, case[name].shape[1]))]
                padded[name] = np.pad(plain[name], [(0, 0), (0, PADDING)])
        length = plain[self.ids[-1]].shape[1]
        pairs = zip(self.expected(plain).values(), self.expected(padded).values(), strict=True)
        for reference, result in pairs:
            if reference.ndim == 3 and reference.shape[1] != length:
                return False  # the runtime cuts such an output at the number of the ids
            unpadded = result[tuple(map(slice, reference.shape))]
            if not np.allclose(unpadded, reference, UNCHANGED, UNCHANGED):
                return False
        return True


def _check_steady(expected: Case, again: Case) -> None:
    """Raises `ExportError` if Keras gives other outputs for the same input in a second call."""
    for name, reference in expected.items():
        if not np.array_equal(reference, again[name], equal_nan=reference.dtype.kind == "f"):
            raise ExportError(
                f"Output {name!r}: Keras gives other numbers for the same input in a second call, "
                "so nothing can be compared. A layer counts its calls, keeps a state or "
                "draws random numbers with training=False: remove it from the exported model."
            )


def _output_names(model: keras.Model) -> list[str]:
    """Returns the names of the output layers; "logits" for a `TokenEmbedding`."""
    if hasattr(model, "decode_step"):
        return [signature.LOGITS]
    embeddings = [layer.name for layer in model.layers if isinstance(layer, TokenEmbedding)]
    return [signature.LOGITS if name in embeddings else name for name in model.output_names]
