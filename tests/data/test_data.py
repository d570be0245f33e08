"""Files, batches and their order: every pair once an epoch, exact resumption, clear refusals."""

import gzip
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import processes

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

from keras_transformer.data.batches import Batching, Ragged, TokenBatches  # noqa: E402
from keras_transformer.data.translation import Pairs, translation_batches  # noqa: E402
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID  # noqa: E402
from keras_transformer.text.corpora import (  # noqa: E402
    read_parallel,
)
from keras_transformer.text.tokenizer import Tokenizer  # noqa: E402

RNG = np.random.default_rng(20170612)
SOURCE = [f"{i} " + "a hat " * int(RNG.integers(1, 8)) for i in range(211)]
TARGET = [f"{i} " + "ein hut " * int(RNG.integers(1, 8)) for i in range(211)]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SOURCE + TARGET, 307, hard_vocab_limit=False)


def unpadded(rows):
    return [[int(i) for i in row if i != PAD_ID] for row in rows]


def pairs_of(batches):
    """The (source, target) ids of batches, marks taken off; rows of padding left out."""
    pairs = []
    for inputs, labels in batches:
        sources = unpadded(np.asarray(inputs["source_ids"]))
        inputs = unpadded(np.asarray(inputs["target_ids"]))
        labels = unpadded(np.asarray(labels))
        for source, shifted, label in zip(sources, inputs, labels, strict=True):
            if not source:
                assert not shifted and not label
                continue
            assert source[-1] == label[-1] == END_ID and shifted[0] == BEGIN_ID
            assert shifted[1:] == label[:-1]
            pairs.append((tuple(source[:-1]), tuple(label[:-1])))
    return pairs


def equal(left, right):
    left, right = (tf.nest.flatten(list(side)) for side in (left, right))
    return len(left) == len(right) and all(
        np.array_equal(a, b) for a, b in zip(left, right, strict=True)
    )


class TestBatches:
    def test_one_pair_literally(self, tokenizer):
        (inputs, labels), *rest = translation_batches(["7 a hat"], ["7 ein hut hut"], tokenizer)
        source, target = tokenizer.encode(["7 a hat", "7 ein hut hut"])
        assert not rest
        assert inputs["source_ids"].numpy().tolist() == [[*source, END_ID]]
        assert inputs["target_ids"].numpy().tolist() == [[BEGIN_ID, *target]]
        assert labels.numpy().tolist() == [[*target, END_ID]]
        assert {t.dtype for t in (*inputs.values(), labels)} == {tf.int32}

    def test_files_give_what_sequences_give(self, tokenizer, tmp_path):
        (tmp_path / "train.en").write_text("\n".join(SOURCE) + "\n")
        (tmp_path / "train.de.gz").write_bytes(gzip.compress("\n".join(TARGET).encode()))
        from_files = translation_batches(
            str(tmp_path / "train.en"), tmp_path / "train.de.gz", tokenizer, 97
        )
        assert equal(from_files, translation_batches(SOURCE, TARGET, tokenizer, 97))

    @given(
        lengths=st.lists(
            st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=97
        ),
        tokens=st.integers(126, 500),  # a batch of 3 holds a number, 40 ids and the end token
        multiple=st.sampled_from([1, 2, 3]),
        static=st.booleans(),
        boundaries=st.sampled_from([None, [5, 11, 41], [41], [3, 1009]]),
        shuffle=st.booleans(),
        epoch=st.integers(0, 5),
    )
    def test_every_pair_comes_once_an_epoch_within_the_limit(
        self, lengths, tokens, multiple, static, boundaries, shuffle, epoch
    ):
        numbers = [[4 + n] for n in range(len(lengths))]  # the first id tells pairs apart
        source = [n + [500] * s for n, (s, _) in zip(numbers, lengths, strict=True)]
        target = [n + [600] * t for n, (_, t) in zip(numbers, lengths, strict=True)]
        if boundaries == [41]:  # 40 and the number are one token too many
            source, target = ([row[:40] for row in side] for side in (source, target))
        if boundaries == [5, 11, 41]:
            source, target = ([row[:40] for row in side] for side in (source, target))
        pairs = Pairs(*(Ragged([[*row, END_ID] for row in side]) for side in (source, target)))
        batching = Batching(
            tokens,
            max_length=None,
            batch_multiple=multiple,
            static_shapes=static,
            bucket_boundaries=boundaries,
            shuffle=shuffle,
        )
        plan = TokenBatches(pairs, batching)
        batches = list(plan.iterate(epoch))
        expected = sorted((tuple(s), tuple(t)) for s, t in zip(source, target, strict=True))
        assert sorted(pairs_of(batches)) == expected
        assert len(batches) == plan.batches_per_epoch
        for inputs, labels in batches:
            rows, width = inputs["source_ids"].shape
            assert rows % multiple == 0
            assert rows * max(width, labels.shape[1]) <= tokens
            assert inputs["target_ids"].shape == labels.shape
        if static:
            assert len({b[1].shape for b in batches}) <= len(plan._boundaries)
            assert all(b[0]["source_ids"].shape == b[1].shape for b in batches)

    def test_similar_lengths_come_together(self, tokenizer):
        # Against batches in the order of the file, as the paper's grouping is meant.
        train = translation_batches(SOURCE * 11, TARGET * 11, tokenizer, 397)
        report = train.batches.report
        padded = sum(labels.shape[0] * labels.shape[1] for _, labels in train)
        lengths = [len(ids) + 1 for ids in tokenizer.encode(TARGET * 11)]
        unsorted = sum(13 * max(lengths[i : i + 13]) for i in range(0, len(lengths), 13))
        assert report.target_tokens == sum(lengths)
        assert padded < 1.35 * report.target_tokens < unsorted

    def test_no_shape_but_the_buckets_with_static_shapes(self, tokenizer):
        train = translation_batches(
            SOURCE, TARGET, tokenizer, 211, static_shapes=True, bucket_boundaries=[13, 29]
        )
        shapes = {tuple(labels.shape) for _, labels in train}
        assert shapes == {(211 // 13, 13), (211 // 29, 29)}

    def test_cardinality_is_the_number_of_batches_in_each_epoch(self, tokenizer):
        for options in ({}, {"sampling_alpha": 0.1}, {"batch_multiple": 3}):
            train = translation_batches(SOURCE, TARGET, tokenizer, 97, **options)
            count = int(train.cardinality())
            assert count == train.batches.batches_per_epoch == train.batches.report.batches
            assert [len(list(train)) for _ in range(3)] == [count] * 3


class TestOrder:
    def test_each_pass_is_the_next_epoch_anew_from_the_seed(self, tokenizer):
        first, again, other = (
            translation_batches(SOURCE, TARGET, tokenizer, 97, seed=seed) for seed in (3, 3, 5)
        )
        epochs = [list(first) for _ in range(3)]
        assert first.batches.epoch == 3
        assert not equal(epochs[0], epochs[1]) and not equal(epochs[1], epochs[2])
        assert sorted(pairs_of(epochs[0])) == sorted(pairs_of(epochs[1]))
        assert all(equal(epoch, again) for epoch in epochs)
        assert not equal(epochs[0], other)

    def test_without_shuffling_every_pass_is_the_same(self, tokenizer):
        valid = translation_batches(SOURCE, TARGET, tokenizer, 97, shuffle=False)
        first = list(valid)
        assert equal(first, valid)
        widths = [max(i["source_ids"].shape[1], labels.shape[1]) for i, labels in first]
        assert widths == sorted(widths) and widths[0] < widths[-1]

    @pytest.mark.parametrize("sampling_alpha", [None, 0.2])
    def test_a_killed_run_goes_on_with_exactly_what_it_had_not_seen(
        self, tokenizer, sampling_alpha
    ):
        def build(**options):
            return translation_batches(
                SOURCE, TARGET, tokenizer, 97, sampling_alpha=sampling_alpha, **options
            )

        whole = build()
        epochs = [list(whole) for _ in range(3)]
        resumed = build(initial_epoch=1)
        rest = resumed.batches.rest(1, 7)
        assert int(rest.cardinality()) == len(epochs[1]) - 7
        assert equal(rest, epochs[1][7:]) and equal(rest, epochs[1][7:])
        assert equal(resumed.batches.iterate(2, 5), epochs[2][5:])
        assert equal(resumed, epochs[1]) and equal(resumed, epochs[2])
        resumed.batches.seek(0)
        assert equal(resumed, epochs[0])

    def test_a_run_that_goes_on_in_another_process_has_the_same_batches(self, tokenizer, tmp_path):
        tokenizer.save(tmp_path / "shared.model")
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

    def test_a_pass_broken_off_does_not_count(self, tokenizer):
        train = translation_batches(SOURCE, TARGET, tokenizer, 97)
        batches = iter(train)
        for _ in range(3):
            next(batches)
        assert train.batches.epoch == 0
        train.batches.seek(4)
        assert len(list(batches)) == train.batches.batches_per_epoch - 3
        assert train.batches.epoch == 4  # chosen meanwhile, so the old pass no longer moves it

    def test_fit_walks_through_the_epochs(self, tokenizer):
        keras = pytest.importorskip("keras")
        if keras.backend.backend() != "tensorflow":
            pytest.skip("the passes of fit are those of the TensorFlow backend")
        ids = keras.Input([None], dtype="int32", name="target_ids")
        logits = keras.layers.Embedding(tokenizer.vocab_size, tokenizer.vocab_size)(ids)
        model = keras.Model({"target_ids": ids}, logits)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        train = translation_batches(SOURCE, TARGET, tokenizer, 397)
        begun = []
        iterate = train.batches.iterate

        def noted(epoch, batch=0):
            begun.append(epoch)
            return iterate(epoch, batch)

        train.batches.iterate = noted
        data = train.map(lambda inputs, labels: ({"target_ids": inputs["target_ids"]}, labels))
        seek = keras.callbacks.LambdaCallback(on_epoch_begin=lambda e, _: train.batches.seek(e))
        model.fit(data, epochs=5, initial_epoch=2, callbacks=[seek], verbose=0, shuffle=False)
        assert sorted(set(begun)) in ([2, 3, 4], [0, 2, 3, 4])  # fit may peek before it begins
        assert begun[-3:] == [2, 3, 4]
        assert train.batches.epoch == 5

    def test_samples_differ_by_epoch_and_mean_the_same(self, tokenizer):
        train = translation_batches(SOURCE, TARGET, tokenizer, 97, sampling_alpha=0.2, seed=7)
        text = sorted(zip(SOURCE, TARGET, strict=True))
        epochs = [pairs_of(train) for _ in range(3)]
        assert sorted(epochs[0]) != sorted(epochs[1]) != sorted(epochs[2])
        for epoch in epochs:
            assert sorted((tokenizer.decode(s), tokenizer.decode(t)) for s, t in epoch) == text

    def test_a_sample_too_long_gives_way_to_the_best(self, tokenizer):
        longest = max(len(ids) for ids in tokenizer.encode(SOURCE + TARGET)) + 1
        train = translation_batches(
            SOURCE, TARGET, tokenizer, 10 * longest, max_length=longest, sampling_alpha=0.01
        )
        assert train.batches.report.overlong == 0
        for _ in range(3):
            pairs = pairs_of(train)
            assert len(pairs) == len(SOURCE)
            assert max(len(ids) for pair in pairs for ids in pair) < longest


class TestReport:
    def test_nothing_is_lost_silently(self, tokenizer, caplog):
        source = ["a hat", "", "a hat", "  ", "a hat", "a", "a " * 97, "hat"]
        target = ["ein hut", "x", "ein hut", "", "hut", "", "ein", "hut " * 53]
        with caplog.at_level(logging.INFO):
            train = translation_batches(source, target, tokenizer, max_length=41)
        report = train.batches.report
        assert (report.read, report.kept, report.empty, report.overlong) == (8, 3, 3, 2)
        assert report.duplicates == 1
        kept = tokenizer.encode(["a hat"] * 3), tokenizer.encode(["ein hut", "ein hut", "hut"])
        assert report.source_tokens == sum(len(ids) + 1 for ids in kept[0])
        assert report.target_tokens == sum(len(ids) + 1 for ids in kept[1])
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.message == str(report)
        assert "3 with an empty side, 2 longer than 41 tokens" in str(report)

    def test_nothing_left_out_is_no_warning(self, tokenizer, caplog):
        with caplog.at_level(logging.INFO):
            translation_batches(SOURCE, TARGET, tokenizer)
        assert [record.levelno for record in caplog.records] == [logging.INFO]

    def test_the_limit_counts_the_mark(self, tokenizer):
        length = max(len(tokenizer.encode(line)) for line in ("7 a hat", "7 ein hut"))
        fits = translation_batches(["7 a hat"], ["7 ein hut"], tokenizer, max_length=length + 1)
        assert fits.batches.report.kept == 1
        with pytest.raises(ValueError, match=f"1 longer than {length} tokens"):
            translation_batches(["7 a hat"], ["7 ein hut"], tokenizer, max_length=length)

    def test_batch_and_bucket_limit_length_too(self, tokenizer):
        long = "hut " * 1009
        for options in (
            {"tokens_per_batch": 101, "max_length": None},
            {"tokens_per_batch": 8192, "max_length": None, "batch_multiple": 97},
            {"tokens_per_batch": 8192, "bucket_boundaries": [11, 23]},
        ):
            train = translation_batches(["a", long], ["a", "a"], tokenizer, **options)
            assert train.batches.report.overlong == 1


class TestNonsense:
    def test_empty_files(self, tokenizer, tmp_path):
        (tmp_path / "empty").write_bytes(b"")
        with pytest.raises(ValueError, match="no pair is left of 0"):
            translation_batches(tmp_path / "empty", tmp_path / "empty", tokenizer)
        with pytest.raises(ValueError, match="no pair is left of 2: 2 with an empty side"):
            translation_batches(["", "a"], ["a", " "], tokenizer)

    def test_odd_text_passes_unharmed(self, tokenizer):
        lines = ["\x00", "a\x00b", "مرحبا שלום", "😀 👨‍👩‍👧", "\ufeff", "a\u2028b"]
        train = translation_batches(lines, lines[::-1], tokenizer)
        decoded = {(tokenizer.decode(s), tokenizer.decode(t)) for s, t in pairs_of(train)}
        assert decoded == set(zip(lines, lines[::-1], strict=True))

    def test_a_line_of_ten_thousand_tokens_is_counted_or_kept(self, tokenizer):
        lines = ["日" * 3400, "a"]  # three bytes each
        assert len(tokenizer.encode(lines[0])) > 10_000
        assert translation_batches(lines, lines, tokenizer).batches.report.overlong == 1
        kept = translation_batches(lines, lines, tokenizer, 16_384, max_length=None)
        assert sorted(labels.shape[0] for _, labels in kept) in ([1, 1], [2])
        assert kept.batches.report.kept == 2

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"tokens_per_batch": 0}, "tokens_per_batch must be an int of at least 1, got 0"),
            ({"tokens_per_batch": 8.5}, "tokens_per_batch must be an int of at least 1, got 8.5"),
            ({"batch_multiple": -2}, "batch_multiple must be .* got -2"),
            ({"bucket_boundaries": []}, r"must be increasing positive ints .* got \[\]"),
            ({"bucket_boundaries": [9, 9]}, r"must be increasing positive ints .* got \[9, 9\]"),
            ({"initial_epoch": -1}, "epochs are counted from 0, got -1"),
        ],
    )
    def test_arguments_that_do_not_fit(self, tokenizer, options, message):
        with pytest.raises(ValueError, match=message):
            translation_batches(SOURCE, TARGET, tokenizer, **options)

    def test_resuming_where_no_batch_is(self, tokenizer):
        train = translation_batches(SOURCE, TARGET, tokenizer, 97)
        count = train.batches.batches_per_epoch
        assert list(train.batches.rest(0, count)) == []
        with pytest.raises(
            ValueError, match=f"an epoch has {count} batches, .* go on at {count + 1}"
        ):
            train.batches.rest(0, count + 1)

    def test_a_pair_that_no_batch_holds(self):
        with pytest.raises(ValueError, match="example 1 has 8 tokens, .* takes 7 at most"):
            TokenBatches(Pairs(Ragged([[5], [6]]), Ragged([[5], [6] * 8])), Batching(7))


def test_replicas_together_see_every_pair_once():
    # Two logical CPUs have to be set up before TensorFlow starts, so in a process of its own.
    code = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
from keras_transformer.data.translation import translation_batches
from keras_transformer.text.tokenizer import Tokenizer
lines = [f"{i} " + "hut " * (i % 7) for i in range(101)]
tokenizer = Tokenizer.train(lines, 300, hard_vocab_limit=False)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
for multiple in (1, 2):
    train = translation_batches(lines, lines, tokenizer, 97, batch_multiple=multiple)
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
    sides = read_parallel(folder / "train.en.gz", folder / "train.de.gz", undo_bpe=True)
    tokenizer = Tokenizer.train(sides[0][:5003], 2003)
    train = translation_batches(*sides, tokenizer, 4096)
    assert train.batches.report.kept == 29_000
    begin = time.process_time()  # of this process: other load does not count
    assert sum(labels.shape[0] for _, labels in train) == 29_000
    assert time.process_time() - begin < 3
