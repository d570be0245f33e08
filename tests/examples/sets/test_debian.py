"""Descriptions of packages: the file's format, and what is in which set."""

import gzip
import lzma

import pytest
from support.sets.debian import read_synopses

ENTRY = """Package: {name}
Description-md5: 0123456789abcdef0123456789abcdef
Description-en: {synopsis}
 {name} is a program that has some purpose, and
 this paragraph of some words describes it.
 .
 Another paragraph tells more.

"""


def written(count=300):
    names = [f"tool{number}" for number in range(count)]
    return "".join(ENTRY.format(name=name, synopsis=f"does task {name}") for name in names)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("debian")
    (folder / "Translation-en").write_text(written(), "utf-8")
    return folder


def rows(sets):
    test = sets.tests["test"]
    return [list(zip(*some, strict=True)) for some in (sets.train, sets.valid, test)]


def test_a_text_is_the_first_paragraph_and_its_summary_the_synopsis(folder):
    train, valid, test = rows(read_synopses(folder))
    assert len(train) + len(valid) + len(test) == 300
    assert len(train) > 250 and valid and test
    for text, synopsis in [*train, *valid, *test]:
        name = synopsis.split()[-1]
        expected = "is a program that has some purpose, and this paragraph of some words describes"
        assert text == f"{name} {expected} it."


def test_no_text_and_no_synopsis_is_in_two_sets(tmp_path):
    # Packages of one source, and others that say the same of another text.
    twice = written() + written().replace("does task", "does task, too,")
    same = written().replace("some purpose", "another purpose").replace("\n .", " (data)\n .")
    (tmp_path / "Translation-en").write_text(twice + same, "utf-8")
    train, *others = rows(read_synopses(tmp_path))
    assert len({text for text, _ in train}) == len(train)
    for other in others:
        assert not {text for text, _ in train} & {text for text, _ in other}
        assert not {line for _, line in train} & {line for _, line in other}


@pytest.mark.parametrize(("ending", "module"), [("gz", gzip), ("xz", lzma)])
def test_packed_files_are_read(folder, tmp_path, ending, module):
    packed = module.compress((folder / "Translation-en").read_bytes())
    (tmp_path / f"Translation-en.{ending}").write_bytes(packed)
    assert read_synopses(tmp_path) == read_synopses(folder)
    (tmp_path / f"Translation-en.{ending}").write_bytes(packed[:50])
    with pytest.raises(ValueError, match="broken file"):
        read_synopses(tmp_path)


def test_long_texts_are_cut_short_ones_left_out_and_sets_limited(folder, tmp_path):
    train, _, _ = rows(read_synopses(folder, limit=3, longest=9))
    assert len(train) == 3 and all(len(text.split()) == 9 for text, _ in train)
    (tmp_path / "Translation-en").write_text("Description-en: small\n too few words\n", "utf-8")
    with pytest.raises(ValueError, match="holds no descriptions"):
        read_synopses(tmp_path)


def test_a_missing_file_is_told_with_where_to_find_it(tmp_path):
    with pytest.raises(ValueError, match=r"has no Translation-en.*deb\.debian\.org"):
        read_synopses(tmp_path)
