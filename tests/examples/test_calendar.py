"""Questions and summaries of synthetic calendars."""

import re

import pytest
from support.sets.calendar import (
    MONTHS,
    ORDINALS,
    PEOPLE,
    PLACES,
    TIMES,
    calendar_questions,
    calendar_summaries,
    word_overlap_answers,
)


@pytest.fixture(scope="module")
def sets():
    return calendar_questions(30)


def sentences(passage):
    return re.split(r"(?<=\.) ", passage)


def in_words(question):
    """Returns a question with days and times as in passages."""

    def words(match):
        number, month = map(int, match.groups())
        return f"the {ORDINALS[number - 1]} of {MONTHS[month - 1]}"

    for said, clock in TIMES:
        question = re.sub(rf"\b{clock}", said, question)
    return re.sub(r"(\d+)/(\d+)", words, question)


def named(question):
    """Returns the people, places and days of a question."""
    names = [name for name in (*PEOPLE, *PLACES) if re.search(rf"\b{name}\b", question)]
    return names + re.findall(r"the \w+ of \w+", question)


def test_sets_have_their_sizes_and_no_passage_in_common(sets):
    assert [len(some.questions) for some in sets] == [120, 1000, 1000]
    passages = [set(some.passages) for some in sets]
    assert [len(some) for some in passages] == [30, 250, 250]
    assert len(set.union(*passages)) == 530


def test_two_names_or_an_activity_or_a_time_identify_the_sentence(sets):
    counts = []
    for question, passage, (begin, _) in zip(*sets[2][:3], strict=True):
        names = named(in_words(question))
        counts.append(len(names))
        if names:
            having = [{s for s in sentences(passage) if name in s} for name in names]
            assert [len(some) for some in having] == [2, 2]
            (sentence,) = having[0] & having[1]
        else:
            key = re.search(r"(?:Who|one who|somebody) (?!busy|is)(.*)\?", in_words(question))
            key = key or re.search(r"at (.*)\?", in_words(question))
            (sentence,) = {s for s in sentences(passage) if key[1].removeprefix("do at ") in s}
        at = passage.index(sentence)
        assert at <= begin < at + len(sentence)
    assert counts.count(2) / len(counts) == pytest.approx(9 / 15, abs=0.05)


def test_answers_are_whole_words_of_the_requested_kind(sets):
    test = sets[2]
    kinds = {
        "Who": PEOPLE,
        "Where": PLACES,
        "In": PLACES,
        "When": [f"the {n} of {m}" for n in ORDINALS for m in MONTHS],
    }
    seen = set()
    for question, passage, (begin, end), candidates in zip(*test, strict=True):
        first = question.split()[0]
        answer = passage[begin:end]
        assert not re.search(r"\w", passage[begin - 1 : begin] + passage[end : end + 1])
        assert (begin, end) in candidates and len(set(candidates)) == 4
        if first in kinds:
            seen.add(first)
            assert answer in kinds[first]
        if question.startswith("At what time"):
            assert re.fullmatch(r"half past \w+|\w+ o'clock", answer)
    assert seen == kinds.keys()


def test_sets_do_not_depend_on_the_number_of_training_passages():
    few, many = calendar_questions(1), calendar_questions(3, limit=5)
    assert few[2].questions[:5] == many[2].questions
    assert few[0].questions == many[0].questions[:4]
    assert [len(part) for part in many[1]] == [5, 5, 5, 5]


def test_the_word_overlap_baseline_answers_about_half(sets):
    test = sets[2]
    pairs = zip(word_overlap_answers(test), test.answers, strict=True)
    share = sum(a == b for a, b in pairs) / len(test.answers)
    assert 0.4 < share < 0.7


def test_summaries_list_the_places_of_each_person():
    sets = calendar_summaries(5)
    assert [len(some[0]) for some in (sets.train, sets.valid, sets.tests["test"])] == [5, 250, 250]
    for passage, summary in zip(*sets.tests["test"], strict=True):
        clauses = [re.fullmatch(r"(\w+) in (\w+) and (\w+)", part) for part in summary.split("; ")]
        assert len(clauses) == 2
        for person, *places in (clause.groups() for clause in clauses):
            theirs = [s for s in sentences(passage) if re.search(rf"\b{person}\b", s)]
            assert [place in s for place, s in zip(places, theirs, strict=True)] == [True, True]
