"""The export of a search: ids in, the generated ids and their scores out.

Shapes: B sentences, W hypotheses of each, S source length, P start (or prompt) length, T generated
length, V vocabulary.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.export import float32, verify
from keras_transformer.export.artefact import signature
from keras_transformer.export.tasks.samples import (
    check_listed,
    checked_inputs,
    made_up_inputs,
    most_ids,
    random_ids,
    smallest,
)
from keras_transformer.padding import pad_rows
from keras_transformer.search import Constrained, Sampling
from keras_transformer.search.base import EXTRA_LENGTH
from keras_transformer.search.shortlist import FORBIDDEN, Shortlisted
from keras_transformer.search.sources import source_specs


def vocab_sizes(model):
    """`{"source", "target"}` of a model that can be searched; `None` for what reads no ids."""
    target = getattr(model, "target_vocab_size", None) or model.vocab_size
    if model.source_inputs is None:
        return {"source": model.vocab_size, "target": target}
    ids = reads_ids(model)
    return {"source": most_ids(model.encoder) if ids else None, "target": target}


def is_language_model(model):
    """Whether a model that can be searched reads nothing but what it continues."""
    return [tensor.name for tensor in model.inputs] == [signature.TARGET_IDS]


def reads_ids(model):
    """Whether the source is `source_ids` (B, S) and nothing else."""
    (name, spec), *others = source_specs(model).items()
    return name == signature.SOURCE_IDS and spec.dtype.is_integer and not others


class SearchTask:
    """What an export with a search computes, and how it is proven.

    Args:
        model: `Transformer`, `CausalTransformer` or an importer's model, in float32.
        search: `GreedySearch`, `BeamSearch` or `Sampling`.
        max_length: most generated tokens, or `None` for the source's length and some more.
        shortlist: `Shortlist` of what may be written, or `None`.
        grammar: what a `Constrained` model takes, or `None`.
        passed: the user's model, where `model` is a copy of it in float32, as in `ForwardTask`.

    Attributes:
        name: the task in the manifest: "generate" for a language model, "translate" where token ids
            are read, "transcribe" where an encoder reads something else.
        head: `None`, for a search writes texts.
        random: whether the search takes a seed.
        specs: dict from the inputs' names to `tf.TensorSpec`.
        vocab_size: `{"source", "target"}`.
        search_config: the search as the manifest describes it.
    """

    head = None

    def __init__(
        self, model, search, max_length, shortlist=None, grammar=None, passed=None
    ):  # fmt: skip
        self.model, self.search, self.max_length = model, search, max_length
        self.passed = None if passed is model else passed
        self.shortlist = shortlist
        self.searched = model if shortlist is None else Shortlisted(model, shortlist)
        if grammar is not None:
            self.searched = Constrained(self.searched, grammar)
        self.random = isinstance(search, Sampling)
        self.reads_ids = reads_ids(model)
        self.name = "translate" if self.reads_ids else "transcribe"
        if is_language_model(model):
            self.name = "generate"
        self.vocab_size = vocab_sizes(model)
        self.longest = model.max_length
        if model.source_inputs is not None:
            self.longest = smallest(model.encoder, "max_length", "sequence_length")
        self.search_config = {"class_name": type(search).__name__, "config": search.get_config()}
        self.sources = source_specs(model)
        self.specs = dict(self.sources)
        if self.random:
            self.specs[signature.SEED] = tf.TensorSpec([], "int32", signature.SEED)

    def function(self, **inputs):
        """What is traced: the source, ids (B, S), to ids (B, W, T) and scores (B, W)."""
        seed = {signature.SEED: inputs.pop(signature.SEED)} if self.random else {}
        result = self.search(self.searched, inputs, self.max_length, **seed)
        return {signature.TOKEN_IDS: result.ids, signature.SCORES: result.scores}

    def axes(self, name, rank):
        """Names of the axes of an input or output."""
        if name in signature.AXES and len(signature.AXES[name]) == rank:
            return signature.AXES[name]
        return signature.axes_of(name, rank)

    def limits(self, max_source_length):
        """The lengths that the manifest promises to serve."""
        return {
            "source_length": min(max_source_length, self.longest or max_source_length),
            "target_length": self.max_length or self.model.max_length,
            "extra_length": None if self.max_length else EXTRA_LENGTH,
        }

    def cases(self, samples):
        """Inputs to prove the file on: sentences of several lengths, padded, alone and together."""
        if samples is None:
            samples = self._random()
        cases = [self._checked(sample) for sample in check_listed(samples)]
        if self.random:
            for seed, case in enumerate(cases, 17):
                case[signature.SEED] = np.array(seed, np.int32)
        return cases

    def _random(self):
        if self.reads_ids and self.vocab_size["source"]:
            return random_ids(self.vocab_size["source"], self.longest)
        encoder = self.model.encoder

        def run(case):
            values = [case[name] for name in self.sources]
            return encoder(keras.tree.pack_sequence_as(encoder.input, values), training=False)

        return made_up_inputs(self.sources, encoder, run, self.longest)

    def _checked(self, sample):
        """A sample as it is fed; raises `ValueError` unless it is what the model reads."""
        if not isinstance(sample, dict):
            sample = dict.fromkeys(self.sources, sample)
        if self.reads_ids and self.vocab_size["source"]:
            return {name: self._checked_ids(ids) for name, ids in sample.items()}
        return checked_inputs(sample, self.sources)

    def _checked_ids(self, ids):
        size, longest = self.vocab_size["source"], self.longest
        ids = np.asarray(ids)
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

    def expected(self, case):
        """Keras' ids (B, W, T) and scores (B, W) for a case."""
        seed = {"seed": int(case[signature.SEED])} if self.random else {}
        result = self.search(self.searched, self._source(case), self.max_length, **seed)
        return result.ids.numpy(), result.scores.numpy()

    def compare(self, cases, expected, found, tolerance, exact=True):
        """Raises `ExportError` unless what the file gave is what Keras gives.

        Its scores are held against those that Keras' forward pass gives to the file's own ids:
        rounded weights may choose other tokens, but must not give them wrong scores.
        """

        def compare(model, tolerance, exact):
            rescored = [
                self.rescore(self._source(case), outputs[signature.TOKEN_IDS], model)
                for case, outputs in zip(cases, found, strict=True)
            ]
            return verify.compare_search(expected, found, rescored, tolerance, exact)

        worst = compare(self.model, tolerance, exact)
        if self.passed is not None:
            allowed = max(tolerance, float32.COPY_TOLERANCE)
            float32.check_copy(lambda: compare(self.passed, allowed, exact=False))
        return worst

    def same_tokens(self, expected, found):
        """In how many lines the best hypothesis is Keras', token for token, and of how many."""
        pairs = [
            (theirs[theirs > 0].tolist(), ours[ours > 0].tolist())
            for (ids, _), outputs in zip(expected, found, strict=True)
            for theirs, ours in zip(ids[:, 0], outputs[signature.TOKEN_IDS][:, 0], strict=True)
        ]
        return [sum(one == two for one, two in pairs), len(pairs)]

    def _source(self, case):
        """The inputs of a case without the seed, dict of arrays."""
        return {name: case[name] for name in self.sources}

    def rescore(self, source, token_ids, model=None):
        """The scores, (B, W), that a model's plain forward pass gives to hypotheses (B, W, T).

        It knows no cache, no loop and no beam, so it is a second way to the same numbers. Beside
        them their spread: the scores' sums over standard deviations of all log-probabilities.
        """
        width = token_ids.shape[1]
        targets, lengths = self._targets(source, token_ids)
        inputs = targets[:, :-1]  # the last token is never read
        if self.name != "generate":
            repeated = {name: np.repeat(array, width, axis=0) for name, array in source.items()}
            inputs = {**repeated, signature.TARGET_IDS: inputs}
        model = self.model if model is None else model
        logits = np.asarray(model(inputs, training=False), np.float64)  # (B W, P + T - 1, V)
        verify.check_known("Logits of the forward pass", logits)
        if self.shortlist is not None:
            allowed = self.shortlist.candidates(source[signature.SOURCE_IDS])  # (B, V)
            logits += np.repeat(np.where(allowed, 0.0, FORBIDDEN), width, axis=0)[:, None]
        peak = logits.max(axis=-1, keepdims=True)
        logits -= peak + np.log(np.exp(logits - peak).sum(axis=-1, keepdims=True))
        chosen = np.take_along_axis(logits, targets[:, 1:, None], axis=2)[..., 0]
        # A token that a bias forbids has a log-probability that is no measure of the others'.
        spread = logits.std(axis=-1, where=logits > -verify.LARGE)
        column = np.arange(chosen.shape[1])[None]
        pad = signature.SPECIAL_IDS["pad"]
        generated = (column >= lengths[:, None] - 1) & (targets[:, 1:] != pad)
        count = np.maximum(generated.sum(axis=1), 1)
        norm = ((5.0 + count) / 6.0) ** getattr(self.search, "length_penalty", 0.0)
        return tuple(
            (np.where(generated, part, 0.0).sum(axis=1) / norm).reshape(-1, width)
            for part in (chosen, spread)
        )

    def _targets(self, source, token_ids):
        """Start and generated tokens of each hypothesis in a row, and the length of each start.

        Returns:
            A pair: ids (B W, P + T), padded on the right, and lengths (B W,). A prompt's own
            padding is left out, so that the tokens follow it as they do in the search.
        """
        tokens = token_ids.reshape(-1, token_ids.shape[2])  # (B W, T)
        if self.reads_ids:
            source = source[signature.SOURCE_IDS]
        start = np.asarray(self.model.start_ids(source))
        start = np.repeat(start, token_ids.shape[1], axis=0)  # (B W, P)
        pad = signature.SPECIAL_IDS["pad"]
        lengths = np.maximum((start != pad).sum(axis=1), 1)
        rows = [
            np.r_[one[:n], two[two != pad]]
            for one, n, two in zip(start, lengths, tokens, strict=True)
        ]
        targets = pad_rows(rows)
        return targets, lengths
