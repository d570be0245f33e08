"""Words are counted as they are written, whatever pieces they are of."""

import keras
import numpy as np
import pytest

from keras_transformer.layers.word_numbers import WordNumbers
from keras_transformer.text.tokenizer import Tokenizer

LINES = ["the old teacher sees a small house", "two gardeners walk", "unbelievable whiskers"] * 3


def test_each_piece_has_the_number_of_its_word():
    tokenizer = Tokenizer.train(LINES, 300, hard_vocab_limit=False)
    line = "the gardeners see unseen houses"
    ids, spans = tokenizer.encode_with_spans(line)
    assert len(ids) > 5  # some words are of several pieces
    expected = [1 + line[:end].count(" ") for _, end in spans]
    rows = np.array([[*ids, 0, 0], [*reversed(ids), 0, 0]])
    found = np.asarray(WordNumbers(tokenizer.word_starts)(rows))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found[0], [*expected, 0, 0])
    assert found[1].min() == 0 and found[1][: len(ids)].min() == 1


def test_numbers_end_at_the_most():
    ids = np.array([[1, 1, 2, 1, 1]])
    np.testing.assert_array_equal(WordNumbers([0, 1, 0], most=2)(ids), [[1, 2, 2, 2, 2]])


def test_a_model_with_it_is_saved(tmp_path):
    ids = keras.Input((None,), dtype="int32", name="ids")
    model = keras.Model(ids, WordNumbers([0, 1, 0, 1])(ids))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    row = np.array([[1, 2, 3, 0]])
    np.testing.assert_array_equal(again(row), [[1, 1, 2, 0]])


@pytest.mark.parametrize(
    ("starts", "most", "message"),
    [([], 3, "empty"), ([True], 0, "at least 1")],
)
def test_what_cannot_be_is_refused(starts, most, message):
    with pytest.raises(ValueError, match=message):
        WordNumbers(starts, most)
