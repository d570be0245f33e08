"""Tagged sentences: public and synthetic sets."""

from helpers.example_files import write
from support.scores.entities import entities
from support.sets.tagged_sentences import (
    made_entities,
    made_requests,
    read_entities,
    read_requests,
)


def test_requests_are_read_from_their_lines(tmp_path):
    line = "at:O 9:30:B-time :O <=> wake\n{}:O now:B-time please:I-time <=> stop\n"
    write(tmp_path, {f"snips.{x}.gz": line.format(x) for x in ("train", "valid", "test")})
    train, _, test = read_requests(tmp_path, "snips")
    assert train.words[0] == ["at", "9:30", ""] and train.tags[0] == ["O", "B-time", "O"]
    assert test.words[1][0] == "test" and test.labels == ["wake", "stop"]
    assert [len(some.words) for some in read_requests(tmp_path, "snips", limit=1)] == [1, 1, 1]


def test_entities_are_read_from_their_lines(tmp_path):
    text = "en:Anna\tB-PER\nen:in\tO\nen:{}\tB-LOC\n\nen:12:30\tO\n\n"
    write(tmp_path, {f"wikiann.en.{x}.gz": text.format(x) for x in ("train", "dev", "test")})
    sets, few = read_entities(tmp_path, ["en"]), read_entities(tmp_path, ["en"], limit=1)
    assert sets["valid"]["en"].words == [["Anna", "in", "dev"], ["12:30"]]
    assert sets["test"]["en"].tags == [["B-PER", "O", "B-LOC"], ["O"]]
    assert few["train"]["en"].words == [["Anna", "in", "train"]]


def test_made_requests_have_entities_and_no_request_is_in_two_sets():
    sets = made_requests()
    texts = {" ".join(words) for some in sets for words in some.words}
    assert [len(some.words) for some in sets] == [1000, 100, 100] and len(texts) == 1200
    assert len(made_requests(7)[1].labels) == 7
    assert {*sets[2].labels} == {"weather", "music", "book", "travel"}
    for words, tags in zip(sets[0].words, sets[0].tags, strict=True):
        assert len(words) == len(tags) and all(kind for kind, *_ in entities(tags))


def test_made_sentences_of_two_languages_have_names_of_all_types():
    sets = made_entities()
    for language in ("en", "de"):
        parts = [sets[name][language] for name in ("train", "valid", "test")]
        texts = {" ".join(words) for some in parts for words in some.words}
        assert [len(some.words) for some in parts] == [500, 50, 50] and len(texts) == 600
        kinds = {kind for some in parts for tags in some.tags for kind, *_ in entities(tags)}
        assert kinds == {"PER", "LOC", "ORG"}
    assert len(made_entities(3)["test"]["de"].words) == 3
