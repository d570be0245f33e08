"""The terms of a glossary stand in place of the words that are aligned to their source phrases."""

import re

import numpy as np
import pytest
from helpers import exports

import keras_transformer as kt
from keras_transformer.export.artefact.results import Details, Translation
from keras_transformer.export.documents import DocumentTranslator
from keras_transformer.export.runtime import Translator
from keras_transformer.export.runtime.glossaries import place_terms

GERMAN = {"the": "der", "red": "rote", "hat": "Hut", "and": "und", "a": "ein", "dog": "Hund"}


def pieces(text):
    """Words and punctuation marks as pieces."""
    found = re.findall(r" ?(?:[^\W\u3400-\u9fff]+|[^\w ]|[\u3400-\u9fff])", text)
    return tuple(piece.replace(" ", "\u2581") for piece in found)


def translation(line, text, order=None, attention=1.0, rest=""):
    """A translation with one piece for each piece of its source, in `order`."""
    source, target = pieces(line), pieces(text) + pieces(rest)
    weights = np.zeros((len(target), len(source)), "float32")
    for number in range(len(target)):
        place = number if order is None else order[number]
        weights[number, min(place, len(source) - 1)] = attention
    words = tuple((text + rest).split())
    details = Details(target, words, source_pieces=source, weights=weights)
    return Translation((text + rest,), (-1.0,), None, (details,))


def placed(line, free, glossary, rest=lambda beginning: "", order=None, prefix="", attention=1.0):
    """Places terms; `rest` returns the text after a beginning."""

    def search_again(beginnings):
        return {n: translation(line, text, rest=rest(text)) for n, text in beginnings.items()}

    results = {3: translation(line, free, order, attention)}
    glossaries = {3: kt.Glossary(glossary)}
    return place_terms({3: line}, results, glossaries, {3: prefix}, search_again)[3]


@pytest.mark.parametrize(
    "line, free, glossary, rest, expected",
    [
        ("a hat", "ein Hut", {"hat": "Helm"}, {}, "ein Helm"),
        ("a hat, and a dog.", "ein Hut, und ein Hund.", {"hat": "Helm"}, {}, "ein Helm"),
        (
            "a hat, and a dog.",
            "ein Hut, und ein Hund.",
            {"hat": "Helm"},
            {"ein Helm": ", aber kein Hund."},
            "ein Helm, aber kein Hund.",
        ),
        ("a hat", "ein Hut", {"a": "der", "hat": "Helm"}, {"der": " Hut"}, "der Helm"),
        ("hat hat", "Hut Hut", {"hat": "Helm"}, {"Helm": " Hut"}, "Helm Helm"),
        (
            "a hat.",
            "ein Hut.",
            {"hat": "gelber Helm"},
            {"ein gelber Helm": "!"},
            "ein gelber Helm!",
        ),
        ("a red hat.", "ein Hut.", {"hat": "Helm"}, {}, "Helm"),
        ("\u5e3d\u5b50\u597d", "\u5e3d\u72d7\u597d", {"\u5b50": "\u732b"}, {}, "\u5e3d\u732b"),
        # A word that stands again in the free text may stand again.
        (
            "hat, the hat",
            "Hut, der Hut",
            {"hat,": "Helm,"},
            {"Helm,": " der Hut"},
            "Helm, der Hut",
        ),
        # A term without an aligned word.
        ("a hat and dog", "ein Hut", {"dog": "Katze"}, {}, "Katze"),
        ("a hat and dog", "ein Hut", {"dog": "Katze"}, {"Katze": "s"}, "Katze ein Hut"),
    ],
)
def test_a_term_takes_the_place_of_the_word_aligned_to_its_phrase(
    line, free, glossary, rest, expected
):
    found = placed(line, free, glossary, lambda beginning: rest.get(beginning, ""))
    assert found.text == expected


def test_words_in_another_order_are_found_by_their_attention():
    assert placed("red hat", "Hut rote", {"red": "gelbe"}, order=[1, 0]).text == "Hut gelbe"


@pytest.mark.parametrize(
    "rest", ["ed und ein Hund", "s", " Hut und ein Hund", ", der Hut, und ein Hund", "2"]
)
def test_a_rest_that_joins_the_term_or_repeats_the_old_word_is_not_taken(rest):
    found = placed("a hat and a dog", "ein Hut und ein Hund", {"hat": "Helm"}, lambda _: rest)
    assert found.text == "ein Helm und ein Hund"
    assert found.details[0].pieces == pieces(found.text)
    assert found.details[0].words == tuple(found.text.split())
    assert len(found.details[0].weights) == len(pieces(found.text))


def test_a_term_that_nothing_attends_to_stands_after_the_prefix():
    line, text = "a hat and dog", "ein Hut und Hund"
    found = placed(line, text, {"dog": "Katze"}, prefix=text, attention=0.0)
    assert found.text == f"{text} Katze"


def test_a_search_that_fails_after_a_term_leaves_the_free_text_with_the_term():
    def search_again(beginnings):
        return {number: Translation(error="too long") for number in beginnings}

    line = "a hat and a dog"
    glossary, free = kt.Glossary({"hat": "Helm", "dog": "Katze"}), "ein Hut und ein Hund"
    found = place_terms(
        {0: line}, {0: translation(line, free)}, {0: glossary}, {0: ""}, search_again
    )
    assert set(found[0].text.split()) >= {"Helm", "Katze"}


def test_a_text_without_entries_and_an_error_stay():
    results = {0: translation("a", "ein"), 1: Translation(error="too long"), 2: Translation(("",))}
    lines = {0: "a", 1: "hat", 2: "hat"}
    glossaries = dict.fromkeys(lines, kt.Glossary({"hat": "Helm"}))
    assert place_terms(lines, results, glossaries, dict.fromkeys(lines, ""), None) == results


LINES = ["a man 's hat , red .", "", "the Dog  runs", "two words", b"\xff", "red hat red"]
GLOSSARY = {"dog": "mann", "red": "dog", "a man": "two hats"}


@pytest.fixture(scope="module")
def translator():
    return Translator(exports.artefact(exports.DETAILED), threads=1)


def test_an_exported_search_places_terms(translator):
    free, found = (translator.n_best(LINES, glossary=given) for given in (None, GLOSSARY))
    for number, terms in {0: ["two hats", "dog"], 2: ["mann"], 5: ["dog"]}.items():
        for term in terms:
            assert re.search(rf"(^|\W){term}(\W|$)", found[number].text), found[number]
        assert found[number].text != free[number].text and len(found[number].texts) == 1
        for details in found[number].details:  # none beyond max_length
            assert " ".join(details.words) == found[number].text
            assert len(details.weights) == len(details.pieces)
    assert found[2].details and len(re.findall(r"(?<!\w)dog(?!\w)", found[5].text)) >= 2
    assert [found[number] for number in (1, 3, 4)] == [free[number] for number in (1, 3, 4)]
    texts = [result.text for result in found]
    assert translator.translate(LINES, glossary=kt.Glossary(GLOSSARY)) == texts
    assert list(translator.translate_stream(LINES, 16, 1, glossary=GLOSSARY)) == texts


def test_each_line_may_have_its_own_glossary(translator):
    lines, glossaries = ["the red hat", "the red hat", "red"], [{"red": "dog"}, {}, {"red": "two"}]
    free, found = translator.translate(lines), translator.translate(lines, glossary=glossaries)
    assert found[1] == free[1] and "dog" in found[0].split() and "two" in found[2].split()
    assert list(translator.translate_stream(lines, 16, 1, glossary=glossaries)) == found
    with pytest.raises(ValueError, match="`glossary` has fewer values than there are lines"):
        translator.translate(lines, glossary=glossaries[:2])


@pytest.mark.parametrize("glossary", [5, True, b"terms.tsv", {"red"}, [("red", "dog")]])
def test_another_type_than_a_glossary_is_named(translator, glossary):
    with pytest.raises(TypeError, match=r"`glossary` must be a Glossary, a dict .* Got "):
        translator.translate(["the red hat"], glossary=glossary)


@pytest.mark.parametrize("prefix", ["the", ["the", "", "the"]])
def test_prefixes_and_options_of_a_line_stay(translator, prefix):
    lines = [LINES[0], LINES[2], LINES[3]]
    found = translator.n_best(lines, glossary=GLOSSARY, target_prefix=prefix)
    assert found[0].text.startswith("the") and "two hats" in found[0].text
    assert found[2] == translator.n_best(lines, target_prefix=prefix)[2]
    found = translator.n_best(lines, glossary=GLOSSARY, max_length=[11, 10, 2])
    assert "mann" in found[1].text and len(found[2].details[0].pieces) <= 2


def test_documents_keep_their_tags_around_terms(translator):
    documents = DocumentTranslator(translator, glossary=GLOSSARY)
    found = documents.html("<p>the <b>Dog</b> runs</p>")
    assert documents.untranslated == 0
    assert "mann" in re.sub("<[^>]+>", "", found) and found.count("<b>") == 1


@pytest.mark.full
def test_a_glossary_needs_alignments_and_a_prefix_or_terms():
    plain = Translator(exports.artefact(), threads=1)
    with pytest.raises(ValueError, match=r"`glossary`.*alignments=True.*target_prefix.*Terms"):
        plain.translate(["a hat"], glossary={"hat": "Helm"})


def test_a_stream_refuses_a_glossary_that_needs_alignments(translator):
    with pytest.raises(ValueError, match="alignments, which no stream uses, and no terms"):
        list(translator.stream("a hat", glossary=GLOSSARY))
