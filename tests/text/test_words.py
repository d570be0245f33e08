"""Words of a sentence that is split already: their pieces, and where each begins."""

import pytest

pytest.importorskip("sentencepiece")

from keras_transformer.special_ids import UNKNOWN_ID  # noqa: E402
from keras_transformer.text.corpora import encode_words, join_words  # noqa: E402


def test_each_word_is_encoded_by_itself(tokenizer):
    words = ["Ein", "Mann", "😀😀", ",", "zwölf"]
    ids, first = encode_words(tokenizer, words)
    ends = [*first[1:], len(ids)]
    assert [ids[i:j] for i, j in zip(first, ends, strict=True)] == tokenizer.encode(words)
    assert first[0] == 0 and len(ids) > len(words)


def test_a_word_without_pieces_has_the_unknown_id(tokenizer):
    ids, first = encode_words(tokenizer, ["a", "", "b"])
    assert ids[first[1]] == UNKNOWN_ID and first[2] == first[1] + 1
    assert encode_words(tokenizer, []) == ([], [])
    assert join_words([[5, 6], [], [7]]) == ([5, 6, UNKNOWN_ID, 7], [0, 2, 3])


def test_one_string_is_no_list_of_words(tokenizer):
    with pytest.raises(TypeError, match="`words` must be an iterable of strings, got one str"):
        encode_words(tokenizer, "a man")
