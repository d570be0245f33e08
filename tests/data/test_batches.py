"""What holds for batches of all kinds: epochs, resumption, limits, rows of padding."""

import logging

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

from keras_transformer.data.features import feature_batches  # noqa: E402
from keras_transformer.data.labelled import (
    classification_batches,  # noqa: E402
    tagging_batches,  # noqa: E402
)
from keras_transformer.data.language_model import language_model_batches  # noqa: E402
from keras_transformer.data.pairs import (
    answer_batches,  # noqa: E402
    pair_batches,  # noqa: E402
)
from keras_transformer.text.tokenizer import Tokenizer  # noqa: E402

RNG = np.random.default_rng(5)
TEXTS = [f"{i} " + "red hat " * int(RNG.integers(1, 6)) for i in range(43)]
TOKENIZER = Tokenizer.train(TEXTS, 300, hard_vocab_limit=False)
CLASSES = ["odd" if i % 2 else "even" for i in range(43)]
FRAMES = [RNG.normal(size=(int(n), 3)).astype("float32") for n in RNG.integers(1, 50, 43)]
TAGS = [["NUM", *["X"] * (len(text.split()) - 1)] for text in TEXTS]


def classes(*size, **options):
    return classification_batches(TEXTS, CLASSES, TOKENIZER, *size, **options)


def tags(*size, **options):
    return tagging_batches([text.split() for text in TEXTS], TAGS, TOKENIZER, *size, **options)


def documents(*size, **options):
    return language_model_batches(TEXTS, TOKENIZER, *size, **options)


def windows(*size, **options):
    return language_model_batches(TEXTS, TOKENIZER, *size, window=7, **options)


def towers(*size, **options):
    return pair_batches(TEXTS, TEXTS[::-1], TOKENIZER, *size, labels=CLASSES, **options)


def rows_of_two(*size, **options):
    return towers(*size, one_row=True, **options)


def answers(*size, **options):
    return answer_batches(TEXTS, TEXTS, [(0, 1)] * 43, TOKENIZER, *size, **options)


def sounds(*size, **options):
    return feature_batches(FRAMES, CLASSES, None, *size, **options)


def speech(*size, **options):
    return feature_batches(FRAMES, TEXTS, TOKENIZER, *size, **options)


KINDS = (classes, tags, documents, windows, towers, rows_of_two, answers, sounds, speech)
each_kind = pytest.mark.parametrize("kind", KINDS)


def flat(dataset):
    return [np.asarray(part) for part in tf.nest.flatten(list(dataset))]


def equal(left, right):
    return len(left) == len(right) and all(map(np.array_equal, left, right))


@each_kind
def test_each_pass_is_an_epoch_and_can_be_resumed_within(kind):
    whole, resumed = kind(160), kind(160, initial_epoch=1)
    first, second = list(whole), list(whole)
    count = int(whole.cardinality())
    assert count == len(first) == len(second) == whole.batches.report.batches > 3
    assert not equal(flat(first), flat(second))
    assert equal(flat(second), flat(resumed))
    assert equal(flat(second[2:]), flat(resumed.batches.rest(1, 2)))
    resumed.batches.seek(0)
    assert equal(flat(first), flat(resumed))


@each_kind
def test_batches_keep_to_the_limit_and_examples_come_once(kind):
    data = kind(160)
    rows = 0
    for inputs, _ in data:
        for array in tf.nest.flatten(inputs):
            assert array.shape[0] * array.shape[1] <= 160
        rows += array.shape[0]
    report = data.batches.report
    assert rows == report.kept == report.read
    assert report.empty == report.overlong == 0


@each_kind
def test_without_shuffling_every_epoch_is_the_same(kind):
    data = kind(160, shuffle=False)
    assert equal(flat(data), flat(data))


@each_kind
@pytest.mark.parametrize("options", [{"batch_multiple": 5}, {"static_shapes": True}])
def test_rows_that_fill_up_a_batch_hold_nothing(kind, options):
    data = kind(500, **options)
    filled = rows = 0
    nothing = 0 if kind in (documents, windows, speech) else -1
    for inputs, labels in data:
        ids = tf.nest.flatten(inputs)[0].numpy()
        assert len(ids) % options.get("batch_multiple", 1) == 0
        padding = ~ids.reshape(len(ids), -1).any(1)
        rows += (~padding).sum()
        filled += padding.sum()
        for part in tf.nest.flatten(labels):
            assert (part.numpy()[padding] == nothing).all()
            assert (part.numpy().reshape(len(ids), -1)[~padding] != nothing).any(1).all()
    assert rows == data.batches.report.kept and filled
    if "static_shapes" in options:
        shapes = {tuple(tf.nest.flatten(inputs)[0].shape) for inputs, _ in data}
        assert len(shapes) <= 3 and {len(tuple(s)) for s in shapes} <= {2, 3}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not windows])
def test_what_is_left_out_is_counted_and_said(kind, caplog):
    with caplog.at_level(logging.INFO):
        report = kind(1000, max_length=40).batches.report
    assert report.overlong > 0 and report.read == report.kept + report.overlong == 43
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.message == str(report)
    assert f"{report.overlong} longer than 40 tokens" in str(report)


@each_kind
def test_only_classes_have_names(kind):
    names = {tags: ["NUM", "X"], documents: None, windows: None, answers: None, speech: None}
    assert kind().batches.labels == names.get(kind, ["even", "odd"])


@each_kind
def test_a_misspelt_argument_is_named(kind):
    with pytest.raises(TypeError, match="shufle"):
        kind(shufle=True)


@pytest.mark.parametrize("kind", [classes, documents])
def test_samples_are_other_pieces_of_the_same_text(kind):
    data = kind(400, sampling_alpha=0.2)
    ids = []
    for _ in range(2):
        rows = [row for inputs, _ in data for row in inputs.numpy().tolist()]
        ids.append(sorted(rows))
        assert sorted(TOKENIZER.decode(rows)) == sorted(TEXTS)
    assert ids[0] != ids[1]
