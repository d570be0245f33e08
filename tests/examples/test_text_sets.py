"""Sets of text: readers of files, known corpora, and separate sets."""

import gzip
import hashlib
import json
import lzma
import os
import pathlib

import pytest
from helpers.example_files import parallel, write
from support.sets import known_corpora, labelled_texts
from support.sets.debian import read_synopses
from support.sets.known_corpora import CORPORA, fetch_corpus
from support.sets.number_words import number_words
from support.sets.text_sets import TextSets, read_sets

from keras_transformer.text.corpora import read_lines

ENTRY = """Package: {name}
Description-md5: 0123456789abcdef0123456789abcdef
Description-en: {synopsis}
 {name} is a program that has some purpose, and
 this paragraph of some words describes it.
 .
 Another paragraph tells more.

"""
NAMES = [f"tool{number}" for number in range(300)]
DEBIAN = "".join(ENTRY.format(name=name, synopsis=f"does task {name}") for name in NAMES)


def sides(*lines):
    return [[f"{line} {language}" for line in lines] for language in ("en", "de")]


def test_parallel_files_are_found_packed_or_plain_or_by_their_names(tmp_path):
    packed = parallel("train", "packed", ending=".gz") | parallel("test.2016", "e", ending=".gz")
    plain = parallel("train", "a", "b") | parallel("val", "c@@ d") | parallel("test_2017", "f", "g")
    write(tmp_path, packed | plain)  # the plain file replaces the packed one
    tests = {"test.2016": sides("e"), "test_2017": sides("f", "g")}
    assert read_sets(tmp_path) == TextSets(sides("a", "b"), sides("c@@ d"), tests)
    sets = read_sets(tmp_path, "de", "en", train="val", valid="train", tests=["val"], limit=1)
    swapped = sides("c@@ d")[::-1]
    assert sets == TextSets(swapped, sides("a")[::-1], {"val": swapped})
    sets = read_sets(tmp_path, valid="val", tests=[], undo_bpe=True)
    assert sets.valid == sides("cd") and sets.tests == {}
    with pytest.raises(ValueError, match=r"is neither a folder nor one of \['multi30k'"):
        read_sets(tmp_path / "nowhere")


def test_a_known_corpus_is_fetched_by_name(tmp_path, monkeypatch):
    def fetch(name, folder):
        folder.mkdir(parents=True)
        write(folder, parallel("train", name) | parallel("val", name))

    monkeypatch.setattr(known_corpora, "fetch_corpus", fetch)
    monkeypatch.setattr(pathlib.Path, "home", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    assert read_sets("multi30k") == TextSets(sides("multi30k"), sides("multi30k"), {})


def test_files_of_a_corpus_are_fetched_once_and_checked(tmp_path):
    (tmp_path / "origin").mkdir()
    write(tmp_path / "origin", {"train.en": "train.en", "train.de": "train.de"})
    address, folder = (tmp_path / "origin").as_uri(), tmp_path / "new" / "folder"
    first, second = (hashlib.sha256(n.encode()).hexdigest() for n in ("train.en", "train.de"))
    sums = f"{first}  train.en\n{second}  train.de"
    paths = fetch_corpus("small", folder, {"small": (address, sums)})
    assert read_lines(paths["train.de"]) == ["train.de"]
    assert sorted(os.listdir(folder)) == ["train.de", "train.en"]
    assert fetch_corpus("small", folder, {"small": ("file:///nowhere", sums)}) == paths
    (folder / "train.en").write_text("changed")
    with pytest.raises(ValueError, match="delete it and fetch it again"):
        fetch_corpus("small", folder, {"small": (address, sums)})
    with pytest.raises(ValueError, match=r"train\.de has the SHA-256 .* expected"):
        fetch_corpus("small", tmp_path / "a", {"small": (address, f"{first}  train.de")})
    assert os.listdir(tmp_path / "a") == []
    with pytest.raises(OSError, match="Without a network put the file at"):
        fetch_corpus("small", tmp_path, {"small": ("file:///nowhere", "00  train.en")})


@pytest.mark.data
def test_the_table_has_the_checksums_of_the_real_files(data_set):
    folder = data_set("multi30k")
    for line in CORPORA["multi30k"][1].strip().splitlines():
        checksum, name = line.split()
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum


def rows(sets):
    test = sets.tests["test"]
    return [list(zip(*some, strict=True)) for some in (sets.train, sets.valid, test)]


def test_number_words_of_one_set_are_in_no_other():
    pytest.importorskip("num2words")
    parts = rows(number_words(limit=701))
    assert [len(part) for part in parts] == [701, 500, 500]
    assert len({source for part in parts for source, _ in part}) == 1701
    pairs = sum(rows(number_words("de", "en", count=2000)), [])
    assert ("siebzehn", "seventeen") in pairs and len(set(pairs)) == 2000


@pytest.mark.parametrize(
    ("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)]
)
def test_a_text_is_the_first_paragraph_and_its_summary_the_synopsis(tmp_path, ending, pack):
    (tmp_path / f"Translation-en{ending}").write_bytes(pack(DEBIAN.encode()))
    train, valid, test = rows(read_synopses(tmp_path))
    assert len(train) > 250 and valid and test
    tail = "is a program that has some purpose, and this paragraph of some words describes it."
    expected = [(f"{name} {tail}", f"does task {name}") for name in NAMES]
    assert sorted([*train, *valid, *test]) == sorted(expected)
    train, _, _ = rows(read_synopses(tmp_path, limit=3, longest=9))
    assert [len(text.split()) for text, _ in train] == [9, 9, 9]


def test_no_description_and_no_synopsis_is_in_two_sets(tmp_path):
    # Packages of one source, and others with the same synopsis and another text.
    twice = DEBIAN + DEBIAN.replace("does task", "does task, too,")
    same = DEBIAN.replace("some purpose", "another purpose").replace("\n .", " (data)\n .")
    train, *others = rows(read_synopses(write(tmp_path, {"Translation-en": twice + same})))
    texts, synopses = (set(some) for some in zip(*train, strict=True))
    assert len(texts) == len(train)
    for text, synopsis in (row for other in others for row in other):
        assert text not in texts and synopsis not in synopses


def test_trec(tmp_path):
    who = "Who\x85is Zoë ?"  # `str.splitlines` splits at this Latin-1 character
    train = "".join(f"{n % 6} What is {n} ?\n" for n in range(20))
    files = {"TREC.train.all": train, "TREC.test.all": f"3 {who}\n".encode("latin-1")}
    sets = labelled_texts.read_trec(write(tmp_path, files))
    assert sets.test == ([who], ["person"])
    assert (len(sets.train[0]), len(sets.valid[0])) == (18, 2)
    kinds = dict(zip(*sets.train, strict=True)) | dict(zip(*sets.valid, strict=True))
    assert kinds == {f"What is {n} ?": sets.labels[n % 6] for n in range(20)}
    assert (sets.labels[0], sets.labels[5]) == ("description", "number")
    assert labelled_texts.read_trec(tmp_path) == sets  # every call draws the same sets
    few = labelled_texts.read_trec(tmp_path, limit=1)
    assert [len(part[0]) for part in (few.train, few.valid, few.test)] == [1, 1, 1]


def test_sst2(tmp_path):
    names = ("train", "dev", "test")
    write(tmp_path, {f"{name}.tsv": f"a dull {name}\t0\na good {name}\t1\n" for name in names})
    sets = labelled_texts.read_sst2(tmp_path)
    assert sets.valid == (["a dull dev", "a good dev"], ["negative", "positive"])
    assert sets.test[0] == ["a dull test", "a good test"]


def test_imdb(tmp_path):
    for name, count in (("train", 20), ("test", 3)):
        texts = [{"text": f"{name} {n}<br />end", "label": int(n >= 10)} for n in range(count)]
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        write(tmp_path, {f"{name}.jsonl.gz": lines})
    sets = labelled_texts.read_imdb(tmp_path)
    assert sorted(sets.test[0]) == ["test 0 end", "test 1 end", "test 2 end"]
    assert len(sets.valid[0]) == 2 and len(sets.train[0]) == 18
    for text, label in zip(*sets.train, strict=True):
        assert label == ("positive" if int(text.split()[1]) >= 10 else "negative")
    # The file is sorted by label, but a part of it must have both labels.
    assert {*labelled_texts.read_imdb(tmp_path, limit=12).train[1]} == {"negative", "positive"}


def test_negations_invert_made_opinions():
    sets = labelled_texts.made_opinions()
    kinds = {t: k for part in sets[:3] for t, k in zip(*part, strict=True)}
    assert len(kinds) == sum(len(part[0]) for part in sets[:3]) == 2800
    for text, kind in kinds.items():
        *_, before, last = text.split()
        good = last in "good great clever funny moving honest rich".split()
        turned = before in ("not", "never", "hardly")
        assert kind == ("positive" if good != turned else "negative")
    assert 0.45 < sets.test[1].count("positive") / 400 < 0.55
