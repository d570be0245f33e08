"""Text files: plain and gzip, line ends, clear errors; sentences of words."""

import gzip

import pytest

from keras_transformer.special_ids import UNKNOWN_ID
from keras_transformer.text.corpora import (
    encode_words,
    join_words,
    read_lines,
    read_parallel,
    without_bpe,
)


def test_plain_and_gzip_hold_the_same_lines(tmp_path):
    lines = ["a", "", "ü 😀", "a\u2028b\x85c", "\x00", " d "]
    content = "\r\n".join(lines).encode() + b"\n"
    (tmp_path / "plain.en").write_bytes(b"\xef\xbb\xbf" + content)
    (tmp_path / "packed.en.gz").write_bytes(gzip.compress(content))
    assert read_lines(tmp_path / "plain.en") == lines
    assert read_lines(str(tmp_path / "packed.en.gz")) == lines
    assert read_parallel(tmp_path / "plain.en", lines) == (lines, lines)


def test_the_last_line_needs_no_end_and_an_empty_file_has_no_line(tmp_path):
    path = tmp_path / "train.en"
    for content, lines in (
        (b"a\nb", ["a", "b"]),
        (b"a\n\n", ["a", ""]),
        (b"", []),
        (b"\n", [""]),
    ):
        path.write_bytes(content)
        assert read_lines(path) == lines


def test_bpe_is_undone(tmp_path):
    assert without_bpe("a gir@@ af@@ fe , m@@ @ @@") == "a giraffe , m@ "
    (tmp_path / "train.en").write_text("a gir@@ affe\nno cut\n")
    assert read_lines(tmp_path / "train.en", undo_bpe=True) == ["a giraffe", "no cut"]
    assert read_parallel(["x@@ y"], ["z"], undo_bpe=True) == (["xy"], ["z"])


PACKED = gzip.compress(b"a\n" * 5000)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a\nb\nc\xfcd\n", ", line 3: not UTF-8 at byte 1 of the line"),
        *(
            (content, ": broken gzip file")
            for content in (PACKED[:-9], PACKED[:30], b"\x1f\x8bx", PACKED[:-8] + b"12345678")
        ),
    ],
)
def test_errors_name_a_broken_file_and_the_place(tmp_path, content, problem):
    (tmp_path / "train.en.gz").write_bytes(content)
    with pytest.raises(ValueError, match=rf"train\.en\.gz{problem}"):
        read_lines(tmp_path / "train.en.gz")


def test_errors_name_different_line_counts_and_the_first_extra_line(tmp_path):
    (tmp_path / "train.en").write_text("a\nb\nc\n")
    (tmp_path / "train.de").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"train\.en has 3, .*train\.de has 2\. Line 3 of .*\.en"):
        read_parallel(tmp_path / "train.en", tmp_path / "train.de")
    with pytest.raises(ValueError, match="source has 1, target has 2. Line 2 of target"):
        read_parallel(["a"], ["a", "b"])


def test_items_that_are_not_text_are_refused():
    with pytest.raises(TypeError, match="`target` must be .* got bytes as line 2"):
        read_parallel(["a", "b"], ["a", b"b"])


def test_each_word_is_encoded_separately(tokenizer):
    words = ["Ein", "Mann", "😀😀", ",", "zwölf"]
    ids, first = encode_words(tokenizer, words)
    ends = [*first[1:], len(ids)]
    assert [ids[i:j] for i, j in zip(first, ends, strict=True)] == tokenizer.encode(words)
    assert first[0] == 0 and len(ids) > len(words)


def test_a_word_without_pieces_has_the_unknown_id(tokenizer):
    ids, first = encode_words(tokenizer, ["a", "", "b"])
    assert ids[first[1]] == UNKNOWN_ID and first[2] == first[1] + 1
    assert encode_words(tokenizer, []) == ([], [])
    assert join_words([[5, 6], [], [7]]) == ([5, 6, UNKNOWN_ID, 7], [0, 2, 3])
    # A BERT tokenizer begins each text with the begin token; a sentence keeps one.
    assert join_words([[2, 5, 6], [2], [2, 7]]) == ([2, 5, 6, UNKNOWN_ID, 7], [1, 3, 4])
    with pytest.raises(TypeError, match="`words` must be an iterable of strings, got one str"):
        encode_words(tokenizer, "a man")
