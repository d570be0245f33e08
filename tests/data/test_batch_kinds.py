"""Properties of batches of all kinds: epochs, seeds, resumption, limits, rows of padding."""

import functools
import logging

import numpy as np
import pytest
from helpers import processes

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

import keras_transformer as kt  # noqa: E402

RNG = np.random.default_rng(5)
TEXTS = [f"{i} " + "red hat " * int(RNG.integers(1, 6)) for i in range(43)]
WORDS = [text.split() for text in TEXTS]
TOKENIZER = kt.Tokenizer.train(TEXTS, 300, hard_vocab_limit=False)
CLASSES = ["odd" if i % 2 else "even" for i in range(43)]
FRAMES = [RNG.normal(size=(int(n), 3)).astype("float32") for n in RNG.integers(1, 50, 43)]
IMAGES = [frames.T for frames in FRAMES]
TAGS = [["NUM", *["X"] * (len(words) - 1)] for words in WORDS]
ANSWERS = [(0, 1)] * 43

towers = functools.partial(kt.pair_batches, TEXTS, TEXTS[::-1], TOKENIZER, labels=CLASSES)
documents = functools.partial(kt.language_model_batches, TEXTS, TOKENIZER)
KINDS = {
    "translation": functools.partial(kt.translation_batches, TEXTS, TEXTS[::-1], TOKENIZER),
    "classes": functools.partial(kt.classification_batches, TEXTS, CLASSES, TOKENIZER),
    "tags": functools.partial(kt.tagging_batches, WORDS, TAGS, TOKENIZER),
    "documents": documents,
    "windows": functools.partial(documents, window=7),
    "towers": towers,
    "rows of two": functools.partial(towers, one_row=True),
    "answers": functools.partial(kt.answer_batches, TEXTS, TEXTS, ANSWERS, TOKENIZER),
    "sounds": functools.partial(kt.feature_batches, FRAMES, CLASSES, None),
    "images": functools.partial(kt.image_batches, IMAGES, CLASSES, None, fill=0.0),
    "speech": functools.partial(kt.feature_batches, FRAMES, TEXTS, TOKENIZER),
}
SAMPLED = ["translation", "classes", "tags", "documents"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def flat(dataset):
    return [np.asarray(part) for part in tf.nest.flatten(list(dataset))]


def equal(left, right):
    return len(left) == len(right) and all(map(np.array_equal, left, right))


@pytest.mark.quick("speech", "images")
@each_kind
def test_epochs_depend_on_the_seed_and_can_be_resumed_within(kind):
    make = functools.partial(KINDS[kind], 160)
    whole, resumed = make(seed=3), make(seed=3)
    first, second = list(whole), list(whole)
    count = int(whole.cardinality())
    assert count == len(first) == len(second) == whole.batches.report.batches > 3
    assert not equal(flat(first), flat(second))
    resumed.batches.seek(1)
    assert equal(flat(second), flat(resumed))
    resumed.batches.seek(1, 2)
    found = list(resumed)
    assert equal(flat(second[2:]), flat(found[2:]))
    assert all(len(array) == 1 for array in flat(found[:2]))  # earlier batches are not built
    resumed.batches.seek(0)
    assert equal(flat(first), flat(resumed))
    assert not equal(flat(first), flat(make(seed=5)))


@each_kind
def test_batches_keep_the_limit_and_have_each_example_once(kind):
    data = KINDS[kind](160)
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
    data = KINDS[kind](160, shuffle=False)
    assert equal(flat(data), flat(data))


@each_kind
@pytest.mark.parametrize("options", [{"batch_multiple": 5}, {"static_shapes": True}])
def test_padding_rows_have_no_labels(kind, options):
    data = KINDS[kind](500, **options)
    filled = rows = 0
    nothing = 0 if kind in ("translation", "documents", "windows", "speech") else -1
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
        assert len({tuple(tf.nest.flatten(inputs)[0].shape) for inputs, _ in data}) <= 3


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "windows"])
def test_left_out_examples_are_counted_and_logged(kind, caplog):
    with caplog.at_level(logging.INFO):
        report = KINDS[kind](1000, max_length=40).batches.report
    assert report.overlong > 0 and report.read == report.kept + report.overlong == 43
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.message == str(report)
    assert f"{report.overlong} longer than 40 tokens" in str(report)


@each_kind
def test_only_classes_have_names_and_errors_name_a_misspelt_option(kind):
    named = {"classes", "towers", "rows of two", "sounds", "images"}
    names = {"tags": ["NUM", "X"]} | dict.fromkeys(named, ["even", "odd"])
    assert KINDS[kind]().batches.labels == names.get(kind)
    with pytest.raises(TypeError, match="shufle"):
        KINDS[kind](shufle=True)


@pytest.mark.parametrize("kind", SAMPLED)
def test_sampled_pieces_depend_on_seed_and_epoch_and_spell_the_same_text(kind):
    make = functools.partial(KINDS[kind], 400, sampling_alpha=0.2, shuffle=False)
    make = functools.partial(make, bucket_boundaries=[64])
    drawn, again, other = make(seed=3), make(seed=3), make(seed=5)
    epochs = [flat(drawn), flat(drawn)]
    assert len(epochs[0]) == len(epochs[1]) and not equal(*epochs)
    assert equal(epochs[0], flat(again))
    assert not equal(epochs[0], flat(other))
    rows = [row for inputs, _ in again for row in tf.nest.flatten(inputs)[0].numpy()]
    spelled = {text.replace(" ", "") for text in TOKENIZER.decode(rows)}
    assert spelled == {text.replace(" ", "") for text in TEXTS}


@pytest.mark.full
def test_another_process_resumes_with_the_same_batches(tmp_path):
    TOKENIZER.save(tmp_path / "shared.model")
    code = (
        "import hashlib, pickle, sys\n"
        "import keras_transformer as kt\n"
        "tokenizer = kt.Tokenizer.load(sys.argv[1])\n"
        "lines = [f'{i} ' + 'a hat ' * (i % 7) for i in range(97)]\n"
        "words, options = [line.split() for line in lines], dict(sampling_alpha=0.2, seed=3)\n"
        "labels = [i % 2 for i in range(97)]\n"
        "for data in (\n"
        "    kt.translation_batches(lines, lines[::-1], tokenizer, 97, **options),\n"
        "    kt.classification_batches(lines, labels, tokenizer, 97, **options),\n"
        "    kt.tagging_batches(words, words, tokenizer, 97, **options),\n"
        "    kt.language_model_batches(lines, tokenizer, 97, **options),\n"
        "):\n"
        "    for epoch, batch in ((0, 0), (1, 5)):\n"
        "        seen = pickle.dumps(list(data.batches.iterate(epoch, batch)))\n"
        "        count = data.batches.batches_per_epoch\n"
        "        print(epoch, batch, count, hashlib.sha256(seen).hexdigest())\n"
    )
    runs = [processes.run("-c", code, tmp_path / "shared.model") for _ in range(2)]
    assert len(runs[0].stdout.splitlines()) == 8, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
