"""Texts with a label each, words with a tag each, and the ids of labels."""

import logging

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

from keras_transformer import Tokenizer, classification_batches, tagging_batches  # noqa: E402
from keras_transformer.data.examples import label_ids  # noqa: E402
from keras_transformer.special_ids import END_ID  # noqa: E402
from keras_transformer.text.corpora import encode_words  # noqa: E402

TEXTS = ["a good hat", "bad", "  ", "a good hat", "very very bad hat"]
LABELS = ["pos", "neg", "neg", "pos", "neg"]
SENTENCES = [["a", "unbelievable", "hat"], ["hat"], [], ["", "a"]]
TAGS = [["D", "A", "N"], ["N"], [], ["A", "D"]]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, 300, hard_vocab_limit=False)


def test_texts_end_with_the_end_token_and_labels_are_ids(tokenizer):
    data = classification_batches(TEXTS, LABELS, tokenizer, shuffle=False)
    ((source_ids, labels),) = data
    rows = [row[row != 0] for row in source_ids.numpy()]
    assert all(row[-1] == END_ID for row in rows)
    found = zip(tokenizer.decode(rows), labels.numpy().tolist(), strict=True)
    pairs = zip(TEXTS, LABELS, strict=True)
    assert sorted(found) == sorted((t, int(label == "pos")) for t, label in pairs if t.strip())
    report = data.batches.report
    assert (report.read, report.kept, report.empty, report.duplicates) == (5, 4, 1, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": ["neg", "neg", "neg", "pos", "neg"]},
        {"labels": ["pos", "neg", "neg", "pos", "pos"]},
        {"texts": ["a bad hat", *TEXTS[1:]]},
        {"texts": TEXTS[::-1], "labels": LABELS[::-1]},
        {"bucket_boundaries": [9, 40]},
    ],
)
def test_the_digest_differs_for_other_texts_labels_orders_and_buckets(tokenizer, changed):
    """A run within an epoch must not continue with other data."""

    def digest(texts=TEXTS, labels=LABELS, **options):
        options = {"label_names": ["neg", "pos"], **options}
        return classification_batches(texts, labels, tokenizer, **options).batches.settings[
            "content"
        ]

    assert digest() == digest(seed=3) != digest(**changed)


def test_the_digest_differs_for_another_tag(tokenizer):
    def digest(tag):
        data = tagging_batches([["a"]], [[tag]], tokenizer, label_names=["A", "N"])
        return data.batches.settings["content"]

    assert digest("A") == digest("A") != digest("N")


def test_validation_has_the_labels_of_training(tokenizer):
    names = classification_batches(TEXTS, LABELS, tokenizer).batches.labels
    valid = classification_batches(["bad"], ["neg"], tokenizer, label_names=names)
    assert valid.batches.labels == names == ["neg", "pos"]


@pytest.mark.parametrize("alpha", [None, 0.1])
def test_long_texts_are_left_out_or_cut(tokenizer, alpha, caplog):
    length = len(tokenizer.encode("a good hat")) + 1
    texts = ["a good hat" * 9, "a good hat"], [0, 1]
    options = {"max_length": length, "sampling_alpha": alpha}
    left_out = classification_batches(*texts, tokenizer, **options).batches.report
    assert (left_out.overlong, left_out.cut) == (1, 0)
    with caplog.at_level(logging.INFO):
        cut = classification_batches(*texts, tokenizer, truncate=True, **options)
    assert (cut.batches.report.overlong, cut.batches.report.cut) == (0, 1)
    assert caplog.records[-1].levelno == logging.WARNING
    assert f"1 cut at {length} tokens" in caplog.text
    rows = [row for ids, _ in cut for row in ids.numpy()]
    assert len(rows) == 2 and all(END_ID in row and len(row) <= length for row in rows)


def test_the_first_piece_of_a_word_has_its_tag(tokenizer):
    data = tagging_batches(SENTENCES, TAGS, tokenizer)
    ((source_ids, labels),) = data
    assert data.batches.labels == ["A", "D", "N"] and data.batches.report.empty == 1
    found = set()
    for row, marks in zip(source_ids.numpy(), labels.numpy(), strict=True):
        at = np.flatnonzero(marks != -1)
        found.add((*row[row != 0].tolist(), *at.tolist(), "".join("ADN"[i] for i in marks[at])))
    expected = set()
    for words, tags in zip(SENTENCES, TAGS, strict=True):
        ids, first = encode_words(tokenizer, words)
        expected |= {(*ids, END_ID, *first, "".join(tags))} if words else set()
    assert found == expected


def test_a_sentence_may_have_a_label_beside_its_tags(tokenizer):
    options = {"batch_multiple": 5, "shuffle": False}
    ((source_ids, tags),) = tagging_batches(SENTENCES, TAGS, tokenizer, **options)
    options |= {"sentence_labels": [*"xyyz"], "sentence_label_names": [*"zyx"]}
    ((same_ids, labels),) = tagging_batches(SENTENCES, TAGS, tokenizer, **options)
    np.testing.assert_array_equal(same_ids, source_ids)
    np.testing.assert_array_equal(labels["tags"], tags)
    words = np.count_nonzero(tags != -1, axis=1)  # 3, 1 and 2 of the sentences x, y and z
    assert labels["label"].numpy().tolist() == [{3: 2, 1: 1, 2: 0, 0: -1}[n] for n in words]


def test_sampled_pieces_keep_the_tags_of_words_and_the_limit():
    lines = ["unbelievable table hat", "believe able hats", "a stable label"] * 9
    tokenizer = Tokenizer.train(lines, 320, hard_vocab_limit=False)
    best = len(encode_words(tokenizer, ["unbelievable", "hat"])[0])
    for limit, drawn in ((32, True), (best + 1, False)):
        options = {"sampling_alpha": 0.1, "seed": 3, "bucket_boundaries": [limit]}
        data = tagging_batches([["unbelievable", "hat"]], [["A", "N"]], tokenizer, **options)
        seen = set()
        for _ in range(20):
            ((source_ids, labels),) = data
            row, marks = source_ids.numpy()[0].tolist(), labels.numpy()[0]
            first = np.flatnonzero(marks != -1).tolist()
            assert marks[first].tolist() == [0, 1] and first[0] == 0 and len(row) <= limit
            assert tokenizer.decode(row[: first[1]]) == "unbelievable"
            assert tokenizer.decode(row[first[1] :]) == "hat"
            seen.add(tuple(row))
        assert len(seen) > 1 or not drawn


@pytest.mark.parametrize(
    ("labels", "given", "ids", "names"),
    [
        (["b", "a", "b"], None, [1, 0, 1], ["a", "b"]),
        (np.array([2, 0]), None, [2, 0], ["0", "1", "2"]),
        (["b", "a"], ["b", "a", "c"], [0, 1], ["b", "a", "c"]),
        ([1, 0], ["b", "a"], [1, 0], ["b", "a"]),
    ],
)
def test_names_are_sorted_unless_they_are_given(labels, given, ids, names):
    found, found_names = label_ids(labels, given)
    assert (found.tolist(), found_names, found.dtype) == (ids, names, np.int32)
