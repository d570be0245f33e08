"""Pictures in grey levels and baselines of generated pictures."""

import keras
import numpy as np
import pytest
from support import pixel_models
from support.sets.picture_texts import (
    DIGITS,
    OnlyCharacters,
    as_pixels,
    as_text,
    digit_tokenizer,
    token_ids,
)


def test_a_picture_is_a_text_of_digits():
    pixels, classes = np.arange(32).reshape(2, 4, 4) % 16, np.array([3, 9])
    texts = [as_text(*pair) for pair in zip(classes, pixels, strict=True)]
    assert texts[0] == "30123456789abcdef"
    np.testing.assert_array_equal(as_pixels(texts[1], 4), pixels[1])
    tokenizer = digit_tokenizer()
    ids = token_ids(tokenizer, pixels, classes)
    assert ids.dtype == np.int32
    assert [row[1:] for row in ids.tolist()] == tokenizer.encode(texts)
    logits = np.zeros((1, 1, 21), "float32")
    logits, _ = OnlyCharacters(tokenizer, DIGITS).step(logits, None, (), ())
    allowed = np.flatnonzero(np.isfinite(logits[0, 0]))
    assert {*allowed} == {0, *tokenizer.encode("0123456789abcdef")[1:]}  # padding is never -inf


def test_frequencies_are_counted_per_pixel_and_class():
    pixels = np.array([[[0, 1]], [[0, 1]], [[2, 1]], [[2, 0]]])
    train = pixels, np.array([0, 0, 1, 1])
    test = np.array([[[0, 0]]]), np.array([1])
    shares = 1 / 5, 2 / 5  # in class 1, with one added to each of the three levels
    assert pixel_models.frequency_bits(train, test, 3) == pytest.approx(-np.log2(shares).mean())


def test_a_pixel_cnn_sees_only_previous_pixels():
    keras.utils.set_random_seed(7)
    model = pixel_models.pixel_cnn(5, 7, 2, filters=6, blocks=2)
    pixels, label = np.random.default_rng(7).integers(0, 7, (1, 5, 5)), np.array([1])
    before = np.asarray(model([pixels, label]))
    assert before.shape == (1, 5, 5, 7)
    pixels[0, 2, 3] = (pixels[0, 2, 3] + 1) % 7
    changed = np.abs(np.asarray(model([pixels, label])) - before).max(-1)[0] > 1e-7
    place = np.arange(25).reshape(5, 5)
    assert not changed[place <= 13].any() and changed[2, 4] and changed[3, 3]
    assert np.abs(np.asarray(model([pixels, 1 - label])) - before).max() > 1e-4


@pytest.mark.full
def test_baselines_learn(capsys):
    draw = np.random.default_rng(7)
    classes = draw.integers(0, 2, 640).astype("int32")
    pixels = np.where(classes[:, None, None] > 0, 3, draw.integers(0, 2, (640, 6, 6)))
    ends = (0, 512), (512, 576), (576, 640)
    train, valid, test = ((pixels[i:j].astype("int32"), classes[i:j]) for i, j in ends)
    bits = pixel_models.pixel_cnn_bits(train, valid, test, levels=4, count=2 * 512, batch_size=64)
    assert 0.3 < bits < 1.7 and "parameters" in capsys.readouterr().out  # 2 before training
    classify = pixel_models.trained_classifier(train, valid, levels=4, epochs=4)
    assert np.mean(classify(test[0]) == test[1]) > 0.9
