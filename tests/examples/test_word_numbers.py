"""The layer that numbers words."""

import keras
import numpy as np
import pytest
from support.word_numbers import WordNumbers


def test_pieces_get_the_number_of_their_word(tmp_path):
    starts = [0, 0, 0, 0, 1, 1, 0]  # piece 6 continues a word
    ids = keras.Input((None,), dtype="int32", name="ids")
    model = keras.Model(ids, WordNumbers(starts, most=3)(ids))
    model.save(tmp_path / "model.keras")
    given = np.array([[4, 6, 5, 0], [6, 4, 6, 5], [4, 5, 4, 5]])
    expected = [[1, 1, 2, 0], [1, 1, 1, 2], [1, 2, 3, 3]]
    for each in (model, keras.saving.load_model(tmp_path / "model.keras")):
        found = each(given)
        np.testing.assert_array_equal(found, expected)
        assert keras.backend.standardize_dtype(found.dtype) == "int32"


@pytest.mark.parametrize("starts, most, message", [([], 3, "empty"), ([True], 0, "at least 1")])
def test_invalid_arguments_are_refused(starts, most, message):
    with pytest.raises(ValueError, match=message):
        WordNumbers(starts, most)
