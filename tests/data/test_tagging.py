"""Words with a tag each."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

from keras_transformer.data.labelled import tagging_batches  # noqa: E402
from keras_transformer.special_ids import END_ID  # noqa: E402
from keras_transformer.text.corpora import encode_words  # noqa: E402
from keras_transformer.text.tokenizer import Tokenizer  # noqa: E402

SENTENCES = [["a", "unbelievable", "hat"], ["hat"], [], ["", "a"]]
TAGS = [["D", "A", "N"], ["N"], [], ["A", "D"]]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["a red hat"], 300, hard_vocab_limit=False)


def test_a_tag_stands_at_its_words_first_piece_alone(tokenizer):
    data = tagging_batches(SENTENCES, TAGS, tokenizer)
    ((source_ids, labels),) = data
    assert data.batches.labels == ["A", "D", "N"] and data.batches.report.empty == 1
    found = set()
    for row, marks in zip(source_ids.numpy(), labels.numpy(), strict=True):
        ids = row[: list(row).index(END_ID)].tolist()
        at = np.flatnonzero(marks != -1).tolist()
        found.add((tuple(ids), tuple(at), "".join("ADN"[i] for i in marks[at])))
    expected = set()
    for words, tags in zip(SENTENCES, TAGS, strict=True):
        if words:
            ids, first = encode_words(tokenizer, words)
            expected.add((tuple(ids), tuple(first), "".join(tags)))
    assert found == expected


def test_words_and_tags_must_agree(tokenizer):
    with pytest.raises(ValueError, match="sentence 1 has 2 words and 1 tags"):
        tagging_batches([["a"], ["a", "b"]], [["X"], ["X"]], tokenizer)
    with pytest.raises(ValueError, match="there are 1 sentences, 2 tags"):
        tagging_batches([["a"]], [["X"], ["X"]], tokenizer)
    with pytest.raises(TypeError, match=r"`sentences\[0\]` must be an iterable of strings"):
        tagging_batches(["a red hat"], [["X", "X", "X"]], tokenizer)
    with pytest.raises(ValueError, match="label 1 is 'Y'"):
        tagging_batches([["a", "b"]], [["X", "Y"]], tokenizer, label_names=["X"])
    with pytest.raises(ValueError, match="no sentence is left of 0"):
        tagging_batches([], [], tokenizer)


def test_pieces_are_drawn_anew_in_each_epoch_and_tags_stay_at_their_words():
    lines = ["unbelievable table hat", "believe able hats", "a stable label"] * 9
    tokenizer = Tokenizer.train(lines, 320, hard_vocab_limit=False)
    options = dict(sampling_alpha=0.1, seed=3, bucket_boundaries=[32])  # so that any draw fits
    data = tagging_batches([["unbelievable", "hat"]], [["A", "N"]], tokenizer, **options)
    seen = set()
    for _ in range(20):
        ((source_ids, labels),) = data
        row, marks = source_ids.numpy()[0].tolist(), labels.numpy()[0]
        first = np.flatnonzero(marks != -1).tolist()
        assert [data.batches.labels[i] for i in marks[first]] == ["A", "N"] and first[0] == 0
        assert tokenizer.decode(row[: first[1]]) == "unbelievable"
        assert tokenizer.decode(row[first[1] :]) == "hat"
        seen.add(tuple(row))
    assert len(seen) > 1


def test_a_draw_that_is_too_long_is_not_taken(tokenizer):
    best, _ = encode_words(tokenizer, ["unbelievable", "hat"])
    data = tagging_batches(
        [["unbelievable", "hat"]],
        [["A", "N"]],
        tokenizer,
        sampling_alpha=0.01,
        max_length=len(best) + 1,
    )
    for _ in range(3):
        ((source_ids, _),) = data
        assert source_ids.shape[1] <= len(best) + 1
