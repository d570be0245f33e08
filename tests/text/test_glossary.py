"""Glossaries: files, and the terms of a line."""

import pytest

from keras_transformer import Glossary

V2 = """<?xml version="1.0"?><!DOCTYPE martif SYSTEM "TBXcoreStructV02.dtd">
<martif type="TBX"><text><body><termEntry><langSet xml:lang="en"><tig><term>hard hat</term></tig>
<tig><term>safety <hi>helmet</hi></term></tig></langSet><langSet xml:lang="de"><tig>
<term>Schutzhelm</term></tig></langSet></termEntry></body></text></martif>"""
V3 = """<tbx xmlns="urn:iso:std:iso:30042:ed-2"><text><body><conceptEntry>
<langSec xml:lang="en"><termSec><term>hat</term></termSec></langSec>
<langSec xml:lang="de"><termSec><term>Hut</term></termSec></langSec>
<langSec xml:lang="fr"><termSec><term>chapeau</term></termSec></langSec></conceptEntry></body>
</text></tbx>"""


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
    tsv, two, three = (tmp_path / name for name in ("a.tsv", "b.tbx", "c.TBX"))
    tsv.write_text("\ufeffred hat\troter Hut \tnoun\r\n\r\nhat\tHut\n", encoding="utf-8")
    assert Glossary.read(tsv).terms("A hat, a red hat") == ["Hut", "roter Hut"]
    two.write_text(V2, encoding="utf-16")
    assert Glossary.read(str(two)).terms("hard hat") == ["Schutzhelm"]
    assert Glossary.read(two).terms("Safety helmets; a safety helmet") == ["Schutzhelm"]
    assert Glossary.read(two, "de").terms("ein Schutzhelm") == ["hard hat"]
    assert Glossary.read(two, target="en").terms("ein Schutzhelm") == ["hard hat"]
    with pytest.raises(ValueError, match=r"languages \['en', 'de'\]. Choose two"):
        Glossary.read(two, "en", "en")
    three.write_text(V3, encoding="utf-8")
    assert Glossary.read(three, "fr", "de").terms("chapeau") == ["Hut"]
    with pytest.raises(ValueError, match=r"languages \['en', 'de', 'fr'\]. Choose two"):
        Glossary.read(three)


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("a.tsv", "red\trot\nblue\n", "line 2 must hold a source phrase, a tab"),
        ("a.tbx", "<tbx", "is no TBX file"),
        ("a.tbx", "<tbx/>", r"has the languages \[\]"),
        ("a.tbx", '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "declares XML entities"),
    ],
)
def test_other_files_are_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        Glossary.read(tmp_path / name)
    with pytest.raises(ValueError, match="needs a source and a target phrase"):
        Glossary({"hat": " "})


def test_errors_name_a_file_in_another_encoding_and_its_line(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_bytes("Haus\thouse\nGröße\tsize\n".encode("latin1"))
    with pytest.raises(ValueError, match="terms.tsv, line 2: not UTF-8"):
        Glossary.read(path)
    path = path.with_suffix(".tbx")
    path.write_text("<?xml version='1.0' encoding='of-none'?><martif/>", "utf-8")
    with pytest.raises(ValueError, match="terms.tbx is no TBX file: .*encoding"):
        Glossary.read(path)
