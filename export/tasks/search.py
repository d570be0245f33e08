"""The export of a search: ids in, the generated ids and their scores out.

Shapes: B sentences, W hypotheses, S source length, P start (or prompt) length, T generated length,
V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.decoding import START_IDS, is_causal, reads_ids
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.task_heads import log_softmax
from keras_transformer.export.model_inputs import longest_input, vocab_sizes
from keras_transformer.export.proof import comparison
from keras_transformer.export.tasks.samples import (
    MAX_SOURCE_LENGTH,
    check_inputs,
    check_listed,
    made_up_inputs,
    random_ids,
    random_start,
    source_limit,
    with_last_id,
)
from keras_transformer.padding import pad_rows
from keras_transformer.search import BeamSearch, Constraint, GreedySearch, Past, Sampling
from keras_transformer.search.constraints import constrain
from keras_transformer.search.inputs import EXTRA_LENGTH, read_inputs, source_specs
from keras_transformer.search.scores import Scores
from keras_transformer.training.alignment import with_alignments
from keras_transformer.types import Array, Ids, Tensor

ExportableSearch: TypeAlias = GreedySearch | BeamSearch | Sampling
Case: TypeAlias = Mapping[str, Array]


def _described(constraint: Constraint) -> dict[str, Any]:
    """Returns the manifest's form of a constraint: its class, and its configuration if any."""
    if hasattr(constraint, "get_config"):
        return keras.saving.serialize_keras_object(constraint)
    return {"class_name": type(constraint).__name__}


class ForcedPass(NamedTuple):
    """The results of a model's forward pass for hypotheses.

    Attributes:
        scores: (B, W), sums of log-probabilities over the length penalty.
        spread: (B, W), sums of the standard deviations of the log-probabilities at each token,
            over the length penalty.
        token_scores: a pair (B, W, T), the log-probability of each token and the spread there.
        alignments: (B, W, T, S), the attention of each token to the source; `None` if the search
            has none.
        start_scores: a pair (B, K), the log-probabilities after the begin token and their spread;
            `None` unless the search has `start_tokens`.
    """

    scores: Array
    spread: Array
    token_scores: tuple[Array, Array]
    alignments: Array | None
    start_scores: tuple[Array, Array] | None


class SearchTask:
    """The export of a search.

    Args:
        model: `Transformer`, `CausalTransformer` or an importer's model, in float32.
        search: `GreedySearch`, `BeamSearch` or `Sampling`.
        max_length: maximum number of generated tokens; `None` for the source's length + 50.
        searched: the model that is searched, such as `model` with a shortlist. Defaults to `None`:
            `model`.
        options: names of further options that become inputs. Defaults to none.
        passed: the user's model, if `model` is its float32 copy. The export is compared with both.
            Defaults to `None`: there is no copy.
        tokenizer: the tokenizer of the source. Defaults to `None`. If the model's number of ids is
            unknown, the proof reads its last id.

    Attributes:
        name: the task in the manifest: "generate" for a language model, "translate" for a model
            that reads token ids, "transcribe" for an encoder that reads something else.
        searched: the model that is searched.
        random: whether the search takes a seed.
        reads_ids: whether the source is rows of token ids.
        row_scales: as in `quantize.reduce_precision`, for searches that read windows.
        sources: the `tf.TensorSpec` of each source input, by name.
        option_defaults: dict from the names of optional inputs to their defaults.
        specs: `sources`, the seed, and `option_defaults`.
        outputs: names of the outputs.
        longest: greatest length of a source, or `None`.
        vocab_size: `{"source", "target"}`.
        search_config: the search as in the manifest.
        lowest, highest: bounds of some options of a call.
    """

    def __init__(
        self,
        model: keras.Model,
        search: ExportableSearch,
        max_length: int | None,
        searched: Any = None,
        options: Sequence[str] = (),
        passed: keras.Model | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.model: keras.Model = model
        self.tokenizer: Any = tokenizer
        self.search: ExportableSearch = search
        self.max_length: int | None = max_length
        self.passed: keras.Model | None = None if passed is model else passed
        self.searched: Any = model if searched is None else searched
        self.random: bool = isinstance(search, Sampling)
        self.reads_ids: bool = reads_ids(model)
        self.name: str = "translate" if self.reads_ids else "transcribe"
        if is_causal(model):
            self.name = "generate"
        self.vocab_size: dict[str, int | None] = vocab_sizes(model)
        self.longest: int | None = model.max_length
        if model.source_inputs is not None:
            self.longest = longest_input(model.encoder)
        self.search_config: dict[str, Any] = {
            "class_name": type(search).__name__,
            "config": {
                **search.get_config(),
                "constraints": [_described(item) for item in search.constraints],
            },
        }
        self.sources: dict[str, tf.TensorSpec] = source_specs(model)
        search.check_room(model, max_length)
        if None not in (max_length, model.max_length) and max_length > model.max_length:
            raise ValueError(
                f"max_length={max_length} was passed, but the model has positions for "
                f"{model.max_length} tokens. Pass a smaller one, or leave it out."
            )
        self.lowest: dict[str, int] = {"max_length": search.least_length}
        self.highest: dict[str, int | None] = {"min_length": model.max_length}
        self.specs: dict[str, tf.TensorSpec] = dict(self.sources)
        if self.random:
            self.specs[signature.SEED] = tf.TensorSpec([], "int32", signature.SEED)
        inputs, chosen = search.call_defaults, {*search.free_options, *options}
        if max_length is not None:
            inputs["max_length"] = np.array([max_length], np.int32)
        self.option_defaults: dict[str, Array] = {
            name: default for name, default in inputs.items() if name in chosen
        }
        for name, default in self.option_defaults.items():
            self.specs[name] = tf.TensorSpec([None] * default.ndim, default.dtype, name)
        self.row_scales: bool = search.reads_windows
        self.outputs: list[str] = [signature.TOKEN_IDS, *search.result_names[1:]]

    def function(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Returns the `outputs` of the search for the source; exporters trace this function.

        Each of `option_defaults` is an input. So the constructor's values are in an ONNX file only
        as the defaults of these inputs, which `onnx_model` writes.
        """
        source, options = self.split(inputs)
        result = self.search(self.searched, source, **options)
        fields = zip(self.outputs, self.search.result_names, strict=True)
        return {name: getattr(result, field) for name, field in fields}

    def split(self, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Splits inputs into encoder inputs and options of the search."""
        options = {name: value for name, value in inputs.items() if name not in self.sources}
        return {name: inputs[name] for name in self.sources}, options

    def axes(self, name: str, rank: int) -> tuple[str, ...]:
        """Returns the names of an input's or output's axes."""
        if name in self.option_defaults:  # the first axis is the batch or 1
            return (f"{name}_rows", *(f"{name}_axis_{i}" for i in range(1, rank)))[:rank]
        axes = signature.axes_of(name, rank)
        if name == signature.ALIGNMENTS and self.model.source_inputs is not None:
            return (*axes[:-1], "memory_length")  # the caller's encoder may change the length
        return axes

    def limits(self, max_source_length: int | None) -> dict[str, int | None]:
        """Returns the lengths that the manifest promises to serve."""
        default = MAX_SOURCE_LENGTH if self.reads_ids else self.longest or MAX_SOURCE_LENGTH
        return {
            "source_length": source_limit(self.longest, max_source_length, default),
            "target_length": self.max_length or self.model.max_length,
            "extra_length": None if self.max_length else EXTRA_LENGTH,
        }

    def cases(self, samples: Sequence[Any] | None) -> list[dict[str, Array]]:
        """Returns the inputs of the proof; random ones if `samples` is `None`."""
        samples = self._random_samples() if samples is None else check_listed(samples)
        cases = [self._check_sample(sample) for sample in samples]
        if self.random:
            for seed, case in enumerate(cases, 17):
                case[signature.SEED] = np.array(seed, np.int32)
        if self.reads_ids and self.vocab_size["source"] is None:
            cases = with_last_id(cases, [signature.SOURCE_IDS], self.tokenizer, self.expected)
        return cases

    def _random_samples(self) -> Sequence[Any]:
        if self.vocab_size["source"]:
            return random_ids(self.vocab_size["source"], self.longest)
        encoder = self.model.encoder
        specs = {name: spec for name, spec in self.sources.items() if name != START_IDS}

        def run(case: Case) -> Any:
            values = [case[name] for name in specs]
            return encoder(keras.tree.pack_sequence_as(encoder.input, values), training=False)

        cases = made_up_inputs(specs, encoder, run, self.longest)
        if START_IDS in self.sources:
            for case in cases:
                batch = len(next(iter(case.values())))
                case[START_IDS] = random_start(batch, self.vocab_size["target"])
        return cases

    def _check_sample(self, sample: Any) -> dict[str, Array]:
        """Returns a sample as dict of arrays; raises `ValueError` unless the model reads it."""
        if not isinstance(sample, dict):
            sample = dict.fromkeys(self.sources, sample)
        if not self.vocab_size["source"]:
            return check_inputs(sample, self.sources)
        return {name: self._check_ids(np.asarray(ids)) for name, ids in sample.items()}

    def _check_ids(self, ids: Ids) -> Ids:
        size, longest = self.vocab_size["source"], self.longest
        fits = ids.ndim == 2 and ids.size > 0 and ids.dtype.kind in "iu"
        if not (fits and 0 <= ids.min() and ids.max() < size):
            held = f"with ids from {ids.min()} to {ids.max()}" if fits else f"of {ids.dtype}"
            raise ValueError(
                f"A sample must be an array (B, S) of ids from 0 to {size - 1}, but one of "
                f"shape {ids.shape} {held} was passed."
            )
        if longest is not None and ids.shape[1] > longest:
            raise ValueError(
                f"A sample has {ids.shape[1]} ids a sentence, but the model has learned "
                f"positions for {longest} only."
            )
        return ids.astype(np.int32)

    def expected(self, case: Case) -> tuple[Ids, Array]:
        """Returns Keras' ids (B, W, T) and scores (B, W) for a case."""
        seed = {"seed": int(case[signature.SEED])} if self.random else {}
        result = self.search(self.searched, self._source(case), self.max_length, **seed)
        return result.ids.numpy(), result.scores.numpy()

    def _source(self, case: Case) -> dict[str, Array]:
        """Returns the inputs of a case without the seed."""
        return {name: case[name] for name in self.sources}

    def compare(
        self,
        cases: Sequence[Case],
        expected: Sequence[tuple[Ids, Array]],
        found: Sequence[Case],
        tolerance: float,
        exact: bool = True,
    ) -> float:
        """Raises `ExportError` unless the file gave Keras' results.

        Its scores, token scores and alignments are compared with Keras' forward pass for the ids
        of the file. Rounded weights may lead to other tokens, but their scores must be right.

        Args:
            cases: the inputs.
            expected: Keras' ids and scores.
            found: outputs of the exported file.
            tolerance, exact: as in `comparison.compare_search`.

        Returns:
            The largest error.
        """

        def compare(model: keras.Model, tolerance: float, exact: bool) -> float:
            forced = [
                self.forced(self._source(case), outputs[signature.TOKEN_IDS], model)
                for case, outputs in zip(cases, found, strict=True)
            ]
            rescored = [(one.scores, one.spread) for one in forced]
            errors = [comparison.compare_search(expected, found, rescored, tolerance, exact)]
            for name in {signature.TOKEN_SCORES, signature.START_SCORES} & set(self.outputs):
                pairs = [getattr(one, name) for one in forced]
                if name == signature.START_SCORES:  # they differ more between sounds than in one
                    varied = np.concatenate([values for values, _ in pairs]).std()
                    pairs = [(values, np.maximum(spread, varied)) for values, spread in pairs]
                claimed = [one[name] for one in found]
                error = comparison.compare_scores(name, pairs, claimed, tolerance, exact)
                errors.append(error)
            if signature.ALIGNMENTS in self.outputs:
                alignments = [{signature.ALIGNMENTS: one.alignments} for one in forced]
                errors.append(comparison.compare_forward(alignments, found, tolerance, exact))
            return max(errors)

        worst = compare(self.model, tolerance, exact)
        if self.passed is not None:
            allowed = max(tolerance, comparison.TOLERANCES["copy"])
            comparison.check_copy(lambda: compare(self.passed, allowed, exact=False))
        return worst

    def same_tokens(
        self, expected: Sequence[tuple[Ids, Array]], found: Sequence[Case]
    ) -> list[int]:
        """Returns the number of lines whose best hypothesis has Keras' tokens, and of all lines."""
        return comparison.same_tokens(expected, found)

    def manifest_fields(self, cases: Sequence[Case]) -> dict[str, Any]:
        """Returns no fields: only a head adds some."""
        return {}

    def forced(
        self, source: Case, token_ids: Ids, model: keras.Model | None = None
    ) -> "ForcedPass":
        """Computes scores and alignments of hypotheses (B, W, T) by a model's forward pass.

        The forward pass has no cache, no loop and no beam, so it is an independent check.

        Args:
            source: the inputs without the seed.
            token_ids: hypotheses (B, W, T).
            model: the model. Defaults to `None`: the exported one.
        """
        width = token_ids.shape[1]
        targets, lengths = self._targets(source, token_ids)
        inputs = targets[:, :-1]  # no token follows the last one
        if self.name != "generate":
            repeated = {
                name: np.repeat(array, width, axis=0)
                for name, array in source.items()
                if name != START_IDS  # among the targets
            }
            inputs = {**repeated, signature.TARGET_IDS: inputs}
        model = self.model if model is None else model
        attention = None
        if self.search.alignments:
            found = with_alignments(model, self.search.alignments)(inputs, training=False)
            logits, attention = (np.asarray(found[name]) for name in ("logits", "alignments"))
        else:
            logits = np.asarray(model(inputs, training=False))
        logits = logits.astype(np.float64)  # (B W, P + T - 1, V)
        comparison.check_no_nan("Logits of the forward pass", logits)
        if self.searched is not self.model:
            bias = self.searched.logit_bias(source[signature.SOURCE_IDS])  # (B, V)
            logits += np.repeat(bias, width, axis=0)[:, None]
        # Rules that leave only a few tokens would make the spread small.
        spread = logits.std(axis=-1, where=logits > -comparison.LARGE)
        start_scores = None
        if self.search.start_tokens:
            start = targets[::width] == signature.SPECIAL_IDS["begin"]
            after_begin = np.arange(0, len(targets), width), start.argmax(axis=1)
            values = log_softmax(logits[after_begin])[:, list(self.search.start_tokens)]
            start_scores = values, np.broadcast_to(spread[after_begin][:, None], values.shape)
        if self.search.constraints:
            logits = self._constrained(source, targets, lengths, logits)
        logits = log_softmax(logits)
        chosen = np.take_along_axis(logits, targets[:, 1:, None], axis=2)[..., 0]
        column = np.arange(chosen.shape[1])[None]
        pad = signature.SPECIAL_IDS["pad"]
        generated = (column >= lengths[:, None] - 1) & (targets[:, 1:] != pad)
        divisor = self.search.length_divisor(np.maximum(generated.sum(axis=1), 1))
        score, size = (
            (np.where(generated, part, 0.0).sum(axis=1) / divisor).reshape(-1, width)
            for part in (chosen, spread)
        )

        def of_tokens(values: Array) -> Array:
            """Moves values from positions (B W, P + T - 1, ...) to tokens (B, W, T, ...)."""
            tokens = np.zeros((*token_ids.shape, *values.shape[2:]), np.float32)
            tokens[token_ids != pad] = values[generated]
            return tokens

        alignments = None if attention is None else of_tokens(attention)
        token_scores = of_tokens(chosen), of_tokens(spread)
        return ForcedPass(score, size, token_scores, alignments, start_scores)

    def _constrained(self, source: Case, targets: Ids, lengths: Ids, logits: Array) -> Array:
        """Applies the constraints of the search to the logits, step by step.

        Args:
            source: the inputs of the encoder.
            targets, lengths: the result of `_targets`.
            logits: (B W, P + T - 1, V).
        """
        options = {"max_length": self.max_length, "seed": 0 if self.random else None}
        inputs = read_inputs(self.searched, source, options, self.search.call_defaults)
        _, loop_inputs, start = self.search.begin(self.searched, inputs)
        known, states = loop_inputs.known, start.constraint_states
        limit = loop_inputs.limit.numpy()  # (B, 1)
        shape = len(limit), len(targets) // max(len(limit), 1)  # (B, W)
        found = []
        for place in range(logits.shape[1]):
            history = targets[:, 1 : place + 1].reshape(*shape, place)
            count = place + 2 - lengths.reshape(shape)[:, :1]
            arrays = targets[:, place].reshape(shape), history, count, limit - count + 1
            past = Past(*(tf.constant(array, tf.int32) for array in arrays))
            here = tf.constant(logits[:, place].reshape(*shape, logits.shape[2]), tf.float32)
            scores, states = constrain(self.search.constraints, Scores(here), past, states, known)
            found.append(scores.dense.numpy().reshape(len(targets), -1))
        return np.stack(found, axis=1).astype(np.float64)

    def _targets(self, source: Case, token_ids: Ids) -> tuple[Ids, Ids]:
        """Joins start and generated tokens of each hypothesis; also returns the start lengths.

        Returns:
            A pair: ids (B W, P + T), padded on the right, and lengths (B W,). The padding of a
            prompt is left out, so the tokens follow the prompt directly, as in the search.
        """
        tokens = token_ids.reshape(-1, token_ids.shape[2])  # (B W, T)
        start = np.asarray(
            self.model.start_ids(source[signature.SOURCE_IDS] if self.reads_ids else source)
        )
        start = np.repeat(start, token_ids.shape[1], axis=0)  # (B W, P)
        pad = signature.SPECIAL_IDS["pad"]
        lengths = np.maximum((start != pad).sum(axis=1), 1)
        rows = [
            np.r_[one[:n], two[two != pad]]
            for one, n, two in zip(start, lengths, tokens, strict=True)
        ]
        return pad_rows(rows), lengths
