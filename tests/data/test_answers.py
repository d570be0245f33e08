"""Answers that stand in a passage: which pieces hold them."""

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

from keras_transformer.data.pairs import answer_batches, piece_span  # noqa: E402
from keras_transformer.text.tokenizer import Tokenizer  # noqa: E402

PASSAGE = "über 😀 the red hat, a hat"


@pytest.fixture(scope="module", params=["unigram", "bpe", "char"])
def tokenizer(request):
    limit = {} if request.param == "char" else {"hard_vocab_limit": request.param == "bpe"}
    return Tokenizer.train([PASSAGE.replace("😀", "")] * 3, 282, model_type=request.param, **limit)


@pytest.mark.parametrize("answer", ["über", "ber", "😀", "the red", "hat,", "ed h", "a hat", "t"])
def test_the_pieces_of_an_answer_hold_it_and_no_further_one(tokenizer, answer):
    begin = PASSAGE.rindex(answer)
    first, last = piece_span(tokenizer, PASSAGE, (begin, begin + len(answer)))
    spans = tokenizer.encode_with_spans(PASSAGE)[1]
    assert answer in PASSAGE[spans[first][0] : spans[last][1]]
    assert spans[first][1] > begin and spans[last][0] < begin + len(answer)
    assert all(end <= begin for _, end in spans[:first])
    assert all(start >= begin + len(answer) for start, _ in spans[last + 1 :])


def test_positions_are_those_of_the_row(tokenizer):
    questions = ["who?", "a longer question?"]
    passages, answers = [PASSAGE, "the hat"], [(11, 14), (4, 7)]
    ((inputs, labels),) = answer_batches(questions, passages, answers, tokenizer)
    texts = set()
    for i, row in enumerate(inputs["source_ids"].numpy()):
        start, end = (int(labels[name][i]) for name in ("start", "end"))
        assert (inputs["segment_ids"].numpy()[i, start : end + 1] == 2).all()
        texts.add(tokenizer.decode(row[start : end + 1]).strip())
    assert texts == {"red", "hat"}


def test_in_two_rows_positions_are_those_of_the_passage(tokenizer):
    passages, answers = [PASSAGE, "the hat"], [(11, 14), (4, 7)]
    data = answer_batches(["who?", "what?"], passages, answers, tokenizer, one_row=False)
    ((inputs, labels),) = data
    assert sorted(inputs) == ["first_ids", "second_ids"]
    found = {}
    for i, row in enumerate(inputs["second_ids"].numpy()):
        start, end = (int(labels[name][i]) for name in ("start", "end"))
        question = tokenizer.decode(inputs["first_ids"].numpy()[i])
        found[question] = tokenizer.decode(row[start : end + 1]).strip()
    assert sorted(found.values()) == ["hat", "red"] and len(found) == 2


@pytest.mark.parametrize("answer", [(3, 3), (-1, 2), (5, 1000), (4, 2)])
def test_an_answer_outside_is_named(tokenizer, answer):
    with pytest.raises(ValueError, match=rf"answer 1 is \({answer[0]}, {answer[1]}\), which is no"):
        answer_batches(["q", "q"], [PASSAGE] * 2, [(0, 1), answer], tokenizer)
