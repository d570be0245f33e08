"""The tokenizer inside TensorFlow graphs against the tokenizer in Python."""

import copy

import numpy as np
import pytest
from helpers.texts import LINES, ODD, any_text
from hypothesis import example, given
from hypothesis import strategies as st

from keras_transformer.special_ids import END_ID, PAD_ID
from keras_transformer.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tf():
    pytest.importorskip("tensorflow_text")
    return pytest.importorskip("tensorflow")


@given(lines=st.lists(any_text, min_size=1, max_size=31))
@example(lines=LINES + ODD)
def test_gives_the_same_ids_and_text(tokenizer, tf, lines):
    ids = tokenizer.tf_encode(tf.constant([line.encode() for line in lines]))
    assert ids.dtype == tf.int32 and ids.to_list() == tokenizer.encode(lines)
    assert [line.decode() for line in tokenizer.tf_decode(ids).numpy()] == lines


@given(st.data())
def test_decodes_any_ids_of_a_model_equally(tokenizer, tf, data):
    # Without bytes: for invalid UTF-8, the sides write different numbers of U+FFFD.
    ids = st.sampled_from([*range(4), *range(260, tokenizer.vocab_size)])
    rows = data.draw(st.lists(st.lists(ids, min_size=7, max_size=7), min_size=1, max_size=7))
    decoded = [text.decode() for text in tokenizer.tf_decode(tf.constant(rows)).numpy()]
    assert decoded == tokenizer.decode(rows)


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("normalization", ["nmt_nfkc", "identity"])
def test_decodes_spaces_in_front_as_python_does(normalization, prefix):
    from sentencepiece import sentencepiece_model_pb2

    lines = ["the quick fox", "a b c d"] * 5
    options = {"normalization": normalization, "hard_vocab_limit": False}
    tokenizer = Tokenizer.train(lines, 300, **options)
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    proto.normalizer_spec.add_dummy_prefix = prefix
    tokenizer = Tokenizer(proto.SerializeToString())
    space, letter = tokenizer.pieces.index("\u2581"), tokenizer.pieces.index("a")
    rows = [[space] * n + [letter, space] for n in range(4)] + [[1, space, letter, 0], [space] * 4]
    rows = [[*row, *[0] * (6 - len(row))] for row in rows]
    assert [text.decode() for text in tokenizer.tf_decode(rows).numpy()] == tokenizer.decode(rows)


def test_keeps_the_axes_of_a_search_result(tokenizer, tf):
    rows = [[*ids, END_ID, PAD_ID, PAD_ID] for ids in tokenizer.encode(["a hat"] * 6)]
    ids = tf.reshape(tf.constant(rows), [2, 3, -1])
    assert tokenizer.tf_decode(ids).numpy().tolist() == [[b"a hat"] * 3] * 2
    assert tokenizer.tf_decode(ids[0, 0]).numpy() == b"a hat"
    assert tokenizer.decode(ids[0, 0]) == "a hat" and tokenizer.decode(ids[0]) == ["a hat"] * 3
    assert tokenizer.tf_decode(ids[..., :0]).numpy().tolist() == [[b""] * 3] * 2
    assert tokenizer.tf_decode(ids[:0, :, :0]).numpy().shape == (0, 3)
    assert tokenizer.tf_encode(tf.constant("a hat")).numpy().tolist() == rows[0][:-3]


def test_works_in_a_dataset(tokenizer, tf):
    copied = copy.deepcopy(tokenizer)  # its graph side is made while tracing
    dataset = tf.data.Dataset.from_tensor_slices(LINES).batch(2).map(copied.tf_encode)
    rows = [row for batch in dataset for row in batch.to_list()]
    assert rows == tokenizer.encode(LINES)


def test_works_after_a_new_seed(tokenizer, tf):
    # A new seed empties TensorFlow's caches, and all that exists only there.
    for seed in (3, 5):
        tf.random.set_seed(seed)
        ids = tokenizer.tf_encode(tf.constant(LINES))
        assert ids.to_list() == tokenizer.encode(LINES)
        assert tokenizer.tf_decode(ids).numpy()[0].decode() == LINES[0]


def test_survives_a_saved_model(tokenizer, tf, tmp_path):
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def echo(lines):
        return tokenizer.tf_decode(tokenizer.tf_encode(lines))

    module.echo = echo
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.echo(tf.constant(ODD)).numpy().tolist() == [line.encode() for line in ODD]


def test_ties_are_broken_alike(tf):
    # "1000" is "1 0 00" or "1 00 0": equally probable pieces in another order. With scores
    # that float32 rounds, a third of these sentences are cut differently.
    rng = np.random.default_rng(0)

    def words(count):
        return " ".join(rng.choice("hat hund haus men red bush".split(), count))

    def number(zeros, below=99):
        return f"{rng.integers(1, below)}{'0' * zeros}"

    lines = [f"{words(5)} {number(2)} {number(1, 9)}" for _ in range(400)]
    probes = [
        f"{words(rng.integers(1, 9))} {number(zeros)} {number(zeros + 2)} hat"
        for zeros in (1, 3, 5, 7)
        for _ in range(200)
    ]
    tokenizer = Tokenizer.train(lines, 330, hard_vocab_limit=False)
    ids = tokenizer.encode(probes)
    assert tokenizer.tf_encode(tf.constant(probes)).to_list() == ids


@pytest.mark.data
def test_agrees_on_multi30k(tf, data_set):
    from keras_transformer.text.corpora import read_lines

    lines = read_lines(data_set("multi30k-bpe") / "train.de.gz", undo_bpe=True)
    tokenizer = Tokenizer.train(lines[:5003], 2003)
    ids = tokenizer.encode(lines)
    assert tokenizer.tf_encode(tf.constant(lines)).to_list() == ids
    assert tokenizer.decode(ids) == lines
