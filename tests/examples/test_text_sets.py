"""Sets of text: readers of files, known corpora, and separate sets."""

import gzip
import hashlib
import json
import lzma
import os
import pathlib

import pytest
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


def parallel(folder, name, lines, packed=False):
    for language in ("en", "de"):
        content = "".join(f"{line} {language}\n" for line in lines).encode()
        path = folder / f"{name}.{language}{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)


def test_parallel_files_are_found_packed_or_plain(tmp_path):
    parallel(tmp_path, "train", ["packed"], packed=True)
    parallel(tmp_path, "train", ["a", "b"])  # the plain file replaces it
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


def test_parallel_files_have_the_names_that_are_passed(tmp_path):
    parallel(tmp_path, "one", ["a", "b"])
    parallel(tmp_path, "two", ["c@@ d"])
    sets = read_sets(tmp_path, "de", "en", train="two", valid="one", tests=["two"], limit=1)
    assert sets == TextSets(
        [["c@@ d de"], ["c@@ d en"]], [["a de"], ["a en"]], {"two": [["c@@ d de"], ["c@@ d en"]]}
    )
    sets = read_sets(tmp_path, train="one", valid="two", tests=[], undo_bpe=True)
    assert sets.valid == [["cd en"], ["cd de"]] and sets.tests == {}


def test_missing_and_empty_files_are_named(tmp_path):
    parallel(tmp_path, "train", ["a"])
    with pytest.raises(ValueError, match=r"no valid or val or dev with both \.en and \.de"):
        read_sets(tmp_path)
    parallel(tmp_path, "dev", ["b"])
    (tmp_path / "test.en").write_text("no counterpart\n", "utf-8")
    with pytest.raises(ValueError, match="has no test with both"):
        read_sets(tmp_path)
    parallel(tmp_path, "test", ["c"])
    parallel(tmp_path, "dev", [])
    with pytest.raises(ValueError, match=r"dev\.en and .*dev\.de are empty"):
        read_sets(tmp_path)
    with pytest.raises(ValueError, match=r"is neither a folder nor one of \['multi30k'"):
        read_sets(tmp_path / "nowhere")


def test_a_known_corpus_is_fetched_by_name(tmp_path, monkeypatch):
    def fetch(name, folder):
        folder.mkdir(parents=True)
        for part in ("train", "val"):
            parallel(folder, part, [name])

    monkeypatch.setattr(known_corpora, "fetch_corpus", fetch)
    monkeypatch.setattr(pathlib.Path, "home", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    sets = read_sets("multi30k")
    assert sets.train == [["multi30k en"], ["multi30k de"]] and sets.tests == {}


@pytest.fixture
def known(tmp_path):
    """Returns the table of a corpus of two local files."""
    origin = tmp_path / "origin"
    origin.mkdir()
    sums = []
    for name in ("train.en", "train.de"):
        (origin / name).write_bytes(name.encode())
        sums.append(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}")
    return {"small": (origin.as_uri(), "\n".join(sums))}


def test_files_of_a_corpus_are_fetched_once_and_checked(known, tmp_path):
    folder = tmp_path / "new" / "folder"
    paths = fetch_corpus("small", folder, known)
    assert read_lines(paths["train.de"]) == ["train.de"]
    assert sorted(os.listdir(folder)) == ["train.de", "train.en"]
    nowhere = {"small": ("file:///nowhere", known["small"][1])}
    assert fetch_corpus("small", folder, nowhere) == paths
    (folder / "train.en").write_text("changed")
    with pytest.raises(ValueError, match="delete it and fetch it again"):
        fetch_corpus("small", folder, known)


def test_a_file_with_another_checksum_is_not_kept(known, tmp_path):
    address, sums = known["small"]
    wrong = sums.split()[0] + "  train.de"  # the checksum of train.en
    with pytest.raises(ValueError, match=r"train\.de has the SHA-256 .* expected"):
        fetch_corpus("small", tmp_path / "a", {"small": (address, wrong)})
    assert os.listdir(tmp_path / "a") == []


def test_no_network_and_an_unknown_corpus_are_reported(tmp_path):
    with pytest.raises(OSError, match="Without a network put the file at"):
        fetch_corpus("small", tmp_path, {"small": ("file:///nowhere", "00  train.en")})
    with pytest.raises(ValueError, match=r"unknown corpus 'wmt'; known are \['multi30k'"):
        fetch_corpus("wmt", tmp_path)


@pytest.mark.data
def test_the_table_has_the_checksums_of_the_real_files(data_set):
    folder = data_set("multi30k")
    for line in CORPORA["multi30k"][1].strip().splitlines():
        checksum, name = line.split()
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum


def test_number_words_of_one_set_are_in_no_other():
    pytest.importorskip("num2words")
    train, valid, tests = number_words(limit=701)
    sources = [lines for lines, _ in (train, valid, tests["test"])]
    assert [len(lines) for lines in sources] == [701, 500, 500]
    assert len(set().union(*sources)) == 1701
    sets = number_words("de", "en", count=2000)
    pairs = [
        pair
        for part in (sets.train, sets.valid, sets.tests["test"])
        for pair in zip(*part, strict=True)
    ]
    assert ("siebzehn", "seventeen") in pairs and len(set(pairs)) == 2000


@pytest.mark.parametrize(
    "options, message",
    [
        ({"target": "tlh"}, r"num2words has \[.*'de'.*\], got en and tlh"),
        ({"count": 1999}, r"count must lie in \[2000, 1000000\], got 1999"),
        ({"count": 1_000_001}, "got 1000001"),
    ],
)
def test_number_words_refuse_unknown_languages_and_counts(options, message):
    pytest.importorskip("num2words")
    with pytest.raises(ValueError, match=message):
        number_words(**options)


def descriptions(count=300):
    names = [f"tool{number}" for number in range(count)]
    return "".join(ENTRY.format(name=name, synopsis=f"does task {name}") for name in names)


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    folder = tmp_path_factory.mktemp("debian")
    (folder / "Translation-en").write_text(descriptions(), "utf-8")
    return folder


def rows(sets):
    test = sets.tests["test"]
    return [list(zip(*some, strict=True)) for some in (sets.train, sets.valid, test)]


def test_a_text_is_the_first_paragraph_and_its_summary_the_synopsis(debian):
    train, valid, test = rows(read_synopses(debian))
    assert len(train) + len(valid) + len(test) == 300
    assert len(train) > 250 and valid and test
    for text, synopsis in [*train, *valid, *test]:
        name = synopsis.split()[-1]
        expected = "is a program that has some purpose, and this paragraph of some words describes"
        assert text == f"{name} {expected} it."
    train, _, _ = rows(read_synopses(debian, limit=3, longest=9))
    assert len(train) == 3 and all(len(text.split()) == 9 for text, _ in train)


def test_no_description_and_no_synopsis_is_in_two_sets(tmp_path):
    # Packages of one source, and others with the same synopsis and another text.
    twice = descriptions() + descriptions().replace("does task", "does task, too,")
    same = descriptions().replace("some purpose", "another purpose").replace("\n .", " (data)\n .")
    (tmp_path / "Translation-en").write_text(twice + same, "utf-8")
    train, *others = rows(read_synopses(tmp_path))
    texts, synopses = (set(some) for some in zip(*train, strict=True))
    assert len(texts) == len(train)
    for text, synopsis in (row for other in others for row in other):
        assert text not in texts and synopsis not in synopses


@pytest.mark.parametrize(("ending", "module"), [("gz", gzip), ("xz", lzma)])
def test_packed_descriptions_are_read(debian, tmp_path, ending, module):
    packed = module.compress((debian / "Translation-en").read_bytes())
    (tmp_path / f"Translation-en.{ending}").write_bytes(packed)
    assert read_synopses(tmp_path) == read_synopses(debian)
    (tmp_path / f"Translation-en.{ending}").write_bytes(packed[:50])
    with pytest.raises(ValueError, match="broken file"):
        read_synopses(tmp_path)


def test_a_folder_without_descriptions_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no Translation-en.*deb\.debian\.org"):
        read_synopses(tmp_path)
    (tmp_path / "Translation-en").write_text("Description-en: small\n too few words\n", "utf-8")
    with pytest.raises(ValueError, match="holds no descriptions"):
        read_synopses(tmp_path)


def write_trec(folder, train, test):
    for name, lines in (("TREC.train.all", train), ("TREC.test.all", test)):
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode("latin-1"))


def test_trec(tmp_path):
    who = "Who\x85is Zoë ?"  # `str.splitlines` splits at this Latin-1 character
    write_trec(tmp_path, [f"{n % 6} What is {n} ?" for n in range(20)], [f"3 {who}"])
    sets = labelled_texts.read_trec(tmp_path)
    assert sets.test == ([who], ["person"])
    assert (len(sets.train[0]), len(sets.valid[0])) == (18, 2)
    kinds = dict(zip(*sets.train, strict=True)) | dict(zip(*sets.valid, strict=True))
    assert kinds.keys() == {f"What is {n} ?" for n in range(20)}
    assert kinds["What is 0 ?"] == kinds["What is 6 ?"] == "description"
    assert kinds["What is 5 ?"] == sets.labels[5] == "number"
    assert labelled_texts.read_trec(tmp_path) == sets  # every call draws the same sets
    few = labelled_texts.read_trec(tmp_path, limit=1)
    assert [len(part[0]) for part in (few.train, few.valid, few.test)] == [1, 1, 1]


@pytest.mark.parametrize("line", ["7 What is it ?", "What is it ?", "3", ""])
def test_a_line_of_another_form_is_named(tmp_path, line):
    write_trec(tmp_path, ["1 a ?", line], ["1 b ?"])
    with pytest.raises(ValueError, match=r"TREC\.train\.all, line 2: expected a text and a class"):
        labelled_texts.read_trec(tmp_path)


def test_sst2(tmp_path):
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.tsv").write_text(f"a dull {name}\t0\na good {name}\t1\n", "utf-8")
    sets = labelled_texts.read_sst2(tmp_path)
    assert sets.valid == (["a dull dev", "a good dev"], ["negative", "positive"])
    assert sets.test[0] == ["a dull test", "a good test"]


def test_imdb(tmp_path):
    for name, count in (("train", 20), ("test", 3)):
        texts = [{"text": f"{name} {n}<br />end", "label": int(n >= 10)} for n in range(count)]
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(text) + "\n" for text in texts)
    sets = labelled_texts.read_imdb(tmp_path)
    assert sorted(sets.test[0]) == ["test 0 end", "test 1 end", "test 2 end"]
    assert len(sets.valid[0]) == 2 and len(sets.train[0]) == 18
    for text, label in zip(*sets.train, strict=True):
        assert label == ("positive" if int(text.split()[1]) >= 10 else "negative")
    # The file is sorted by label, but a part of it must have both labels.
    few = labelled_texts.read_imdb(tmp_path, limit=12).train
    assert set(few[1]) == {"negative", "positive"}


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
