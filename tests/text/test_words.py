"""Words of pieces, and alignments of words and of pieces."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.text.words import PieceWords, align_words, piece_weights, read_alignments

LINES = ["a red hat , a bicycle .", "two  spaces", "hat's end.", " leading and trailing "]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "word"])
def test_spaces_separate_words(kind):
    tokenizer = kt.Tokenizer.train(LINES * 9, 300, model_type=kind, hard_vocab_limit=False)
    words = PieceWords(tokenizer)
    for line in LINES:
        ids = np.array(tokenizer.encode(line))
        numbers = words.numbers(ids)
        found = [tokenizer.decode(ids[numbers == i]).strip() for i in range(len(line.split()))]
        assert found == line.split() or kind == "word"
        assert (np.diff(numbers) >= 0).all() and numbers[0] == 0
        assert words.counts([ids]) == [len(line.split())] or kind == "word"
    assert words.numbers([]).tolist() == []


def test_spaces_at_the_end_belong_to_the_last_word():
    tokenizer = kt.Tokenizer.train(LINES * 9, 300, hard_vocab_limit=False)
    words = PieceWords(tokenizer)
    spaces = tokenizer.pieces.index("\u2581")
    assert words.numbers([*tokenizer.encode("two hat"), spaces, spaces]).max() == 1
    assert words.numbers([spaces]).tolist() == [0] and words.counts([[], [spaces]]) == [0, 1]


def test_punctuation_after_a_word_does_not_decide_its_alignment():
    attention = np.array([[0.7, 0.3], [0.0, 1.0], [0.4, 0.6]])
    letters = np.array([True, False, False])
    assert align_words(attention, [0, 1], [0, 0, 1], letters) == ((0, 0), (1, 1))
    assert align_words(np.zeros((3, 0)), [], [0, 0, 1], letters) == ()


def test_alignments_of_words_become_alignments_of_pieces():
    weights = piece_weights([(0, 1), (1, 1), (1, 2), (7, 0)], [0, 0, 1], [0, 1, 1, 2])
    third = [1 / 3] * 3
    np.testing.assert_allclose(weights, [[0, 0, 0], third, third, [0, 0, 1]], rtol=1e-6)


def test_alignment_files_are_read_and_errors_name_the_line(tmp_path):
    (tmp_path / "links").write_text("0-0 12-3\n\n1-0\n")
    assert read_alignments(tmp_path / "links") == [((0, 0), (12, 3)), (), ((1, 0),)]
    (tmp_path / "links").write_text("0-0\n0--1\n")
    with pytest.raises(ValueError, match="links, line 2: .*got '0--1'"):
        read_alignments(tmp_path / "links")


def test_pieces_without_spaces_are_refused():
    with pytest.raises(TypeError, match="pass a Tokenizer, not a object"):
        PieceWords(object())
