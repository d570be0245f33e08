"""Documents, one a row, and windows of a long text."""

import gzip
import re

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

from keras_transformer.data.language_model import language_model_batches  # noqa: E402
from keras_transformer.special_ids import BEGIN_ID, END_ID  # noqa: E402
from keras_transformer.text.tokenizer import Tokenizer  # noqa: E402

TEXT = "First:\nTo be, or not to be!\n\nSecond:\nThat is the question.\n"


@pytest.fixture(scope="module")
def characters():
    return Tokenizer.train([TEXT], 400, model_type="char")


def arrays(data):
    batches = [[part.numpy() for part in batch] for batch in data]
    return [np.concatenate([batch[i] for batch in batches]) for i in (0, 1)]


def test_a_document_has_begin_and_end_tokens(characters):
    ((target_ids, labels),) = language_model_batches(["To be"], characters)
    ids = characters.encode("To be")
    assert target_ids.numpy().tolist() == [[BEGIN_ID, *ids]]
    assert labels.numpy().tolist() == [[*ids, END_ID]]


def test_files_hold_a_document_a_line_or_one_document_with_windows(characters, tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    report = language_model_batches(path, characters).batches.report
    assert (report.read, report.kept, report.empty) == (5, 4, 1)
    options = {"window": 9, "shuffle": False}
    windows = arrays(language_model_batches(str(path), characters, **options))
    given = arrays(language_model_batches([TEXT], characters, **options))
    np.testing.assert_array_equal(windows, given)


@pytest.mark.parametrize("begin", [True, False])
def test_windows_in_order_predict_each_token_once(characters, begin):
    ids = [*characters.encode(TEXT), END_ID]
    data = language_model_batches([TEXT], characters, 30, window=10, begin=begin, shuffle=False)
    target_ids, labels = arrays(data)
    predicted = ids[0 if begin else 1 :]
    count = len(predicted) // 10
    assert labels.ravel().tolist() == predicted[: 10 * count]
    assert len(target_ids) == data.batches.report.kept == count
    if begin:
        assert (target_ids[:, 0] == BEGIN_ID).all()
        np.testing.assert_array_equal(target_ids[:, 1:], labels[:, :-1])
    else:
        assert target_ids.ravel().tolist() == ids[: 10 * count]


@pytest.mark.full
def test_shuffled_windows_differ_by_epoch_and_cover_the_text(characters):
    ids = [*characters.encode(TEXT), END_ID]
    data = language_model_batches([TEXT], characters, 24, window=8, seed=3)
    starts, seen = [], set()
    for _ in range(60):
        rows = arrays(data)[1].tolist()
        assert len(rows) == data.batches.report.kept == (len(ids) - 8) // 8 + 1
        found = sorted(next(i for i in range(len(ids)) if ids[i : i + 8] == row) for row in rows)
        starts.append(found)
        seen |= set(found)
    assert starts[0] != starts[1]
    assert seen == set(range(len(ids) - 7))
    gaps = np.diff(starts)
    assert gaps.max() < 16  # one in each window, so no gap is large


def test_the_end_token_separates_documents_in_windows(characters):
    data = language_model_batches(["To be", "or not"], characters, window=4, shuffle=False)
    tokens = arrays(data)[1].ravel().tolist()
    first, second = characters.encode(["To be", "or not"])
    assert tokens == [*first, END_ID, *second, END_ID][: len(tokens)]


def test_each_character_has_an_id(characters):
    assert len(characters.encode("to be")) == 6  # and the space before the first word
    assert characters.decode(characters.encode(TEXT)) == TEXT
    assert characters.vocab_size == 260 + len(set(TEXT))
    with pytest.raises(ValueError, match="vocab_size=99 is too small: .* need 260"):
        Tokenizer.train([TEXT], 99, model_type="char")


@pytest.mark.parametrize("text", ["the cat sat on the mat", "ab", "one two three four"])
def test_the_advised_size_of_a_text_that_repeats_itself_works(text):
    lines, size = [text] * 2400, 10
    for _ in range(2):  # too small, too large
        with pytest.raises(ValueError, match="vocab_size") as found:
            Tokenizer.train(lines, size)
        size = int(re.search(r"Pass vocab_size=(\d+)", str(found.value))[1])
    assert "says the same" in str(found.value)
    assert Tokenizer.train(lines, size).vocab_size == size
