"""Tagged sentences: public and synthetic sets, scores of entities, and their plot."""

import gzip

import pytest
from support.plots import plot_outcomes
from support.scores.entities import entities, entity_outcomes, entity_scores
from support.sets.tagged_sentences import (
    made_entities,
    made_requests,
    read_entities,
    read_requests,
    usual_tags,
)


def write(path, text):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text)


def test_requests_are_read_from_their_lines(tmp_path):
    for part in ("train", "valid", "test"):
        lines = ["at:O 9:30:B-time :O <=> wake", f"{part}:O now:B-time please:I-time <=> stop"]
        write(tmp_path / f"snips.{part}.gz", "\n".join([*lines, ""]))
    train, _, test = read_requests(tmp_path, "snips")
    assert train.words[0] == ["at", "9:30", ""] and train.tags[0] == ["O", "B-time", "O"]
    assert test.words[1][0] == "test" and test.labels == ["wake", "stop"]
    assert [len(some.words) for some in read_requests(tmp_path, "snips", limit=1)] == [1, 1, 1]
    for line in ("at:O", "at:O <=> ", "at: <=> wake", "at <=>x"):
        write(tmp_path / "snips.test.gz", f"a:O <=> b\n{line}\n")
        with pytest.raises(ValueError, match=r"snips\.test\.gz, line 2: expected 'WORD:TAG"):
            read_requests(tmp_path, "snips")


def test_entities_are_read_from_their_lines(tmp_path):
    for part in ("train", "dev", "test"):
        text = f"en:Anna\tB-PER\nen:in\tO\nen:{part}\tB-LOC\n\nen:12:30\tO\n\n"
        write(tmp_path / f"wikiann.en.{part}.gz", text)
    sets = read_entities(tmp_path, ["en"])
    assert sets["valid"]["en"].words == [["Anna", "in", "dev"], ["12:30"]]
    assert sets["test"]["en"].tags == [["B-PER", "O", "B-LOC"], ["O"]]
    assert read_entities(tmp_path, ["en"], limit=1)["train"]["en"].words == [
        ["Anna", "in", "train"]
    ]
    write(tmp_path / "wikiann.en.test.gz", "en:Anna\tB-PER\nen:in O\n")
    with pytest.raises(ValueError, match=r"wikiann\.en\.test\.gz, line 2: expected a word, TAB"):
        read_entities(tmp_path, ["en"])


def test_made_requests_have_entities_and_no_request_is_in_two_sets():
    sets = made_requests()
    texts = [" ".join(words) for some in sets for words in some.words]
    assert [len(some.words) for some in sets] == [1000, 100, 100] and len({*texts}) == 1200
    assert made_requests() == sets and len(made_requests(7)[1].labels) == 7
    assert {*sets[2].labels} == {"weather", "music", "book", "travel"}
    for words, tags in zip(sets[0].words, sets[0].tags, strict=True):
        assert len(words) == len(tags) and all(kind for kind, *_ in entities(tags))


def test_made_sentences_of_two_languages_have_names_of_all_types():
    sets = made_entities()
    for language in ("en", "de"):
        parts = [sets[name][language] for name in ("train", "valid", "test")]
        texts = [" ".join(words) for some in parts for words in some.words]
        assert [len(some.words) for some in parts] == [500, 50, 50] and len({*texts}) == 600
        kinds = {kind for some in parts for tags in some.tags for kind, *_ in entities(tags)}
        assert kinds == {"PER", "LOC", "ORG"}
    assert made_entities() == sets and len(made_entities(3)["test"]["de"].words) == 3


# Expected entities are from seqeval 1.2.2.
@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O I-a I-a B-a", [("a", 1, 3), ("a", 3, 4)]),
        ("B-a I-b I-b O I-c-d", [("a", 0, 1), ("b", 1, 3), ("c-d", 4, 5)]),
        ("B-a B-a I-a", [("a", 0, 1), ("a", 1, 3)]),
        ("O O", []),
        ("", []),
    ],
)
def test_entities_equal_seqeval(tags, expected):
    assert entities(tags.split()) == expected


def test_an_entity_is_right_if_its_type_and_all_its_words_are():
    true = ["B-a I-a O B-b O B-a".split(), "B-b I-b B-b B-a".split()]
    found = ["B-a I-a O B-a O O".split(), "B-b O B-b O".split()]
    scores = entity_scores(found, true)
    assert scores == {"f1": 2 * 2 / (4 + 6), "precision": 2 / 4, "recall": 2 / 6}
    outcomes = entity_outcomes(found, true)
    assert outcomes["a"] == {"right": 1, "missed": 2}
    assert outcomes["b"] == {"other type": 1, "other words": 1, "right": 1}
    assert entity_scores([["O"]], [["O"]])["f1"] == 0
    with pytest.raises(ValueError, match="number of sentences or words"):
        entity_scores([["O"]], [["O", "O"]])
    for tag in ("B", "B-", "X-a", "a", "-a"):
        with pytest.raises(ValueError, match="tag 1 is .*; expected O, B-TYPE or I-TYPE"):
            entities(["O", tag])


def test_each_word_gets_its_commonest_tag():
    words, tags = [["a", "hat", "hat"], ["hat", "a"]], [["D", "N", "N"], ["V", "D"]]
    assert usual_tags(words, tags, [["hat", "a"], ["new"], []]) == [["N", "D"], ["D"], []]


def test_bars_of_outcomes_are_shares_and_the_frequent_types_come_first():
    outcomes = {
        "a": {"right": 1, "missed": 1},
        "b": {"right": 6, "other type": 2},
        "c": {"missed": 1},
    }
    (panel,) = plot_outcomes(outcomes, most=2).axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["b (8)", "a (2)"]
    widths = {bar.get_label(): [box.get_width() for box in bar] for bar in panel.containers}
    zero = [0.0, 0.0]
    assert widths == {
        "right": [75, 50],
        "other type": [25, 0],
        "other words": zero,
        "missed": [0, 50],
    }
    for wrong in ({}, {"a": {"lost": 1}}):
        with pytest.raises(ValueError, match="outcomes must have a type"):
            plot_outcomes(wrong)
