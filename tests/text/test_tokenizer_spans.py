"""Character spans of pieces in a text."""

import pytest
from helpers.texts import CORPUS, LINES, ODD

from keras_transformer.text.tokenizer import Tokenizer

TEXTS = [text for text in (*LINES, *ODD) if "\0" not in text]


@pytest.fixture(scope="module", params=["identity", "nmt_nfkc"])
def tokenizer(request):
    return Tokenizer.train(
        CORPUS, vocab_size=500, normalization=request.param, hard_vocab_limit=False
    )


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_encode_and_spans_are_in_order(tokenizer, text):
    ids, spans = tokenizer.encode_with_spans(text)
    assert ids == tokenizer.encode(text) and len(ids) == len(spans)
    assert [span for span in spans if not 0 <= span[0] <= span[1] <= len(text)] == []
    assert all(one[1] <= two[0] for one, two in zip(spans, spans[1:], strict=False))
    assert text not in LINES or "".join(text[start:end] for start, end in spans) == text


def test_characters_of_several_bytes_count_once_and_a_list_is_refused(tokenizer):
    text = "fährt 😀 man"
    _, spans = tokenizer.encode_with_spans(text)
    assert spans[-1][1] == len(text) == 11
    assert "😀" in [text[start:end] for start, end in spans]
    with pytest.raises(TypeError, match="must hold strings"):
        tokenizer.encode_with_spans(["a"])
    with pytest.raises(ValueError, match="half a surrogate pair"):
        tokenizer.encode_with_spans("\ud800")
