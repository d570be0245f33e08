"""Terms in a beam search, against an enumeration of all hypotheses.

Shapes: B batch, W beam width, T generated length, V vocabulary, N terms, L tokens of a term.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from helpers import exports
from helpers.fake_model import END, ByPosition, FakeModel

import keras_transformer as kt
from keras_transformer.padding import pad_rows
from keras_transformer.search import BeamSearch, Terms

V, LIMIT = 9, 5
WORDS = [1, *range(4, V)]
SEARCH = BeamSearch(8, 0.6, constraints=[Terms()])


def holds(terms, ids):
    """Returns whether each row of ids (n, T) contains all terms, which are padded."""
    texts = [" ".join(map(str, [0, *row, 0])) for row in ids]
    words = [" ".join(map(str, ["", *term[term > 0], ""])) for term in terms if term[0]]
    return np.array([all(word in text for word in words) for text in texts])


def with_weights(model, seed, scale):
    random = np.random.default_rng(seed)
    for weight in model.weights:
        center = 1.0 if weight.path.endswith("gamma") else 0.0
        weight.assign(random.normal(center, scale, size=weight.shape))


class AllHypotheses:
    """All hypotheses of at most `LIMIT` tokens."""

    def __init__(self, model):
        prefixes = np.array(list(itertools.product(WORDS, repeat=LIMIT - 1)))
        self.fed = np.insert(prefixes, 0, 2, axis=1).astype("int32")  # (n, T)
        self.words = prefixes
        self.forward = tf.function(lambda inputs: tf.nn.log_softmax(model(inputs)))

    def __call__(self, source, alpha):
        """Returns ids (n, T) and scores (n,) of all hypotheses of a source (S,)."""
        sources = np.repeat(source[None], len(self.fed), axis=0)
        log_probs = self.forward({"source_ids": sources, "target_ids": self.fed}).numpy()
        chosen = np.take_along_axis(log_probs[:, :-1], self.words[..., None], axis=2)[..., 0]
        sums = np.pad(np.cumsum(chosen, axis=1), [(0, 0), (1, 0)])
        ids, scores = [], []
        for length in range(LIMIT):
            rows = slice(None, None, len(WORDS) ** (LIMIT - 1 - length))  # one per prefix
            start = self.words[rows, :length]
            for token in [END] if length < LIMIT - 1 else [END, *WORDS]:
                ends = np.insert(start, length, token, axis=1)
                ids.append(np.pad(ends, [(0, 0), (0, LIMIT - 1 - length)]))
                total = sums[rows, length] + log_probs[rows, length, token]
                scores.append(total / ((6 + length) / 6) ** alpha)
        return np.concatenate(ids), np.concatenate(scores)


def random_terms(random):
    """Returns one or two padded terms (2, 3) that fit before the end of a hypothesis."""
    while True:
        sizes = random.integers(1, 4, size=2) * [1, random.integers(0, 2)]
        if sizes.sum() < LIMIT:
            terms = random.integers(4, V, size=(2, 3))
            return terms * (np.arange(3) < sizes[:, None])


@pytest.mark.full
@pytest.mark.parametrize("models", [4, pytest.param(50, marks=pytest.mark.full)])
def test_the_best_hypothesis_with_all_terms_is_found(models):
    random = np.random.default_rng(0)
    model = kt.Transformer(
        V, num_layers=1, d_model=12, num_heads=2, d_ff=17, tie_output=False, output_bias=True
    )
    everything, found = AllHypotheses(model), []
    for seed in range(models):
        with_weights(model, seed, scale=random.choice([0.4, 0.7]))
        source = random.integers(4, V, size=(10, 4)).astype("int32")
        terms = np.array([random_terms(random) for _ in source])
        result = SEARCH(model, source, LIMIT, terms=terms)
        ids, scores = result.ids.numpy(), result.scores.numpy()
        for row in range(10):
            exists = scores[row] > -np.inf
            assert exists[0] and holds(terms[row], ids[row, exists]).all()
            all_ids, all_scores = everything(source[row], 0.6)
            best = all_scores[holds(terms[row], all_ids)].max()
            assert scores[row, 0] < best + 1e-4
            found.append(scores[row, 0] > best - 1e-4)
    assert np.mean(found) >= 0.95


@pytest.mark.full
@pytest.mark.parametrize("early_stop", [True, pytest.param(False, marks=pytest.mark.full)])
def test_without_terms_the_search_equals_a_free_one(early_stop):
    model = FakeModel(11, end_bias=1.0)
    source = np.random.default_rng(3).integers(4, 11, size=(13, 5)).astype("int32")
    limits = 3 + np.arange(13, dtype="int32") % 7
    free, rules = BeamSearch(3, 0.7, early_stop=early_stop, min_length=2), [Terms()]
    search = BeamSearch.from_config({**free.get_config(), "constraints": rules})
    expected = free(model, source, limits)
    some, length = np.zeros([13, 2, 3], int), expected.ids.shape[2]
    some[[2, 7], 0, :2] = [[6, 9], [9, 9]]
    for terms in (None, np.zeros([1, 0, 0], int), 0 * some, some):
        found = search(model, source, limits, terms=terms)
        rows = np.setdiff1d(np.arange(13), [2, 7] if terms is some else [])
        for ours, theirs in (
            (found.ids[..., :length], expected.ids),
            (found.scores, expected.scores),
        ):
            np.testing.assert_array_equal(ours.numpy()[rows], theirs.numpy()[rows])
    assert all(holds(some[row], found.ids.numpy()[row]).all() for row in (2, 7))


LOGITS = np.full([6, 6], -30.0, "float32")  # pad, unknown, begin, end, term, other word
LOGITS[0, 4:] = -1, 0
LOGITS[1, 3:] = 0, -1.2, 0
LOGITS[2, 3:] = 0, -20, -0.5
LOGITS[3, 4] = LOGITS[4, 3] = 0


def test_without_early_stop_the_bound_is_that_of_the_best_bank():
    """At the third token two texts have finished, and 4 5 5 cannot beat them. 5 5 5 still can."""
    search = BeamSearch(2, 0.0, early_stop=False, constraints=[Terms()])
    found = search(ByPosition(LOGITS), [[5]], 5, terms=[[[4]]])
    np.testing.assert_array_equal(found.ids[0], [[5, 5, 5, 4, 3], [4, 3, 0, 0, 0]])
    early = BeamSearch(2, 0.0, constraints=[Terms()])(ByPosition(LOGITS), [[5]], 5, terms=[[[4]]])
    np.testing.assert_array_equal(early.ids[0], [[4, 3, 0], [4, 5, 3]])


def test_a_sentence_depends_neither_on_its_batch_nor_on_padding():
    model = FakeModel(11, end_bias=1.0)
    random = np.random.default_rng(4)
    source = random.integers(4, 11, size=(6, 5)).astype("int32")
    terms = random.integers(4, 11, size=(6, 2, 3)) * (
        np.arange(3) < random.integers(0, 4, (6, 2, 1))
    )
    together = SEARCH(model, source, 11, terms=terms)
    for row in range(6):
        for padding in (0, 4):
            padded = np.pad(terms[row : row + 1], [(0, 0), (0, padding), (0, padding)])
            alone = SEARCH(model, source[row : row + 1], 11, terms=padded)
            length = alone.ids.shape[2]
            np.testing.assert_array_equal(alone.ids[0], together.ids[row, :, :length])
            np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-5)
            assert holds(terms[row], alone.ids[0].numpy()).all()


class Writer(FakeModel):
    """A model that prefers the texts of a table, one for each source."""

    def __init__(self, texts):
        super().__init__(11)
        self.texts = pad_rows([[*text, *[END] * 9] for text in texts])

    def encode(self, source_ids):
        return tf.gather(self.texts, source_ids[:, 0])

    def decode_step(self, ids, position, memory, cache):
        tokens = memory[:, position, tf.newaxis]  # (B, 1)
        return 9.0 * tf.one_hot(tokens + 0 * ids, 11), cache


FOLLOWED = [
    ([5, 5, 5, 6, 7], [[5, 5, 6]]),  # after the third 5, two tokens still match
    ([5, 6, 5, 6, 5, 7], [[5, 6, 5, 7]]),
    ([4, 5, 6, 7, 8], [[5, 6, 7], [6, 7, 8]]),  # they overlap
    ([4, 5, 6, 7], [[5, 6], [6], [5, 6, 7], [6]]),  # parts of others, and the same twice
    ([5, 6, 8, 5, 6, 7], [[5, 6, 7]]),  # broken off, and started again
    ([5, 8], [[8], [5]]),
]


def test_terms_are_matched_anywhere_in_a_text():
    texts, terms = zip(*FOLLOWED, strict=True)
    terms = np.stack([pad_rows([*rows, [0] * 4, [], [], []])[:4] for rows in terms])
    ids = SEARCH(Writer(texts), np.arange(6)[:, None], 13, terms=terms).ids.numpy()
    for found, text in zip(ids[:, 0], texts, strict=True):
        assert found[found > 0].tolist() == [*text, END]


@pytest.mark.full
def test_terms_in_a_prefix_count_but_not_in_a_prompt():
    model = exports.tiny("generate", vocab_size=23)
    terms = np.array([[[7, 11]]])
    prompts = np.array([[2, 7, 11], [2, 7, 0]], "int32")
    ids = SEARCH(model, prompts, 6, terms=terms).ids.numpy()
    assert holds(terms[0], ids.reshape(16, -1)).all()
    prefix = np.array([[5, 7, 11], [5, 7, 0]])
    found = SEARCH(model, prompts, 6, terms=terms, target_prefix=prefix)
    free = BeamSearch(8, 0.6)(model, prompts, 6, target_prefix=prefix)
    np.testing.assert_array_equal(found.ids[0], free.ids[0])
    assert holds(terms[0], found.ids[1].numpy()).all()


def test_terms_that_do_not_fit_have_no_hypothesis():
    source = np.array([[4, 5], [6, 7], [8, 9], [4, 4], [5, 5]], "int32")
    terms = np.array(
        [[[5, 6], [7, 8]], [[5, 6], [7, 0]], [[0, 0]] * 2, [[4, END]] * 2, [[2, 0]] * 2]
    )
    result = SEARCH(FakeModel(11), source, 3, terms=terms)
    assert (result.scores[:, 0].numpy() > -np.inf).tolist() == [False, True, True, False, False]
    assert not result.ids.numpy()[[0, 3, 4]].any()
    assert holds(terms[1], result.ids[1].numpy()[result.scores[1].numpy() > -np.inf]).all()
    forbidden = BeamSearch(3, constraints=[Terms(), kt.ForbiddenWords([[7]])])
    result = forbidden(FakeModel(11), source[:1], 5, terms=np.array([[[7]]]))
    assert (result.scores.numpy() == -np.inf).all()


@pytest.mark.full
def test_options_of_a_call_and_token_scores_work_with_terms():
    model = exports.tiny(vocab_size=23)
    source = exports.source(rows=4, length=5, vocab_size=23)
    terms = np.array([[[7, 11], [13, 0]]])
    search = BeamSearch(6, 0.0, token_scores=True, constraints=[kt.NoRepeatNgrams(2), Terms()])
    narrow = search(model, source, 9, terms=terms, beam_width=3)
    assert (narrow.scores.numpy()[:, 3:] == -np.inf).all()
    assert holds(terms[0], narrow.ids.numpy()[:, 0]).all()
    result = search(model, source, 9, terms=terms)
    np.testing.assert_allclose(tf.reduce_sum(result.token_scores, 2), result.scores, rtol=1e-5)
