"""Texts with a label each."""

import logging

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

from keras_transformer.data.labelled import classification_batches  # noqa: E402
from keras_transformer.special_ids import END_ID  # noqa: E402
from keras_transformer.text.tokenizer import Tokenizer  # noqa: E402

TEXTS = ["a good hat", "bad", "  ", "a good hat", "very very bad hat"]
LABELS = ["pos", "neg", "neg", "pos", "neg"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, 300, hard_vocab_limit=False)


def test_texts_end_with_the_end_token_and_labels_are_ids(tokenizer):
    data = classification_batches(TEXTS, LABELS, tokenizer, shuffle=False)
    ((source_ids, labels),) = data
    rows = sorted(zip(tokenizer.decode(source_ids.numpy()), labels.numpy().tolist(), strict=True))
    expected = [
        (text, ["neg", "pos"].index(label)) for text, label in zip(TEXTS, LABELS, strict=True)
    ]
    assert rows == sorted(row for row in expected if row[0].strip())
    lengths = (source_ids.numpy() != 0).sum(1)
    assert all(row[n - 1] == END_ID for row, n in zip(source_ids.numpy(), lengths, strict=True))
    report = data.batches.report
    assert (report.read, report.kept, report.empty, report.duplicates) == (5, 4, 1, 1)


def test_validation_has_the_labels_of_training(tokenizer):
    train = classification_batches(TEXTS, LABELS, tokenizer)
    names = train.batches.labels
    valid = classification_batches(["bad"], ["neg"], tokenizer, label_names=names)
    assert valid.batches.labels == names == ["neg", "pos"]
    with pytest.raises(ValueError, match="label 0 is 'neutral', but the labels are"):
        classification_batches(["hat"], ["neutral"], tokenizer, label_names=names)


@pytest.mark.parametrize("alpha", [None, 0.1])
def test_long_texts_are_left_out_or_cut(tokenizer, alpha, caplog):
    length = len(tokenizer.encode("a good hat")) + 1
    texts = ["a good hat" * 9, "a good hat"]
    options = {"max_length": length, "sampling_alpha": alpha}
    left_out = classification_batches(texts, [0, 1], tokenizer, **options)
    assert (left_out.batches.report.overlong, left_out.batches.report.cut) == (1, 0)
    with caplog.at_level(logging.INFO):
        cut = classification_batches(texts, [0, 1], tokenizer, truncate=True, **options)
    assert (cut.batches.report.overlong, cut.batches.report.cut) == (0, 1)
    assert caplog.records[-1].levelno == logging.WARNING
    assert f"1 cut at {length} tokens" in caplog.text
    rows = [row for ids, _ in cut for row in ids.numpy()]
    assert len(rows) == 2 and all(END_ID in row and len(row) <= length for row in rows)


def test_what_does_not_fit_together_is_refused(tokenizer):
    with pytest.raises(ValueError, match="there are 2 texts, 1 labels"):
        classification_batches(["a", "b"], ["x"], tokenizer)
    with pytest.raises(TypeError, match="`texts` must be an iterable of strings"):
        classification_batches("good", ["x"], tokenizer)
    with pytest.raises(ValueError, match="no text is left of 1: 1 empty"):
        classification_batches([""], ["x"], tokenizer)
