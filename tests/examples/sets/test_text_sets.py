"""Sets of parallel text: files in a folder, known corpora, number words."""

import gzip
import pathlib

import pytest
from support.sets import known_corpora
from support.sets.number_words import number_words
from support.sets.text_sets import TextSets, read_sets


def parallel(folder, name, lines, packed=False):
    for language in ("en", "de"):
        content = "".join(f"{line} {language}\n" for line in lines).encode()
        path = folder / f"{name}.{language}{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)


def test_files_are_found_packed_or_plain(tmp_path):
    parallel(tmp_path, "train", ["a", "b"], packed=True)
    parallel(tmp_path, "val", ["c@@ d"])
    parallel(tmp_path, "test.2016", ["e"], packed=True)
    parallel(tmp_path, "test_2017", ["f", "g"])
    assert read_sets(tmp_path) == TextSets(
        [["a en", "b en"], ["a de", "b de"]],
        [["c@@ d en"], ["c@@ d de"]],
        {
            "test.2016": [["e en"], ["e de"]],
            "test_2017": [["f en", "g en"], ["f de", "g de"]],
        },
    )


def test_files_have_the_names_that_are_asked_for(tmp_path):
    parallel(tmp_path, "one", ["a", "b"])
    parallel(tmp_path, "two", ["c@@ d"])
    sets = read_sets(tmp_path, "de", "en", train="two", valid="one", tests=["two"], limit=1)
    assert sets == TextSets(
        [["c@@ d de"], ["c@@ d en"]], [["a de"], ["a en"]], {"two": [["c@@ d de"], ["c@@ d en"]]}
    )
    sets = read_sets(tmp_path, train="one", valid="two", tests=[], undo_bpe=True)
    assert sets.valid == [["cd en"], ["cd de"]] and sets.tests == {}


def test_a_plain_file_takes_the_place_of_a_packed_one(tmp_path):
    parallel(tmp_path, "train", ["packed"], packed=True)
    parallel(tmp_path, "train", ["plain"])
    assert read_sets(tmp_path, valid="train").train == [["plain en"], ["plain de"]]


def test_missing_files_are_named(tmp_path):
    parallel(tmp_path, "train", ["a"])
    with pytest.raises(ValueError, match=r"no valid or val or dev with both \.en and \.de"):
        read_sets(tmp_path)
    parallel(tmp_path, "dev", ["b"])
    (tmp_path / "test.en").write_text("no counterpart\n", "utf-8")
    with pytest.raises(ValueError, match="has no test with both"):
        read_sets(tmp_path)
    with pytest.raises(ValueError, match=r"is no folder, nor one of \['multi30k'"):
        read_sets(tmp_path / "nowhere")


def test_empty_files_are_named(tmp_path):
    parallel(tmp_path, "train", ["a"])
    parallel(tmp_path, "valid", [])
    with pytest.raises(ValueError, match=r"valid\.en and .*valid\.de are empty"):
        read_sets(tmp_path)


def test_known_corpus_is_fetched_by_name(tmp_path, monkeypatch):
    def fetch(name, folder):
        folder.mkdir(parents=True)
        for part in ("train", "val"):
            parallel(folder, part, [name])

    monkeypatch.setattr(known_corpora, "fetch_corpus", fetch)
    monkeypatch.setattr(pathlib.Path, "home", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    sets = read_sets("multi30k")
    assert sets.train == [["multi30k en"], ["multi30k de"]] and sets.tests == {}


def test_numbers_of_one_set_are_in_no_other():
    pytest.importorskip("num2words")
    train, valid, tests = number_words(limit=701)
    sources = [lines for lines, _ in (train, valid, tests["test"])]
    assert [len(lines) for lines in sources] == [701, 500, 500]
    assert len(set().union(*sources)) == 1701
    assert len(number_words(count=2000).train[0]) == 1000


def test_number_words_are_the_same_number_in_both_languages():
    pytest.importorskip("num2words")
    sets = number_words("de", "en", count=2000)
    pairs = dict(zip(*sets.train, strict=True)) | dict(zip(*sets.valid, strict=True))
    pairs |= dict(zip(*sets.tests["test"], strict=True))
    assert pairs["siebzehn"] == "seventeen" and len(pairs) == 2000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "tlh"}, r"num2words has \[.*'de'.*\], got en and tlh"),
        ({"count": 1999}, r"count must lie in \[2000, 1000000\], got 1999"),
        ({"count": 1_000_001}, "got 1000001"),
    ],
)
def test_number_words_refuse_what_they_do_not_have(options, message):
    pytest.importorskip("num2words")
    with pytest.raises(ValueError, match=message):
        number_words(**options)
