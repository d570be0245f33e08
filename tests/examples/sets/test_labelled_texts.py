"""Texts with labels: what stands in the files is what comes out, and no text is in two sets."""

import gzip
import json

import pytest
from support.sets import labelled_texts


def write_trec(folder, train, test):
    for name, lines in (("TREC.train.all", train), ("TREC.test.all", test)):
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode("latin-1"))


def test_trec(tmp_path):
    who = "Who\x85is Zoë ?"  # latin-1 has a character at which `str.splitlines` cuts
    write_trec(tmp_path, [f"{n % 6} What is {n} ?" for n in range(20)], [f"3 {who}"])
    sets = labelled_texts.read_trec(tmp_path)
    assert sets.test == ([who], ["person"])
    assert (len(sets.train[0]), len(sets.valid[0])) == (18, 2)
    assert {*sets.train[0], *sets.valid[0]} == {f"What is {n} ?" for n in range(20)}
    kinds = dict(zip(*sets.train, strict=True)) | dict(zip(*sets.valid, strict=True))
    assert kinds["What is 0 ?"] == kinds["What is 6 ?"] == "description"
    assert kinds["What is 5 ?"] == sets.labels[5] == "number"
    assert labelled_texts.read_trec(tmp_path) == sets  # the same are drawn each time


def test_a_limit_is_one_of_each_set(tmp_path):
    write_trec(tmp_path, [f"1 What is {n} ?" for n in range(30)], ["1 a ?", "1 b ?", "1 c ?"])
    sets = labelled_texts.read_trec(tmp_path, limit=2)
    assert [len(part[0]) for part in (sets.train, sets.valid, sets.test)] == [2, 2, 2]


@pytest.mark.parametrize("line", ["7 What is it ?", "What is it ?", "3", ""])
def test_a_line_of_another_form_is_told(tmp_path, line):
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
        rows = [{"text": f"{name} {n}<br />end", "label": int(n >= 10)} for n in range(count)]
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    sets = labelled_texts.read_imdb(tmp_path)
    assert sorted(sets.test[0]) == ["test 0 end", "test 1 end", "test 2 end"]
    assert len(sets.valid[0]) == 2 and len(sets.train[0]) == 18
    for text, label in zip(*sets.train, strict=True):
        assert label == ("positive" if int(text.split()[1]) >= 10 else "negative")
    # The file is sorted by label: a part of it must not be.
    few = labelled_texts.read_imdb(tmp_path, limit=12).train
    assert set(few[1]) == {"negative", "positive"}


def test_made_opinions_turn_at_a_word_for_not():
    sets = labelled_texts.made_opinions()
    texts = [*sets.train[0], *sets.valid[0], *sets.test[0]]
    assert len(set(texts)) == len(texts) == 2800
    kinds = {t: k for part in sets[:3] for t, k in zip(*part, strict=True)}
    for text, kind in kinds.items():
        turned = text.split()[-2] in ("not", "never", "hardly")
        good = text.split()[-1] in "good great clever funny moving honest rich".split()
        assert kind == ("positive" if good != turned else "negative")
    assert 0.45 < sets.test[1].count("positive") / 400 < 0.55
