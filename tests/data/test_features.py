"""Sequences of vectors with a text or a class each."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

from keras_transformer.data.features import feature_batches  # noqa: E402
from keras_transformer.padding import pad_rows  # noqa: E402
from keras_transformer.special_ids import BEGIN_ID, END_ID  # noqa: E402
from keras_transformer.text.tokenizer import Tokenizer  # noqa: E402

FRAMES = [np.full((n, 2), n, "float64") for n in (3, 5, 2)]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["one two three"], 300, hard_vocab_limit=False)


def test_frames_are_padded_with_zeros_and_texts_become_targets(tokenizer):
    texts = ["one", "two three", " "]
    data = feature_batches(FRAMES, texts, tokenizer, name="sound")
    ((inputs, labels),) = data
    assert set(inputs) == {"sound", "target_ids"} and inputs["sound"].shape == (2, 5, 2)
    assert inputs["sound"].dtype.name == "float32"
    assert data.element_spec[0]["sound"].shape.as_list() == [None, None, 2]
    for frames, ids, label in zip(inputs["sound"], inputs["target_ids"], labels, strict=True):
        number = int(frames[0, 0])
        assert (frames.numpy()[:number] == number).all() and not frames.numpy()[number:].any()
        assert tokenizer.decode(label.numpy()) == {3: "one", 5: "two three"}[number]
        assert ids[0] == BEGIN_ID and END_ID in label.numpy()
    assert data.batches.report.empty == 1


def test_targets_of_static_shapes_are_no_longer_than_the_longest_text(tokenizer):
    options = {"static_shapes": True, "bucket_boundaries": [90]}
    ((inputs, labels),) = feature_batches(FRAMES, ["one"] * 3, tokenizer, 900, **options)
    assert inputs["features"].shape == (10, 90, 2)
    assert labels.shape == (10, len(tokenizer.encode("one")) + 1)


def test_targets_of_static_shapes_keep_the_limit_of_their_bucket(tokenizer):
    frames = [np.ones((n, 2)) for n in (3, 60)]
    options = {"static_shapes": True, "bucket_boundaries": [9, 90]}
    batches = list(feature_batches(frames, ["one", "one " * 20], tokenizer, 900, **options))
    assert {labels.shape[1] <= inputs["features"].shape[1] for inputs, labels in batches} == {True}
    assert len(batches) == 2 and all(np.prod(labels.shape) <= 900 for _, labels in batches)


def test_without_a_tokenizer_the_targets_are_classes():
    data = feature_batches(FRAMES, ["b", "a", "b"], shuffle=False)
    ((frames, labels),) = data
    assert frames.shape == (3, 5, 2) and data.batches.labels == ["a", "b"]
    assert frames[:, 0, 0].numpy().tolist() == [2, 3, 5] and labels.numpy().tolist() == [1, 1, 0]


def test_vectors_longer_than_the_length_are_refused():
    with pytest.raises(ValueError, match="do not fit into"):
        pad_rows(FRAMES, length=4)
