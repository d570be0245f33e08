"""Pairs of texts, in one row or two."""

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

from keras_transformer.data.pairs import pair_batches  # noqa: E402
from keras_transformer.special_ids import END_ID  # noqa: E402
from keras_transformer.text.tokenizer import Tokenizer  # noqa: E402

FIRST, SECOND = ["a red hat", "x"], ["ein roter Hut", "a b"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(FIRST + SECOND, 320, hard_vocab_limit=False)


def test_two_rows_and_the_row_that_belongs_to_each(tokenizer):
    ((inputs, labels),) = pair_batches(FIRST, SECOND, tokenizer)
    assert labels.numpy().tolist() == [0, 1]
    texts = [tokenizer.decode(inputs[name].numpy()) for name in ("first_ids", "second_ids")]
    assert set(zip(*texts, strict=True)) == set(zip(FIRST, SECOND, strict=True))


def test_one_row_has_two_segments(tokenizer):
    data = pair_batches(FIRST, SECOND, tokenizer, labels=["no", "yes"], one_row=True, shuffle=False)
    ((inputs, labels),) = data
    a, b = tokenizer.encode(["x", "a b"])  # the shorter pair comes first
    row = [*a, END_ID, *b, END_ID]
    assert inputs["source_ids"].numpy()[0, : len(row)].tolist() == row
    segments = [1] * (len(a) + 1) + [2] * (len(b) + 1)
    assert inputs["segment_ids"].numpy()[0, : len(row)].tolist() == segments
    assert not inputs["segment_ids"].numpy()[0, len(row) :].any()
    assert labels.numpy().tolist() == [1, 0] and data.batches.labels == ["no", "yes"]


def test_the_limit_is_that_of_the_row(tokenizer):
    lengths = [len(tokenizer.encode(side[1])) + 1 for side in (FIRST, SECOND)]
    options = {"max_length": sum(lengths) - 1}
    assert pair_batches(["x"], ["a b"], tokenizer, **options).batches.report.kept == 1
    with pytest.raises(ValueError, match="no pair is left of 1: 0 with an empty side, 1 longer"):
        pair_batches(["x"], ["a b"], tokenizer, one_row=True, **options)


@pytest.mark.parametrize("options", [{"static_shapes": True}, {"batch_multiple": 2}])
def test_rows_of_padding_are_no_second_text_to_choose(tokenizer, options):
    with pytest.raises(ValueError, match="leave out static_shapes and batch_multiple"):
        pair_batches(FIRST, SECOND, tokenizer, **options)


def test_numbers_must_agree(tokenizer):
    with pytest.raises(ValueError, match="line counts differ"):
        pair_batches(FIRST, SECOND[:1], tokenizer)
    with pytest.raises(ValueError, match="there are 2 texts, 1 labels"):
        pair_batches(FIRST, SECOND, tokenizer, labels=[1])
