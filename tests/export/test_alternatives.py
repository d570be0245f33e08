"""`Translator.alternatives` against a forward pass and Keras' own search."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from helpers import exports

import keras_transformer as kt
from keras_transformer.export.runtime import Translator
from keras_transformer.export.runtime.hypotheses import find_alternatives

SEARCH = exports.DETAILED
LINE = "a man 's hat"


@pytest.fixture(scope="module")
def translator():
    return Translator(exports.artefact(SEARCH))


@pytest.mark.full
@pytest.mark.parametrize("prefix", ["", "the dog", "the dog "])
def test_the_likeliest_next_tokens_are_completed_by_the_search(translator, prefix):
    model, tokenizer = exports.shared_model(), exports.tokenizer()
    source = np.array([[*tokenizer.encode(LINE), 3]], "int32")
    ids = tokenizer.encode(prefix.rstrip())
    logits = model({"source_ids": source, "target_ids": np.array([[2, *ids]])})[0, -1]
    log_probs = tf.nn.log_softmax(logits).numpy()
    log_probs[[0, 2]] = -np.inf
    tokens = np.argsort(-log_probs)[:3]
    if prefix.endswith(" "):
        tokens = [i for i in tokens if tokenizer.word_starts[i] or i == 3]
    found = translator.alternatives(LINE, prefix)
    assert len(found) == len(tokens)
    np.testing.assert_allclose([each.score for each in found], log_probs[tokens], atol=1e-5)
    for token, each in zip(tokens, found, strict=True):
        given = np.array([[*ids, token]], "int32")
        best = SEARCH(model, source, exports.MAX_LENGTH, target_prefix=given)
        assert each.text == tokenizer.decode(best.ids[0, 0].numpy())
        assert each.text_score == pytest.approx(float(best.scores[0, 0]), abs=1e-5)
        piece = tokenizer.decode([int(token)])
        assert piece in each.word or "\ufffd" in piece
        assert each.word in each.text
    assert translator.alternatives(LINE, prefix, count=2) == found[:2]


def test_a_word_is_whole_if_the_next_token_continues_the_prefix(translator):
    found = translator.alternatives(LINE, "the do")
    assert found
    for each in found:
        rest = each.text.removeprefix("the ").split(" ")[0]
        assert each.word in ("", rest) or each.text.split(" ")[2] == each.word


def test_words_that_begin_with_the_same_space_token_are_distinguished():
    likely = {"two small dogs": 0.5, "two red dogs": 0.3, "two green dogs": 0.2}
    tokenizer = kt.Tokenizer.train(list(likely), 280, hard_vocab_limit=False)
    texts = {(*tokenizer.encode(text), 3): value for text, value in likely.items()}
    begins = {ids[len(tokenizer.encode("two"))] for ids in texts}
    assert len(begins) == 1 and tokenizer.decode(list(begins)) == ""  # only the space

    def search(prefixes, max_length=(), length_penalty=None):
        """Returns three likeliest texts, or their beginnings, for each prefix."""
        found, scores = (
            np.zeros((len(prefixes), 3, 40), np.int32),
            np.full((len(prefixes), 3), -np.inf),
        )
        for row, prefix in enumerate(prefixes):
            length = max_length[row] if len(max_length) else 40
            sums = collections.Counter()
            for ids, value in texts.items():
                if list(ids[: min(len(prefix), length)]) == prefix[:length]:
                    sums[ids[:length]] += value
            for place, (ids, value) in enumerate(sums.most_common(3)):
                found[row, place, : len(ids)], scores[row, place] = ids, np.log(value)
        return found, scores

    found = find_alternatives(search, tokenizer, "two ", 3)
    assert [(each.word, each.text) for each in found] == [
        ("small", "two small dogs"),
        ("red", "two red dogs"),
        ("green", "two green dogs"),
    ]
    np.testing.assert_allclose([each.score for each in found], np.log([0.5, 0.3, 0.2]), atol=1e-6)
    assert find_alternatives(search, tokenizer, "two ", 1) == found[:1]


def test_a_blank_line_has_no_alternatives(translator):
    assert translator.alternatives(" ") == []


def test_a_prefix_that_nothing_continues_is_refused():
    tokenizer = kt.Tokenizer.train(["a b"], 280, hard_vocab_limit=False)

    def search(prefixes, max_length=(), length_penalty=None):
        """Returns no hypothesis, or as many tokens as the prefix, which is all that fits."""
        count, length = len(prefixes), len(prefixes[0])
        scores = np.full((count, 3), -np.inf if nothing else 0.0)
        return np.zeros((count, 3, 0 if nothing else length), np.int32), scores

    nothing = True
    with pytest.raises(ValueError, match="allows no text with the prefix 'a b'"):
        find_alternatives(search, tokenizer, "a b", 3)
    nothing = False
    with pytest.raises(ValueError, match="prefix has .* tokens, but the search writes fewer than"):
        find_alternatives(search, tokenizer, "a b", 3)


def other(*arguments, **options):
    return Translator(exports.artefact(*arguments, **options)).alternatives


@pytest.mark.parametrize(
    "function, arguments, error, told",
    [
        (None, (LINE, "", 4), ValueError, "from 1 to 3, the beam width, got 4"),
        (None, (b"\xff",), ValueError, "not UTF-8"),
        (None, (LINE, 7), TypeError, "target_prefix"),
        (None, (LINE, "a dog " * exports.MAX_LENGTH), ValueError, "the search writes fewer than"),
        (lambda: other(), (LINE,), ValueError, "target_prefix"),
        (lambda: other(exports.GREEDY, layout="steps"), (LINE,), ValueError, "has a GreedySearch"),
    ],
)
def test_wrong_arguments_and_artefacts_are_refused(translator, function, arguments, error, told):
    alternatives = function() if function else translator.alternatives
    with pytest.raises(error, match=told):
        alternatives(*arguments)
