"""Parallel text: every pair once an epoch, exact resumption, reports, clear errors."""

import itertools
import logging
from unittest import mock

import numpy as np
import pytest
from helpers import processes
from hypothesis import given
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

import keras  # noqa: E402

import keras_transformer as kt  # noqa: E402
from keras_transformer.data.examples import Examples, Rows  # noqa: E402
from keras_transformer.data.plan import BatchOptions, BatchPlan  # noqa: E402
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID  # noqa: E402

RNG = np.random.default_rng(20170612)
SOURCE = [f"{i} " + "a hat " * int(RNG.integers(1, 8)) for i in range(211)]
TARGET = [f"{i} " + "ein hut " * int(RNG.integers(1, 8)) for i in range(211)]


@pytest.fixture(scope="module")
def tokenizer():
    return kt.Tokenizer.train(SOURCE + TARGET, 307, hard_vocab_limit=False)


class Numbers:
    """A tokenizer of numbers, which are the ids."""

    def encode(self, lines):
        return [[int(number) for number in line.split()] for line in lines]


def unpadded(rows):
    return [[int(i) for i in row if i != PAD_ID] for row in np.asarray(rows)]


def pairs_of(batches):
    """Returns (source, target) ids of batches, without special ids and padding rows."""
    pairs = []
    for inputs, labels in batches:
        sides = map(unpadded, (inputs["source_ids"], inputs["target_ids"], labels))
        for source, shifted, label in zip(*sides, strict=True):
            if not source:
                assert not shifted and not label
                continue
            assert source[-1] == label[-1] == END_ID and shifted[0] == BEGIN_ID
            assert shifted[1:] == label[:-1]
            pairs.append((tuple(source[:-1]), tuple(label[:-1])))
    return pairs


def test_each_side_is_encoded_by_its_tokenizer(tokenizer):
    texts, other = (["7 a hat"], ["7 ein hut hut"]), kt.Tokenizer.train(TARGET, 280)
    ((inputs, labels),) = kt.translation_batches(*texts, tokenizer, target_tokenizer=other)
    (source,), (target,) = tokenizer.encode(texts[0]), other.encode(texts[1])
    assert target != tokenizer.encode(texts[1][0])
    found = {name: ids.numpy().tolist() for name, ids in inputs.items()}
    assert found == {"source_ids": [[*source, END_ID]], "target_ids": [[BEGIN_ID, *target]]}
    assert labels.numpy().tolist() == [[*target, END_ID]]
    assert {t.dtype for t in (*inputs.values(), labels)} == {tf.int32}
    options = {"target_tokenizer": other, "sampling_alpha": 0.1}
    ((inputs, labels),) = kt.translation_batches(*texts, tokenizer, **options)
    found = tokenizer.decode(inputs["source_ids"].numpy()), other.decode(labels.numpy())
    assert found == texts


@pytest.mark.full
@given(
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=97),
    tokens=st.integers(126, 500),  # a batch of 3 holds a number, 40 ids and the end token
    multiple=st.sampled_from([1, 2, 3]),
    static=st.booleans(),
    boundaries=st.sampled_from([None, [5, 11, 42], [42], [3, 1009]]),
    shuffle=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_every_pair_comes_once_an_epoch_within_the_limit(
    lengths, tokens, multiple, static, boundaries, shuffle, epoch
):
    source = [f"{4 + n} " + "500 " * s for n, (s, _) in enumerate(lengths)]  # 4 + n marks pairs
    target = [f"{4 + n} " + "600 " * t for n, (_, t) in enumerate(lengths)]
    batches = kt.translation_batches(
        source,
        target,
        Numbers(),
        tokens,
        max_length=None,
        batch_multiple=multiple,
        static_shapes=static,
        bucket_boundaries=boundaries,
        shuffle=shuffle,
    ).batches
    found = list(batches.iterate(epoch))
    sides = (map(tuple, Numbers().encode(side)) for side in (source, target))
    assert sorted(pairs_of(found)) == sorted(zip(*sides, strict=True))
    assert len(found) == batches.batches_per_epoch
    for inputs, labels in found:
        rows, width = inputs["source_ids"].shape
        assert rows % multiple == 0
        assert rows * max(width, labels.shape[1]) <= tokens
        assert inputs["target_ids"].shape == labels.shape
    if static:
        assert all(inputs["source_ids"].shape == labels.shape for inputs, labels in found)
        widths = {labels.shape[1] for _, labels in found}
        assert len({labels.shape for _, labels in found}) == len(widths)
        assert boundaries is None or len(widths) <= len(boundaries)


def test_similar_lengths_come_together(tokenizer):
    # Compared with batches in file order, as the paper's grouping intends.
    train = kt.translation_batches(SOURCE * 11, TARGET * 11, tokenizer, 397)
    tokens = train.batches.report.tokens["target"]
    padded = sum(labels.shape[0] * labels.shape[1] for _, labels in train)
    lengths = [len(ids) + 1 for ids in tokenizer.encode(TARGET * 11)]
    unsorted = sum(13 * max(lengths[i : i + 13]) for i in range(0, len(lengths), 13))
    assert tokens == sum(lengths)
    assert padded < 1.35 * tokens < unsorted
    valid = kt.translation_batches(SOURCE, TARGET, tokenizer, 97, shuffle=False)
    widths = [max(i["source_ids"].shape[1], labels.shape[1]) for i, labels in valid]
    assert widths == sorted(widths) and widths[0] < widths[-1]


def test_static_shapes_are_the_buckets(tokenizer):
    options = {"static_shapes": True, "bucket_boundaries": [13, 29]}
    train = kt.translation_batches(SOURCE, TARGET, tokenizer, 211, **options)
    shapes = {tuple(labels.shape) for _, labels in train}
    assert shapes == {(211 // 13, 13), (211 // 29, 29)}
    assert train.batches.count_shapes() == 2


def test_shapes_are_counted_without_a_step_of_the_epoch(tokenizer):
    batches = kt.translation_batches(SOURCE, TARGET, tokenizer, 211).batches
    shapes = [(*(x.shape for x in inputs.values()), y.shape) for inputs, y in batches.iterate(0)]
    assert batches.count_shapes() == len(set(shapes)) > batches.count_shapes(3) > 0
    assert batches.epoch == 0


@pytest.mark.parametrize(
    ("options", "jit_compile", "warns"),
    [({}, True, True), ({"static_shapes": True}, True, False), ({}, False, False)],
)
def test_fit_warns_of_many_shapes_that_xla_compiles(
    tokenizer, monkeypatch, recwarn, options, jit_compile, warns
):
    lines = ["a " * n for n in range(1, 40)]
    train = kt.translation_batches(lines, lines, tokenizer, 97, max_length=None, **options)
    model = kt.Transformer(tokenizer.vocab_size, 1, 6, 2, 7)
    model.compile("adam", kt.SequenceCrossentropy(), jit_compile=jit_compile)
    monkeypatch.setattr(keras.Model, "fit", lambda *args, **kwargs: None)
    model.fit(train)
    texts = [str(one.message) for one in recwarn if "XLA compiles" in str(one.message)]
    count = train.batches.count_shapes()
    assert len(texts) == warns
    assert not warns or (f" {count} shapes. Pass static_shapes=True" in texts[0])


@pytest.mark.parametrize("boundaries", [None, [4, 7, 60], [3, 5, 8, 12, 60]])
@pytest.mark.parametrize("multiple", [1, 2, 4])
def test_few_rows_of_changing_lengths_keep_number_and_limit_of_batches(multiple, boundaries):
    options = BatchOptions(240, 60, bucket_boundaries=boundaries, batch_multiple=multiple)

    def draw(texts, rng):
        return [np.ones(rng.integers(n, 3 * n + 1), "int32") for n in texts]

    def seen(*batch):
        return batch

    for count, seed in itertools.product([1, 2, 3, 5, 9, 14], range(6)):
        texts = np.random.default_rng(seed).integers(1, 12, count).tolist()
        rows = Rows.of([np.ones(n, "int32") for n in texts], texts=texts, draw=draw)
        plan = BatchPlan(Examples("row", {"ids": rows}, np.zeros(count, bool), seen, seen), options)
        for epoch in range(6):
            batches = [inputs for inputs, _ in plan.iterate(epoch)]
            assert len(batches) == plan.batches_per_epoch
            assert all(len(indices) for _, indices, _, _ in batches)
            assert sorted(np.concatenate([b[1] for b in batches])) == list(range(count))
            for examples, indices, size, _ in batches:
                assert size * examples.lengths[indices].max() <= 240


@pytest.mark.parametrize("count", [53, 61, 64])
def test_only_the_last_batch_of_a_bucket_has_rows_of_padding(tokenizer, count):
    """Every other batch is a multiple of `batch_multiple`."""
    lines = ["a b c"] * count  # one bucket
    rows = len(tokenizer.encode(lines[0])) + 1
    options = {"tokens_per_batch": 12 * rows, "batch_multiple": 4}
    data = kt.translation_batches(lines, lines, tokenizer, **options).batches
    sizes = [len(inputs["source_ids"]) for inputs, *_ in data.iterate(0)]
    assert len(sizes) > 3 and all(size % 4 == 0 for size in sizes)
    assert sum(sizes) == -(-count // 4) * 4


def test_an_interrupted_pass_does_not_count(tokenizer):
    train = kt.translation_batches(SOURCE, TARGET, tokenizer, 97)
    batches = iter(train)
    for _ in range(3):
        next(batches)
    assert train.batches.epoch == 0
    train.batches.seek(4)
    assert len(list(batches)) == train.batches.batches_per_epoch - 3
    assert train.batches.epoch == 4  # the old pass no longer changes it after `seek`


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="passes of tf.data")
def test_fit_reads_the_epochs_without_a_warning(tokenizer):
    ids = keras.Input([None], dtype="int32", name="target_ids")
    logits = keras.layers.Embedding(tokenizer.vocab_size, tokenizer.vocab_size)(ids)
    model = keras.Model({"target_ids": ids}, logits)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    train = kt.translation_batches(SOURCE, TARGET, tokenizer, 397)
    batches = train.batches
    data = train.map(lambda inputs, labels: ({"target_ids": inputs["target_ids"]}, labels))
    seek = keras.callbacks.LambdaCallback(on_epoch_begin=lambda e, _: batches.seek(e))
    with mock.patch.object(batches, "iterate", wraps=batches.iterate) as iterate:
        model.fit(data, epochs=5, initial_epoch=2, callbacks=[seek], verbose=0)  # shuffle=True
    begun = [call.args[0] for call in iterate.call_args_list]
    assert sorted(set(begun)) in ([2, 3, 4], [0, 2, 3, 4])  # fit may peek before it begins
    assert begun[-3:] == [2, 3, 4] and batches.epoch == 5


def test_too_long_samples_fall_back_to_the_best_segmentation(tokenizer):
    longest = max(len(ids) for ids in tokenizer.encode(SOURCE + TARGET)) + 1
    options = {"max_length": longest, "sampling_alpha": 0.01}
    train = kt.translation_batches(SOURCE, TARGET, tokenizer, 10 * longest, **options)
    assert train.batches.report.overlong == 0
    for _ in range(3):
        pairs = pairs_of(train)
        assert len(pairs) == len(SOURCE)
        assert max(len(ids) for pair in pairs for ids in pair) < longest


def test_the_report_counts_all_pairs(tokenizer, caplog):
    source = ["a hat", "", "a hat", "  ", "a hat", "a", "a " * 97, "hat"]
    target = ["ein hut", "x", "ein hut", "", "hut", "", "ein", "hut " * 53]
    with caplog.at_level(logging.INFO):
        report = kt.translation_batches(source, target, tokenizer, max_length=41).batches.report
        kt.translation_batches(SOURCE, TARGET, tokenizer)  # complete, so no warning
    assert (report.read, report.kept, report.empty, report.overlong) == (8, 3, 3, 2)
    assert report.duplicates == 1
    kept = {"source": ["a hat"] * 3, "target": ["ein hut", "ein hut", "hut"]}
    tokens = {side: sum(len(tokenizer.encode(s)) + 1 for s in kept[side]) for side in kept}
    assert report.tokens == tokens
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]
    assert caplog.records[0].message == str(report)
    assert "3 empty, 2 longer than 41 tokens" in str(report)


def test_limits_count_the_end_token_and_include_batch_and_bucket(tokenizer):
    pair = ["7 a hat"], ["7 ein hut"]
    length = max(len(tokenizer.encode(side[0])) for side in pair)
    fits = kt.translation_batches(*pair, tokenizer, max_length=length + 1)
    assert fits.batches.report.kept == 1
    for options in (
        {"tokens_per_batch": 101, "max_length": None},
        {"tokens_per_batch": 8192, "max_length": None, "batch_multiple": 97},
        {"tokens_per_batch": 8192, "bucket_boundaries": [11, 23]},
    ):
        train = kt.translation_batches(["a", "hut " * 1009], ["a", "a"], tokenizer, **options)
        assert train.batches.report.overlong == 1
    with pytest.raises(ValueError, match=f"1 longer than {length} tokens"):
        kt.translation_batches(*pair, tokenizer, max_length=length)


def test_batches_past_the_end_are_refused(tokenizer):
    batches = kt.translation_batches(SOURCE, TARGET, tokenizer, 97).batches
    count = batches.batches_per_epoch
    batches.seek(0, count)
    with pytest.raises(ValueError, match="epochs are counted from 0, got -1"):
        batches.seek(-1)
    with pytest.raises(ValueError, match=f"an epoch has {count} batches, .* resume at {count + 1}"):
        batches.seek(0, count + 1)
    with pytest.raises(ValueError, match="example .* has .* tokens, .* takes 7 at most"):
        BatchPlan(batches._plan.examples, kt.BatchOptions(7))


def test_replicas_together_see_every_pair_once():
    # Another process, because logical CPUs must be set before TensorFlow starts.
    code = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
import keras_transformer as kt
lines = [f"{i} " + "hut " * (i % 7) for i in range(101)]
tokenizer = kt.Tokenizer.train(lines, 300, hard_vocab_limit=False)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
for multiple in (1, 2):
    train = kt.translation_batches(lines, lines, tokenizer, 97, batch_multiple=multiple)
    seen, rows = [], []
    for _, labels in strategy.experimental_distribute_dataset(train):
        parts = [part.numpy() for part in strategy.experimental_local_results(labels)]
        seen += [text for part in parts for text in tokenizer.decode(part)]
        rows.append([len(part) for part in parts])
    assert sorted(text for text in seen if text) == sorted(lines), (multiple, seen)
assert all(left == right for left, right in rows), rows
print("once each")
"""
    done = processes.run("-c", code)
    assert done.stdout.strip().endswith("once each"), done.stderr[-2000:]


@pytest.mark.data
def test_an_epoch_of_multi30k_takes_less_than_three_seconds(data_set):
    import time

    folder = data_set("multi30k-bpe")
    files = folder / "train.en.gz", folder / "train.de.gz"
    tokenizer = kt.Tokenizer.train([line for file in files for line in kt.read_lines(file)], 2003)
    train = kt.translation_batches(*files, tokenizer, 4096, undo_bpe=True)
    assert train.batches.report.kept == 29_000
    begin = time.process_time()  # of this process: other load does not count
    assert sum(labels.shape[0] for _, labels in train) == 29_000
    assert time.process_time() - begin < 3


def test_sources_are_annotated_by_a_glossary(tmp_path):
    sources, targets = ["a red hat", "a hat", "a cat"], ["ein roter Hut", "ein Helm", "eine Katze"]
    tokenizer = kt.Tokenizer.train(sources + targets, 300, hard_vocab_limit=False)
    (tmp_path / "words.tsv").write_text("hat\tHut\ncat\tKatze\n", encoding="utf-8")
    for glossary in (tmp_path / "words.tsv", kt.Glossary({"hat": "Hut", "cat": "Katze"})):
        dataset = kt.translation_batches(
            sources, targets, tokenizer, glossary=glossary, shuffle=False
        )
        rows = [row for inputs, _ in dataset for row in np.asarray(inputs["source_ids"])]
        texts = [tokenizer.decode(row[row > 3].tolist()) for row in rows]
        assert sorted(texts) == ["a cat \u27e6Katze\u27e7", "a hat", "a red hat \u27e6Hut\u27e7"]
