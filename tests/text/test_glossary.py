"""Glossaries: files, and the terms of a line."""

import pytest

from keras_transformer import Glossary


def test_entries_apply_to_words():
    glossary = Glossary([("New York", "N"), ("york", "Y"), ("C++", "C"), ("york", "second")])
    assert glossary.terms("From NEW\u00a0york to York, York.") == ["N", "Y"]
    assert glossary.terms("Newyork yorkshire c+") == []
    assert glossary.terms("in C++.") == ["C"]
    assert Glossary({}).terms("York") == []
    assert Glossary({"caf\u00e9": "Kaffee"}).terms("Cafe\u0301!") == ["Kaffee"]


@pytest.mark.parametrize(
    "phrase, longer",
    [
        ("\u0915\u092e", "\u0915\u092e\u0940"),  # a vowel sign
        ("\u0643\u062a\u0628", "\u0643\u062a\u0628\u064e\u0648"),  # a vowel point
        ("ab", "ab\u200cc"),
    ],
)
def test_entries_do_not_apply_inside_words_of_other_scripts(phrase, longer):
    glossary = Glossary({phrase: "x"})
    assert glossary.terms(f"a {longer} b") == []
    assert glossary.annotated(f"a {phrase} b") == f"a {phrase} \u27e6x\u27e7 b"


def test_sources_are_annotated():
    glossary = Glossary({"hat": "Hut", "hard hat": "Schutzhelm", "man": "Mann"})
    line = "The Hard  hat of a man, a hat"
    assert glossary.annotated(line) == "The Hard  hat ⟦Schutzhelm⟧ of a man ⟦Mann⟧, a hat ⟦Hut⟧"
    assert glossary.annotated(line, "Ein hut.") == "The Hard  hat of a man, a hat ⟦Hut⟧"
    assert glossary.annotated(line, "Hutmacher") == line
    assert glossary.annotated("") == ""


def test_files_are_read(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("\ufeffred hat\troter Hut \tnoun\r\n\r\nhat\tHut\n", encoding="utf-8")
    assert Glossary.read(path).terms("A hat, a red hat") == ["Hut", "roter Hut"]
    assert Glossary.read(str(path)).terms("hat") == ["Hut"]


def test_other_files_and_empty_phrases_are_refused(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("red\trot\nblue\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2 must hold a source phrase, a tab"):
        Glossary.read(path)
    with pytest.raises(ValueError, match="needs a source and a target phrase"):
        Glossary({"hat": " "})
