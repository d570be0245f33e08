"""Shortlists: candidates, and searches that equal a search with all other words forbidden.

Shapes: B batch, S source length, V vocabulary, C candidates of a source token.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from helpers import exports
from helpers.tiers import full

import keras_transformer as kt
from keras_transformer.export import export_onnx
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime.session import open_session
from keras_transformer.search import Shortlist, Shortlisted

V, TARGET_V, LENGTH = 37, 41, 11
SOURCE = np.array([[5, 7, 11, 13, 3], [17, 19, 3, 0, 0], [22, 4, 28, 3, 0]], "int32")


def random_model(**options):
    model = kt.Transformer(V, 1, d_model=12, num_heads=3, d_ff=17, dropout=0.0, **options)
    random = np.random.default_rng(5)
    for weight in model.weights:
        weight.assign(weight + random.normal(scale=0.4, size=weight.shape))
    return model


def random_shortlist(size=V, **options):
    random = np.random.default_rng(3)
    return Shortlist(random.integers(3, size, (V, 2)), np.arange(size) < 5, **options)


class Masked:
    """A model that computes all logits and forbids all but the candidates."""

    def __init__(self, model, shortlist):
        self.model, self.shortlist = model, shortlist
        self.max_length, self.start_ids = model.max_length, model.start_ids
        self.initial_cache = model.initial_cache

    def encode(self, source_ids):
        return self.model.encode(source_ids), self.shortlist.chosen(source_ids)

    def decode_step(self, ids, position, memory, cache):
        logits, cache = self.model.decode_step(ids, position, memory[0], cache)
        return logits - 1e4 * (1.0 - memory[1][:, None]), cache


def test_candidates_come_from_the_table_and_the_lowest_ids_fill_up():
    table = np.full((7, 2), 3)
    table[5], table[6] = [8, 3], [9, 6]
    always, ids = np.arange(11) < 4, np.array([[5, 3, 0], [5, 6, 3]], "int32")
    plain = Shortlist(table, always)
    filled = Shortlist(table, always, multiple=4, fill=np.arange(11) > 4)
    listed = np.array([[10, 11], [-2, 4]], "int32")  # two are outside the vocabulary
    more = plain.chosen(ids, [listed])
    found = [np.asarray(x) > 0 for x in (plain.candidates(ids), filled.candidates(ids), more)]
    assert [[row.nonzero()[0].tolist() for row in rows] for rows in found] == [
        [[0, 1, 2, 3, 8], [0, 1, 2, 3, 6, 8, 9]],
        [[0, 1, 2, 3, 5, 6, 7, 8], [0, 1, 2, 3, 5, 6, 8, 9]],
        [[0, 1, 2, 3, 8, 10], [0, 1, 2, 3, 4, 6, 8, 9]],
    ]


def test_from_pairs_finds_the_translations_of_each_token():
    random = np.random.default_rng(2)
    sources = [random.integers(4, V, random.integers(1, 9)).tolist() for _ in range(300)]
    own = np.arange(TARGET_V)
    own[4:V] = random.permutation(np.arange(4, V))  # the translation of each id
    targets = [random.permutation(own[row]).tolist() + [40] for row in sources]
    found = Shortlist.from_pairs(sources, targets, V, TARGET_V, candidates=2, frequent=1)
    assert (found.table[:4] == 3).all() and found.table.shape == (V, 2)
    assert (found.table[4:] == own[4:V, None]).any(axis=1).all()
    assert found.always.nonzero()[0].tolist() == [0, 1, 2, 3, 40]
    empty = Shortlist.from_pairs([[]], [[5]], V, frequent=0)
    assert (empty.table == 3).all() and empty.always.sum() == 4


OWN = {"target_vocab_size": TARGET_V, "tie_output": False, "output_bias": True}
PREFIXES = np.array([[4, 4], [4, 0], [0, 0]]), np.array([[4], [0], [4]])
DRAWN = kt.Sampling(temperature=2.0, top_k=3, seed=7, num_samples=2)


@pytest.mark.full
@pytest.mark.parametrize(
    "options, size, filled, search, prefix",
    [
        (OWN, TARGET_V, {"multiple": 4}, kt.BeamSearch(3), None),
        full({}, V, {}, DRAWN, None),
        full({}, V, {"multiple": 4}, kt.GreedySearch(), None),
        full({"recurrent_decoder": True}, V, {"multiple": 4}, kt.BeamSearch(2), None),
        full({}, V, {}, kt.BeamSearch(3), PREFIXES[0]),
        full({}, V, {}, kt.GreedySearch(), PREFIXES[1]),
        full({}, V, {}, kt.BeamSearch(26), None),
        full({}, V, {}, kt.BeamSearch(35), None),
    ],
    ids=[
        *("a matrix and a bias of the logits' own", "sampling", "one matrix", "recurrent"),
        *("beam, prefix", "greedy, prefix", "more extensions than candidates"),
        "more than ids that are always listed",
    ],
)
def test_searches_equal_forbidding_all_other_words(options, size, filled, search, prefix):
    model, shortlist = random_model(**options), random_shortlist(size, **filled)
    found, expected = (
        search(searched, SOURCE, LENGTH, target_prefix=prefix)
        for searched in (Shortlisted(model, shortlist), Masked(model, shortlist))
    )
    np.testing.assert_array_equal(found.ids[:, :3], expected.ids[:, :3])
    np.testing.assert_allclose(found.scores[:, :3], expected.scores[:, :3], atol=1e-4)
    if search.width > 3 or prefix is not None:
        return  # the vocabulary has too few likely hypotheses, or other words are given
    for row, ids in zip(shortlist.candidates(SOURCE), found.ids.numpy(), strict=True):
        assert row[np.unique(ids[ids > 0])].all()
    free = search(model, SOURCE, LENGTH).ids.numpy()
    assert free.shape != found.ids.shape or (free != found.ids.numpy()).any()
    alone = search(Shortlisted(model, shortlist), SOURCE[1:2, :3], LENGTH).ids.numpy()
    np.testing.assert_array_equal(alone[0], found.ids.numpy()[1, :, : alone.shape[2]])


TERMS = np.array([[[36, 32], [22, 0]], [[33, 0], [0, 0]], [[0, 0], [0, 0]]], "int32")
RULES = [kt.RepetitionPenalty(1.3), kt.NoRepeatNgrams(2), kt.ForbiddenWords([[7], [4, 9]])]
RULES += [kt.BiasedPrefix(0.4)]


@pytest.mark.full("beam", "terms")
@pytest.mark.parametrize(
    "search",
    [kt.GreedySearch(min_length=4), kt.BeamSearch(4), kt.BeamSearch(4, constraints=[kt.Terms()])],
    ids=["greedy", "beam", "terms"],
)
def test_the_loop_ranks_the_candidates_only(search):
    model = Shortlisted(random_model(), random_shortlist())
    given = {"target_prefix": SOURCE[:, :1]}
    if search.constraints:
        given["terms"] = SOURCE[:, None, :2]
    function = tf.function(lambda ids: search(model, ids, LENGTH, **given), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([None, None], tf.int32)).graph
    bodies = [{node.op for node in body.node_def} for body in graph.as_graph_def().library.function]
    steps = [operations for operations in bodies if "LogSoftmax" in operations]
    assert steps and all("TensorScatterUpdate" not in operations for operations in steps)


class AnyLogits(kt.search.Constraint):
    """Changes nothing, but requires the logits of the whole vocabulary."""

    def step(self, logits, past, state, known):
        assert logits.shape[-1] == V
        return logits, state


@pytest.mark.full
@pytest.mark.parametrize(
    "search, more",
    [
        (kt.BeamSearch(6), [kt.Terms()]),
        (kt.BeamSearch(3), []),
        (kt.GreedySearch(), []),
        (kt.Sampling(seed=5, num_samples=2), []),
    ],
    ids=["terms", "beam", "greedy", "sampling"],
)
def test_rules_give_the_same_for_candidates_and_for_the_whole_vocabulary(search, more):
    model = Shortlisted(random_model(), random_shortlist(multiple=4))
    given = {
        "forbidden_words": np.array([[[4], [31]]]),
        "biased_prefix": np.array([[36, 4], [35, 0], [0, 0]]),
        "target_prefix": np.array([[0, 0], [0, 0], [30, 33]]),
        **({"terms": TERMS} if more else {}),
    }
    few, all_logits = (
        dataclasses.replace(search, constraints=[*more, *rules])(model, SOURCE, LENGTH, **given)
        for rules in (RULES, [AnyLogits(), *RULES])
    )
    np.testing.assert_array_equal(few.ids, all_logits.ids)
    np.testing.assert_allclose(few.scores, all_logits.scores, rtol=1e-5)
    assert (few.scores.numpy()[:, 0] > -99).all()  # given tokens are candidates


@pytest.mark.full
@pytest.mark.parametrize("sizes", [{}, {"target_vocab_size": exports.VOCAB}])
def test_lines_are_translated_with_the_tokenizers_of_the_model(sizes):
    tokenizer = exports.tokenizer()
    model = exports.tiny(num_layers=1, **sizes)
    every = Shortlist(np.full((exports.VOCAB, 1), 3), np.ones(exports.VOCAB, bool))
    given = {"target_tokenizer": tokenizer} if sizes else {}
    found, expected = (
        kt.translate(kt.GreedySearch(), searched, tokenizer, exports.LINES, **given)
        for searched in (Shortlisted(model, every), model)
    )
    assert found == expected


class Tagged(kt.Transformer):
    """Starts with the begin token and token 7."""

    def start_ids(self, source_ids):
        return np.tile([[2, 7]], [len(SOURCE), 1])


class Wrapped:
    """Makes one word likelier and delegates everything else."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def decode_step(self, *arguments):
        logits, cache = self.model.decode_step(*arguments)
        return logits + 9.0 * tf.one_hot(4, V), cache


@pytest.mark.full
def test_overridden_methods_of_models_are_used():
    shortlist, search = random_shortlist(), kt.GreedySearch()
    tagged = Tagged(V, 1, d_model=12, num_heads=3, d_ff=17, dropout=0.0)
    plain = search(Shortlisted(random_model(), shortlist), SOURCE, LENGTH).ids.numpy()
    found = search(Wrapped(Shortlisted(random_model(), shortlist)), SOURCE, LENGTH).ids.numpy()
    assert (found == 4).sum() > (plain == 4).sum()
    found = search(Shortlisted(tagged, shortlist), SOURCE, LENGTH)
    np.testing.assert_array_equal(found.ids, search(Masked(tagged, shortlist), SOURCE, LENGTH).ids)


@pytest.mark.full
@pytest.mark.parametrize("shortlist", [full(None), random_shortlist()], ids=["none", "some"])
def test_a_search_uses_weights_that_are_enabled_later(shortlist):
    plain = random_model()
    model = Shortlisted(plain, shortlist) if shortlist else plain
    search = kt.GreedySearch()
    before = search(model, SOURCE, max_length=5).scores
    plain.enable_lora(2)
    for weight in plain.trainable_weights:
        weight.assign(weight + 1.0)
    found, expected = (
        one(model, SOURCE, max_length=5).scores for one in (search, kt.GreedySearch())
    )
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found - before).min() > 1e-3


def test_logits_convert_to_a_tensor_of_the_whole_vocabulary():
    short = Shortlisted(random_model(), Shortlist(np.full((V, 1), 36), np.arange(V) == 3))
    cache, ids = short.initial_cache(3, 1), np.full((3, 1), 2, "int32")
    (logits, _), (expected, _) = (
        model.decode_step(ids, tf.constant(0), model.encode(SOURCE), cache)
        for model in (short, short.model)
    )
    assert logits.ids.numpy().tolist() == [*range(32), 36]  # the special ids keep their columns
    found = tf.cast(logits, tf.float32).numpy()
    assert found.shape == (3, 1, V) and (np.delete(found, [3, 36], axis=-1) < -9e3).all()
    np.testing.assert_allclose(found[..., [3, 36]], expected.numpy()[..., [3, 36]], atol=1e-5)


@pytest.mark.full
def test_an_artefact_equals_the_search(tmp_path):
    model, shortlist = random_model(), random_shortlist(multiple=8)
    search = kt.BeamSearch(2, constraints=[kt.Terms(), *RULES])
    export_onnx(
        model,
        tmp_path / "out",
        None,
        search,
        shortlist=shortlist,
        max_length=LENGTH,
        options=("target_prefix",),
        samples=[SOURCE, SOURCE[:1]],
        verbose=False,
    )
    session = open_session(read_artefact(tmp_path / "out"), threads=1)
    for given in ({}, {"terms": TERMS, "target_prefix": np.array([[34]], "int32")}):
        ids, scores = session.run(["token_ids", "scores"], {"source_ids": SOURCE, **given})
        expected = search(Shortlisted(model, shortlist), SOURCE, LENGTH, **given)
        np.testing.assert_array_equal(ids, expected.ids)
        np.testing.assert_allclose(scores, expected.scores, atol=1e-4)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"shortlist": "lex.bin"}, TypeError, "must be a Shortlist, but str"),
        (
            {"make": lambda: kt.CausalTransformer(V, 1, d_model=12, num_heads=3, d_ff=17)},
            ValueError,
            "CausalTransformer",
        ),
        ({"layout": "steps"}, TypeError, "steps of fixed shapes"),
        ({"shortlist": random_shortlist(43)}, ValueError, r"\[37, 43\] ids of source"),
        ({"search": None}, ValueError, "and a search, or leave it out"),
    ],
)
def test_exports_that_cannot_have_a_shortlist_are_refused(change, error, message, tmp_path):
    options = {"search": kt.GreedySearch(), "shortlist": random_shortlist(), **change}
    make = options.pop("make", random_model)
    with pytest.raises(error, match=message):
        export_onnx(make(), tmp_path / "out", **options)
    assert not any(tmp_path.iterdir())
