"""Pairs of texts in one row or two, and answers within the second text."""

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

from keras_transformer import Tokenizer, answer_batches, pair_batches  # noqa: E402
from keras_transformer.data.pairs import piece_span  # noqa: E402
from keras_transformer.special_ids import BEGIN_ID, END_ID  # noqa: E402

FIRST, SECOND = ["a red hat", "x"], ["ein roter Hut", "a b"]
PASSAGE = "über 😀 the red hat, a hat"


@pytest.fixture(scope="module", params=["unigram", "bpe", "char"])
def tokenizer(request):
    limit = {} if request.param == "char" else {"hard_vocab_limit": request.param == "bpe"}
    return Tokenizer.train([PASSAGE.replace("😀", "")] * 3, 282, model_type=request.param, **limit)


def test_two_rows_hold_the_texts_of_a_pair(tokenizer):
    ((inputs, labels),) = pair_batches(FIRST, SECOND, tokenizer)
    assert labels.numpy().tolist() == [0, 1]
    texts = [tokenizer.decode(inputs[name].numpy()) for name in ("first_ids", "second_ids")]
    assert set(zip(*texts, strict=True)) == set(zip(FIRST, SECOND, strict=True))


def test_one_row_has_two_segments(tokenizer):
    data = pair_batches(FIRST, SECOND, tokenizer, labels=["no", "yes"], one_row=True, shuffle=False)
    ((inputs, labels),) = data
    a, b = tokenizer.encode(["x", "a b"])  # the shorter pair comes first
    source, segments = (inputs[name].numpy()[0].tolist() for name in ("source_ids", "segment_ids"))
    row, numbers = [*a, END_ID, *b, END_ID], [1] * (len(a) + 1) + [2] * (len(b) + 1)
    padding = [0] * (len(source) - len(row))
    assert source == row + padding and segments == numbers + padding
    assert labels.numpy().tolist() == [1, 0] and data.batches.labels == ["no", "yes"]


def test_max_length_limits_the_row(tokenizer):
    lengths = [len(tokenizer.encode(side[1])) + 1 for side in (FIRST, SECOND)]
    options = {"max_length": sum(lengths) - 1}
    assert pair_batches(["x"], ["a b"], tokenizer, **options).batches.report.kept == 1
    with pytest.raises(ValueError, match="no pair is left of 1: 0 empty, 1 longer"):
        pair_batches(["x"], ["a b"], tokenizer, one_row=True, **options)


@pytest.mark.parametrize("answer", ["über", "ber", "😀", "the red", "hat,", "ed h", "a hat", "t"])
def test_answer_pieces_cover_the_answer_and_no_more(tokenizer, answer):
    begin = PASSAGE.rindex(answer)
    first, last = piece_span(tokenizer, PASSAGE, (begin, begin + len(answer)))
    spans = tokenizer.encode_with_spans(PASSAGE)[1]
    assert answer in PASSAGE[spans[first][0] : spans[last][1]]
    # A character of several bytes has one piece with a span, the last one.
    assert spans[first][1] > begin or spans[first] == (begin, begin)
    assert spans[last][0] < begin + len(answer)
    assert all(end <= begin for _, end in spans[:first])
    assert all(start >= begin + len(answer) for start, _ in spans[last + 1 :])


def test_an_answer_that_begins_with_bytes_has_all_of_them(tokenizer):
    text = "a 😀 hat"
    first, last = piece_span(tokenizer, text, (2, 3))
    assert tokenizer.decode(tokenizer.encode(text)[first : last + 1]).strip() == "😀"
    folded = Tokenizer.train(["a hat"] * 3, 280, normalization="nmt_nfkc", hard_vocab_limit=False)
    with pytest.raises(ValueError, match="has no piece: the tokenizer drops its text"):
        piece_span(folded, "\u200b", (0, 1))


@pytest.mark.parametrize(("one_row", "name"), [(True, "source_ids"), (False, "second_ids")])
def test_answer_positions_are_positions_in_the_row(tokenizer, one_row, name):
    questions, passages = ["who?", "a longer question?"], [PASSAGE, "the hat"]
    answers = [(11, 14), (4, 7)]
    data = answer_batches(questions, passages, answers, tokenizer, one_row=one_row)
    ((inputs, labels),) = data
    texts = set()
    for i, row in enumerate(inputs[name].numpy()):
        start, end = (int(labels[side][i]) for side in ("start", "end"))
        assert not one_row or (inputs["segment_ids"].numpy()[i, start : end + 1] == 2).all()
        texts.add(tokenizer.decode(row[start : end + 1]).strip())
    assert texts == {"red", "hat"}


class BeginningTokenizer:
    """Adds a begin token to each text, as BERT's does. Each character is an id."""

    def encode(self, text):
        rows = [text] if isinstance(text, str) else text
        rows = [[BEGIN_ID, *map(ord, row)] for row in rows]
        return rows[0] if isinstance(text, str) else rows

    def encode_with_spans(self, text):
        return self.encode(text), [(0, 0), *((i, i + 1) for i in range(len(text)))]


def test_a_row_of_two_texts_has_one_begin_token():
    tokenizer, row = BeginningTokenizer(), [BEGIN_ID, 97, END_ID, 98, 99, END_ID]
    ((inputs, _),) = pair_batches(["a"], ["bc"], tokenizer, labels=[0], one_row=True)
    assert inputs["source_ids"].numpy().tolist() == [row]
    assert inputs["segment_ids"].numpy().tolist() == [[1, 1, 1, 2, 2, 2]]
    for one_row, place in ((True, 4), (False, 2)):
        data = answer_batches(["a"], ["bc"], [(1, 2)], tokenizer, one_row=one_row)
        ((inputs, labels),) = data
        ids = inputs["source_ids" if one_row else "second_ids"].numpy().tolist()
        assert ids == [row if one_row else [BEGIN_ID, 98, 99, END_ID]]
        assert labels["start"].numpy() == labels["end"].numpy() == [place]
