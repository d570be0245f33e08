"""Grammars: allowed tokens against an enumeration, and searches that follow a grammar.

Shapes: B batch, W hypotheses, S source length, V vocabulary.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.tiers import nightly
from support.bracket_grammar import BracketGrammar
from support.sets.treebank import made_trees
from support.sets.trees import from_brackets, tagged_words, to_brackets
from support.word_numbers import WordNumbers

import keras_transformer as kt
from keras_transformer.export import export_onnx, export_saved_model
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime.session import open_session
from keras_transformer.padding import pad_rows

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
NUMBERED = [*SPECIAL, "▁(S", "▁(NP", "▁)NP", "▁)S", "▁1", "▁2", "▁3", "▁DT", "▁NN"]
PLAIN = [*SPECIAL, "▁(S", "▁(NP", "▁)", "▁XX", "▁YY"]
STARTS = [False] * 4 + [True, True, False]  # of source pieces: piece 6 continues a word
SOURCES = np.array([[4, 6, 5, 3], [5, 3, 0, 0], [3, 0, 0, 0], [4, 4, 4, 3]], "int32")
WORDS = [2, 1, 0, 3]


def spelled(pieces, ids):
    return " ".join(pieces[i].lstrip("▁") for i in ids)


def trees(pieces, words, depth, first=1):
    """Returns the ids of all trees over `words` words with at most `depth` levels."""
    places = {piece.lstrip("▁"): i for i, piece in enumerate(pieces)}
    tags = [i for name, i in places.items() if name in ("DT", "NN", "XX", "YY")]

    def parts(count, first, depth):
        """Yields all ways to fill a bracket with `count` words."""
        if count == 0:
            yield ()
            return
        number = [places[str(first)]] if "1" in places else []
        for tag, rest in itertools.product(tags, list(parts(count - 1, first + 1, depth))):
            yield (*number, tag, *rest)
        for size in range(1, count + 1):
            rests = list(parts(count - size, first + size, depth))
            for inner, rest in itertools.product(list(around(size, first, depth)), rests):
                yield (*inner, *rest)

    def around(count, first, depth):
        for label in ("S", "NP") if depth else ():
            closer = places.get(f"){label}", places.get(")"))
            for part in parts(count, first, depth - 1):
                yield (places[f"({label}"], *part, closer)

    return list(around(words, first, depth))


def followed(grammar, lines, words):
    """Returns the tokens that the grammar allows after each prefix: dict to set."""
    ids = pad_rows([[2, *line] for line in lines])
    known = () if words is None else tf.constant(words)[:, None]
    state = grammar.start(known, len(lines), 1)
    found = {}
    for length in range(ids.shape[1]):
        allowed, state = grammar.allowed(tf.constant(ids[:, length : length + 1]), state, known)
        for line, count, row in zip(lines, words or lines, allowed.numpy()[:, 0], strict=True):
            if length <= len(line):
                found[line[:length], words and count] = set(np.flatnonzero(row))
    return found


def follows(lines, words):
    """Returns the tokens that follow each prefix in the lines."""
    found = {}
    for line, count in zip(lines, words or lines, strict=True):
        for length, following in enumerate((*line, 3)):
            found.setdefault((line[:length], words and count), set()).add(following)
    return found


@pytest.mark.parametrize("pieces", [NUMBERED, PLAIN], ids=["numbers", "plain"])
@pytest.mark.parametrize("words, depth", [(1, 3), (2, 2)])
def test_allowed_tokens_are_the_next_tokens_of_all_trees(pieces, words, depth):
    lines = trees(pieces, words, depth)
    assert len(lines) == len(set(lines)) > 10
    grammar = BracketGrammar(pieces, STARTS, max_depth=depth)
    counts = [words] * len(lines)
    assert followed(grammar, lines, counts) == follows(lines, counts)


@pytest.mark.parametrize("pieces, most", [(NUMBERED, 3), (PLAIN, 6)], ids=["numbers", "plain"])
@pytest.mark.parametrize("counted", [True, False])
def test_every_line_ends_within_max_length(pieces, most, counted):
    longest, depth = 9, 2
    pairs = [
        (line, words)
        for words in range(1, most + 1)
        for line in trees(pieces, words, depth)
        if len(line) < longest
    ]
    lines, words = map(list, zip(*pairs, strict=True))
    grammar = BracketGrammar(pieces, STARTS, max_length=longest, max_depth=depth)
    words = words if counted else None
    assert followed(grammar, lines, words) == follows(lines, words)
    sources = np.array([[4] * count + [3] * (8 - count) for count in range(8)])
    assert grammar.read(sources, {})[:, 0].numpy().tolist() == [*range(most + 1), *[0] * (7 - most)]


def test_words_are_counted_by_their_first_pieces_or_not_at_all():
    grammar = BracketGrammar(NUMBERED, STARTS)
    for source in (SOURCES, {"source_ids": SOURCES}):
        assert grammar.read(source, {}).numpy().tolist() == [[n] for n in WORDS]
    assert grammar.read(np.array([[4, 4, 4, 4]]), {}).numpy() == 0  # there are three numbers
    assert BracketGrammar(NUMBERED).read(SOURCES, {}) == ()
    found = followed(BracketGrammar(NUMBERED), [(4, 8, 11, 9, 11, 10, 12)], None)
    assert found[(4, 8, 11, 9, 11, 10, 12), None] == {7}  # there is no number 4
    expected = {(): {4, 5}, (4,): {4, 5, 7, 8}, (4, 7): {4, 5, 6, 7, 8}, (4, 7, 6): {3}}
    found = followed(BracketGrammar(PLAIN), [(4, 7, 6)], None)
    assert found == {(ids, None): tokens for ids, tokens in expected.items()}


@pytest.mark.full
def test_trees_of_a_treebank_are_allowed():
    lines = [to_brackets(tree, tags=True, numbers=True) for tree in made_trees(100).train]
    tokenizer = kt.Tokenizer.train(
        lines, 400, model_type="word", byte_fallback=False, hard_vocab_limit=False
    )
    grammar = BracketGrammar(tokenizer.pieces, [True])
    for line in lines[:20]:
        ids = tuple(tokenizer.encode(line))
        words = max(int(token) for token in line.split() if token.isdigit())
        found = followed(grammar, [ids], [words])
        assert all(ids[n] in found[ids[:n], words] for n in range(len(ids))), line
        assert found[ids, words] == {3}


def random_model(pieces=NUMBERED, **options):
    model = kt.Transformer(
        len(STARTS),
        1,
        d_model=12,
        num_heads=3,
        d_ff=17,
        dropout=0.0,
        target_vocab_size=len(pieces),
        **options,
    )
    random = np.random.default_rng(5)
    for weight in model.weights:
        weight.assign(weight + random.normal(scale=0.6, size=weight.shape))
    return model


SEARCHES = [kt.GreedySearch(), kt.BeamSearch(5), kt.Sampling(num_samples=3, top_k=4, seed=7)]


def held_to(search, *constraints):
    return type(search)(**search.get_config() | {"constraints": constraints})


@pytest.mark.full("search1-pieces1")
@pytest.mark.parametrize(
    "search, pieces",
    [
        (SEARCHES[1], NUMBERED),
        (SEARCHES[2], PLAIN),
        pytest.param(SEARCHES[0], PLAIN, marks=pytest.mark.full),
        pytest.param(SEARCHES[1], PLAIN, marks=pytest.mark.full),
        pytest.param(SEARCHES[2], NUMBERED, marks=pytest.mark.full),
    ],
)
def test_searches_write_trees_with_the_scores_of_the_model(search, pieces):
    model = random_model(pieces)
    search = held_to(search, BracketGrammar(pieces, STARTS, max_depth=3))
    found = search(model, SOURCES, 61)
    for count, rows, scores in zip(WORDS, found.ids.numpy(), found.scores.numpy(), strict=True):
        lines = [spelled(pieces, ids[: list(ids).index(3)]) for ids in rows[scores > -np.inf]]
        assert lines and all(bool(line) == bool(count) for line in lines)
        assert {len(tagged_words(from_brackets(line))) for line in lines if line} <= {count}
    # Scores are probabilities of the forward pass, without the grammar.
    best, score = found.ids.numpy()[0, 0], found.scores.numpy()[0, 0]
    best = best[best > 0]
    target = np.concatenate([[2], best[:-1]])[None].astype("int32")
    logits = model({"source_ids": SOURCES[:1], "target_ids": target})
    own = tf.nn.log_softmax(logits)[0].numpy()[np.arange(len(best)), best].sum()
    penalty = ((5 + len(best)) / 6) ** getattr(search, "length_penalty", 0.0)
    np.testing.assert_allclose(score, own / penalty, rtol=1e-5)
    # Results do not depend on the rest of the batch, samples included.
    alone = search(model, SOURCES[1:2, :2], 61).ids.numpy()[0, 0]
    np.testing.assert_array_equal(alone, found.ids.numpy()[1, 0, : len(alone)])


@pytest.mark.full
def test_greedy_takes_the_likeliest_allowed_token():
    model, grammar = random_model(), BracketGrammar(NUMBERED, STARTS, max_depth=3)
    search = kt.GreedySearch(constraints=[grammar])
    found = search(model, SOURCES[:1], 61).ids.numpy()[0, 0]
    ids = []
    while ids[-1:] != [3]:
        inputs = {"source_ids": SOURCES[:1], "target_ids": np.array([[2, *ids]], "int32")}
        logits = np.array(model(inputs)[0, -1])
        allowed = followed(grammar, [tuple(ids)], WORDS[:1])[tuple(ids), WORDS[0]]
        ids.append(max(allowed, key=lambda token: logits[token]))
    assert ids == found[found > 0].tolist()
    free = kt.GreedySearch()(model, SOURCES[:1], 61).ids.numpy()[0, 0]
    assert ids != free[free > 0].tolist()  # the grammar did forbid tokens


@pytest.mark.full
def test_given_tokens_must_follow_the_grammar():
    model, grammar = random_model(), BracketGrammar(NUMBERED, STARTS)
    prefix = np.array([[5, 4], [8, 0]], "int32")  # "(NP (S", and "1", which opens no bracket
    for search in (kt.GreedySearch(), kt.BeamSearch(2)):
        search = held_to(search, grammar)
        result = search(model, SOURCES[:2], 31, target_prefix=prefix)
        assert result.ids.numpy()[0, 0, :2].tolist() == [5, 4]
        assert result.scores.numpy()[0, 0] > -np.inf == result.scores.numpy()[1, 0]
        assert not result.ids.numpy()[1].any()


def test_a_shortlist_and_a_grammar_go_together():
    model = random_model()
    table = np.full((len(STARTS), 1), 4)  # only "(S" may be opened
    shortlist = kt.Shortlist(table, np.isin(np.arange(len(NUMBERED)), [3, 7, 8, 9, 10, 12]))
    grammar = BracketGrammar(NUMBERED, STARTS, max_depth=2)
    search = kt.BeamSearch(3, constraints=[grammar])
    for ids in search(kt.Shortlisted(model, shortlist), SOURCES[:1], 31).ids.numpy()[0]:
        line = spelled(NUMBERED, ids[ids > 3])
        assert len(tagged_words(from_brackets(line))) == 2
        assert not {"(NP", "DT"} & set(line.split())


@pytest.mark.full
@pytest.mark.parametrize("search", [SEARCHES[1], nightly(SEARCHES[2])])
def test_artefacts_follow_grammars(tmp_path, search):
    model = random_model()
    search = held_to(search, BracketGrammar(NUMBERED, STARTS, max_depth=3))
    options = dict(max_length=41, samples=[SOURCES], verbose=False)
    export_onnx(model, tmp_path / "onnx", None, search, **options)
    session = open_session(read_artefact(tmp_path / "onnx"), threads=1)
    seed = {"seed": np.array(11, np.int32)} if isinstance(search, kt.Sampling) else {}
    ids, scores = session.run(["token_ids", "scores"], {"source_ids": SOURCES, **seed})
    expected = search(model, SOURCES, 41, **seed)
    np.testing.assert_array_equal(ids, expected.ids)
    np.testing.assert_allclose(scores, expected.scores, rtol=1e-5)
    if seed:
        export_saved_model(model, tmp_path / "saved", None, search, **options)
        loaded = tf.saved_model.load(tmp_path / "saved").signatures["search"]
        found = loaded(source_ids=tf.constant(SOURCES), seed=tf.constant(11))
        np.testing.assert_array_equal(found["token_ids"], expected.ids)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="vocabulary of 13 ids, but the constraint has 9"):
        kt.GreedySearch(constraints=[BracketGrammar(PLAIN)])(random_model(), SOURCES, 5)


@pytest.mark.parametrize("saved", [False, True])
def test_pieces_get_the_number_of_their_word(tmp_path, saved):
    starts = [0, 0, 0, 0, 1, 1, 0]  # piece 6 continues a word
    ids = keras.Input((None,), dtype="int32", name="ids")
    model = keras.Model(ids, WordNumbers(starts, most=3)(ids))
    if saved:
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    found = np.asarray(model(np.array([[4, 6, 5, 0], [6, 4, 6, 5], [4, 5, 4, 5]])))
    expected = np.int32([[1, 1, 2, 0], [1, 1, 1, 2], [1, 2, 3, 3]])
    np.testing.assert_array_equal(found, expected, strict=True)
