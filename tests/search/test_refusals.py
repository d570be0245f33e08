"""Arguments that searches, constraints and shortlists refuse, and near ones that they accept."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import exports
from helpers.fake_model import FakeModel

import keras_transformer as kt
from keras_transformer.search import BeamSearch, GreedySearch, Sampling, Shortlist, Terms

V = 97
SOURCE = np.array([[5, 7, 9], [4, 6, 0]], "int32")
FAKE, CAUSAL, MODEL = FakeModel(11), FakeModel(11, causal=True), exports.tiny(vocab_size=V)
LANGUAGE_MODEL = exports.tiny("generate", vocab_size=V)
GREEDY = GreedySearch()
TERMS = BeamSearch(2, constraints=[Terms()])
PENALTY = BeamSearch(2, constraints=[kt.RepetitionPenalty(1.5)])


class Mapped(FakeModel):
    def initial_cache(self, batch_size, beam_width):
        return {"own": ()}


def without(method):
    """Returns a model that lacks a method."""
    members = {name: item for name, item in vars(FakeModel).items() if name != method}
    return type("Unfinished", (), members)(5)


def short_of_positions(rows=1):
    positions = kt.LearnedPositionEncoding(max_length=5)
    sizes = {"num_layers": 1, "d_model": 6, "num_heads": 2, "d_ff": 7, "positions": positions}
    models = [kt.Transformer(11, **sizes) for _ in range(rows)]
    return models[0] if rows == 1 else kt.Ensemble(models)


def prompted():
    positions = kt.LearnedPositionEncoding(max_length=5)
    return kt.CausalTransformer(11, 1, d_model=6, num_heads=2, d_ff=7, positions=positions)


def sampled(**arguments):
    return Sampling(min_length=3)(**{"model": FAKE, "source_ids": SOURCE, **arguments})


def forced(ids, search=GREEDY, name="target_prefix"):
    return search(MODEL, SOURCE, 5, **{name: np.array(ids)})


def shortlist(**change):
    return Shortlist(**{"table": np.full((5, 1), 3), "always": np.arange(7) < 4, **change})


UNPADDED = [[5, 7, 0, 0], [0, 0, 0, 0], [5, 0, 7, 0]]
OUTSIDE = r"has ids from .* ids are 0 to 96"

CONSTRUCTED = [
    (lambda: BeamSearch(0), ValueError, "beam_width"),
    (lambda: BeamSearch(2.0), TypeError, "beam_width"),
    (lambda: BeamSearch(True), TypeError, "beam_width"),
    (lambda: BeamSearch(2, -0.1), ValueError, "length_penalty"),
    (lambda: BeamSearch(2, float("inf")), ValueError, "length_penalty"),
    (lambda: BeamSearch(2, float("nan")), ValueError, "length_penalty"),
    (lambda: BeamSearch(2, "1"), TypeError, "length_penalty"),
    (lambda: BeamSearch(early_stop="never"), TypeError, "early_stop"),
    (lambda: BeamSearch(token_scores=1), TypeError, "token_scores must be True or False"),
    (lambda: BeamSearch(alignments=3), TypeError, "pairs of layer and head.*got 3"),
    (lambda: BeamSearch(alignments=[(0,)]), TypeError, "pairs of layer and head"),
    (lambda: BeamSearch(alignments=[]), ValueError, "no pair of layer and head"),
    (lambda: GreedySearch(min_length=-1), ValueError, "min_length"),
    (lambda: GreedySearch(allow_unknown=1), TypeError, "allow_unknown"),
    (lambda: Sampling(temperature=0.0), ValueError, "temperature"),
    (lambda: Sampling(top_k=-1), ValueError, "top_k"),
    (lambda: Sampling(top_p=0.0), ValueError, "top_p"),
    (lambda: Sampling(top_p=1.1), ValueError, "top_p"),
    (lambda: Sampling(seed=-1), ValueError, "seed"),
    (lambda: Sampling(seed=2**31 - 1), ValueError, "seed"),
    (lambda: Sampling(num_samples=0), ValueError, "num_samples"),
    (lambda: kt.SpeechSearch(1, no_speech=2), ValueError, "no_speech or languages"),
]
CONSTRAINTS = [
    (lambda: kt.NoRepeatNgrams(0), ValueError, "size"),
    (lambda: kt.NoRepeatNgrams(2.0), TypeError, "size"),
    (lambda: kt.RepetitionPenalty(0), ValueError, "penalty"),
    (lambda: kt.ForbiddenWords([[7], []]), ValueError, "at least one token"),
    (lambda: kt.BiasedPrefix(1), ValueError, "strength"),
    (
        lambda: GreedySearch(constraints=[kt.NoRepeatNgrams(2), kt.NoRepeatNgrams(3)]),
        ValueError,
        "NoRepeatNgrams has the input 'no_repeat_ngram_size', which the search or another",
    ),
    (
        lambda: BeamSearch(constraints=[Terms(), Terms()]),
        ValueError,
        "Terms has the input 'terms', which the search or another",
    ),
    (
        lambda: GreedySearch(constraints=["brackets"]),
        TypeError,
        "str has no inputs, .* read, start, step, so it is not a",
    ),
    *(
        (
            lambda make=make: make(constraints=[Terms()]),
            TypeError,
            "Terms need a BeamSearch, but the search is.*Use BeamSearch",
        )
        for make in (GreedySearch, Sampling, lambda **rest: kt.SpeechSearch(no_speech=5, **rest))
    ),
    (
        lambda: kt.TimestampRules(61, 60).read(tf.zeros([1, 3]), {}),
        ValueError,
        "reads_start",
    ),
]
MODELS = [
    *(
        (
            lambda method=method: GreedySearch()(without(method), SOURCE),
            TypeError,
            f"Unfinished has no {method}, so it cannot be searched",
        )
        for method in ("encode", "initial_cache", "decode_step")
    ),
    (lambda: sampled(model="a model"), TypeError, "str has no .*decode_step.*Transformer"),
    (
        lambda: GreedySearch()(Mapped(11), SOURCE),
        TypeError,
        "initial_cache of Mapped returned dict. Return .*Cache",
    ),
    (
        lambda: GreedySearch(alignments=[(1, 2)])(MODEL, SOURCE),
        ValueError,
        "head 2 of layer 1, but the decoder has 2 layers of 2",
    ),
    (
        lambda: GreedySearch(alignments=True)(LANGUAGE_MODEL, SOURCE),
        ValueError,
        "CausalTransformer has no decoder that attends",
    ),
    (lambda: kt.SpeechSearch(1, no_speech=5)(MODEL, SOURCE, 3), ValueError, "reads_start"),
]
CALLS = [
    (lambda: sampled(source_ids=np.array([5, 6])), ValueError, "source_ids.*rank 2.*batch axis"),
    (lambda: sampled(source_ids=np.array([[5.0]])), TypeError, "source_ids.*float64.*int32"),
    (lambda: sampled(max_length=0), ValueError, "max_length"),
    (lambda: sampled(max_length=2.0), TypeError, "max_length"),
    *(
        (
            lambda search=search, form=form: search(FAKE, SOURCE, form(2)),
            ValueError,
            "max_length 2 is below min_length 3",
        )
        for search, forms in (
            (GreedySearch(min_length=3), (int, np.int64, np.array, tf.constant)),
            (BeamSearch(2, min_length=3), (lambda number: [9, number], np.array)),
        )
        for form in forms
    ),
    *(
        (
            lambda search=search: search(FAKE, SOURCE, 2, min_length=3),
            ValueError,
            "max_length 2 is below min_length 3",
        )
        for search in (GREEDY, BeamSearch(2), Sampling())
    ),
    (lambda: sampled(max_length=np.array([5, 6, 7])), ValueError, "max_length.*the batch size"),
    (lambda: sampled(max_length=np.array([[5, 6]])), ValueError, "max_length must have rank 1"),
    (lambda: sampled(max_length=np.array([5, -2])), ValueError, "max_length must be at least 1"),
    (lambda: sampled(max_length=[5, False]), TypeError, "max_length must be an integer, got False"),
    (lambda: sampled(max_length=[5, {}]), TypeError, "max_length must be an integer, got {}"),
    (lambda: sampled(max_length=[5, tf.constant(-4)]), ValueError, "max_length must be at least 1"),
    (lambda: sampled(max_length=[5, 2.5]), TypeError, "max_length must be an integer, got 2.5"),
    (lambda: sampled(min_length=np.array([-1, 2])), ValueError, "min_length must be at least 0"),
    (lambda: sampled(max_length=tf.constant([-3])), ValueError, "max_length must be at least 1"),
    (lambda: sampled(target_prefix=np.array([5, 6])), ValueError, "target_prefix.*rank 2"),
    (lambda: sampled(target_prefix=np.array([[5]] * 3)), ValueError, "target_prefix.*batch size"),
    (lambda: sampled(target_prefix=np.array([[0.5]] * 2)), TypeError, "target_prefix.*integer"),
    (lambda: sampled(target_prefix=[[5, 6], [0, 6]]), ValueError, "target_prefix.*row 1 has"),
    (lambda: sampled(seed=0.5), TypeError, "seed"),
    (lambda: sampled(own=3), TypeError, "This search has no own. It has max_length"),
    (lambda: forced([[5, 6], [7, -3]]), ValueError, f"target_prefix {OUTSIDE}"),
    (lambda: forced([[5, 6], [V, 0]]), ValueError, f"target_prefix {OUTSIDE}"),
    (lambda: forced([[[5, 6]], [[V, 0]]], TERMS, "terms"), ValueError, f"terms {OUTSIDE}"),
    (lambda: forced([[5, 6]], TERMS, "terms"), ValueError, "terms must have rank 3"),
    (lambda: forced("ab"), TypeError, "target_prefix reads token ids, but text was passed"),
    (
        lambda: GREEDY(MODEL, SOURCE, target_prefix=[[5, 6], [7]]),
        ValueError,
        "target_prefix has rows of 1 to 2 ids. Pad the shorter",
    ),
    (lambda: GREEDY(MODEL, [[5, 6], [7]]), ValueError, "source_ids has rows of 1 to 2 ids"),
    (
        lambda: GreedySearch(constraints=[kt.BiasedPrefix()])(FAKE, SOURCE, 4, prefix_bias=0.3),
        ValueError,
        "prefix_bias has no effect without biased_prefix",
    ),
    *(
        (lambda source=source: GreedySearch()(CAUSAL, source, 3), ValueError, "right, but row 2")
        for source in (np.array(UNPADDED), np.array([*UNPADDED[:2], [0, 0, 5, 7]]))
    ),
    *(
        (
            lambda models=models: GreedySearch()(short_of_positions(models), [[7] * 6], 2),
            ValueError,
            "6 tokens a row, but the encoder has positions for 5",
        )
        for models in (1, 2)
    ),
    *(
        (
            lambda search=search: search(prompted(), [[7] * 6, [7, 0, 0, 0, 0, 0]], 2),
            ValueError,
            "prompt in source_ids has 6 tokens, and at least 1 follow, .* positions for 5",
        )
        for search in (GREEDY, BeamSearch(2), Sampling(seed=1))
    ),
    *(
        (
            lambda search=search, options=options: search(
                prompted(), [[7] * 4, [7, 7, 7, 0]], **options
            ),
            ValueError,
            "has 4 tokens, and at least 3 follow, but the model has positions for 5",
        )
        for search, options in (
            (GREEDY, {"min_length": 3}),
            (GREEDY, {"min_length": [3, 3]}),
            (BeamSearch(2, min_length=3), {"max_length": 9}),
        )
    ),
    *(
        (
            lambda search=search, options=options: search(prompted(), [[7]], **options),
            ValueError,
            "min_length is 6, but the model has positions for 5",
        )
        for search, options in (
            (GREEDY, {"min_length": 6}),
            (GREEDY, {"min_length": np.array([6]), "max_length": 500}),
            (BeamSearch(2, min_length=6), {}),
            (Sampling(seed=1), {"min_length": 6}),
        )
    ),
    (
        lambda: GreedySearch(constraints=kt.NoRepeatNgrams(2)),
        TypeError,
        "a list, but NoRep",
    ),
    (lambda: BeamSearch(2, constraints={1: 2}), TypeError, "must be a list, but dict"),
    *(
        (
            lambda options=options: PENALTY(FAKE, SOURCE, **{"max_length": 4, **options}),
            ValueError,
            "must be (above|at least|from 1)|is below min_length",
        )
        for options in (
            {"beam_width": np.int64(4)},
            {"beam_width": np.array(4)},
            {"beam_width": tf.constant(4)},
            {"min_length": np.int64(4), "max_length": np.int64(2)},
            {"repetition_penalty": 0},
            {"repetition_penalty": -1.0},
        )
    ),
]
SHORTLISTS = [
    (lambda: shortlist(table=np.ones(5)), ValueError, r"takes a table \(V, C\)"),
    (lambda: shortlist(always=np.ones((3, 2))), ValueError, "always and fill"),
    (lambda: shortlist(multiple=0), ValueError, "a multiple above 0"),
    (lambda: shortlist(table=np.full((5, 1), 7)), ValueError, "ids from 0 to 6"),
    (lambda: shortlist(always=np.arange(7) < 3), ValueError, "end token 3 must always be allowed"),
    (lambda: Shortlist.from_pairs([[37]], [[5]], 37), ValueError, "must be from 0 to 36, got"),
    (lambda: Shortlist.from_pairs([[5]], [[-1]], 37), ValueError, "must be from 0 to 36, got"),
    (lambda: Shortlist.from_pairs([[5]], [], 37), ValueError, "shorter"),
    *(
        (
            lambda option=option: Shortlist.from_pairs([[5]], [[5]], 37, **option),
            ValueError,
            "must be at least",
        )
        for option in ({"candidates": 0}, {"rounds": 0}, {"frequent": -1})
    ),
]


@pytest.mark.parametrize(
    "call, error, words", [*CONSTRUCTED, *CONSTRAINTS, *MODELS, *CALLS, *SHORTLISTS]
)
def test_wrong_arguments_are_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: GreedySearch()(CAUSAL, UNPADDED[:2], 3),  # an empty prompt
        lambda: GreedySearch()(FAKE, UNPADDED, 3),  # an encoder reads padding on either side
        lambda: GreedySearch()(short_of_positions(), [[7] * 5], 2),
        lambda: GreedySearch()(short_of_positions(2), [[7] * 5], 2),
        lambda: GreedySearch()(prompted(), [[7] * 5, [7, 0, 0, 0, 0]], 2),
        lambda: GreedySearch()(prompted(), [[7, 7, 7, 7, 7, 0, 0]], 2),
        lambda: GreedySearch(min_length=5)(prompted(), [[7]], 500),
        lambda: GreedySearch(min_length=2)(prompted(), [[7] * 4, [7, 7, 7, 0]]),
        lambda: GreedySearch()(prompted(), [[7] * 4, [7, 7, 7, 0]], min_length=[2, 3]),
    ],
)
def test_near_arguments_are_accepted(call):
    assert np.isfinite(call().scores).all()


def test_other_backends_are_refused(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="TensorFlow backend, but the backend is 'jax'"):
        GreedySearch()(FAKE, SOURCE)
