"""Made calendars, which need no download: questions about them, and summaries of them."""

import random
import re
from typing import NamedTuple

from support.sets.text_sets import TextSets

PEOPLE = (
    "Anna Ben Carla David Ella Felix Greta Hugo Ida Jonas Klara Leo Mia Noah Olga Paul Rosa Samuel "
    "Tina Viktor"
).split()
PLACES = (
    "Athens Berlin Cairo Dublin Florence Geneva Hamburg Istanbul Kyoto Lisbon Madrid Naples Oslo "
    "Paris Quito Rome Seoul Tokyo Vienna Zurich"
).split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
# Said of a person, and asked for.
ACTIVITIES = (
    "plays chess",
    "buys a bicycle",
    "gives a talk",
    "visits a museum",
    "sings in a choir",
    "repairs a clock",
    "meets a lawyer",
    "paints a bridge",
    "reads a novel",
    "rents a boat",
    "teaches physics",
    "bakes bread",
    "sells a piano",
    "takes an exam",
    "watches a play",
    "writes a report",
)
ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
).split()
HOURS = "one two three four five six seven eight nine ten eleven twelve".split()
# As passages and as questions write them.
TIMES = [(f"{hour} o'clock", f"{number}:00") for number, hour in enumerate(HOURS, 1)]
TIMES += [(f"half past {hour}", f"{number}:30") for number, hour in enumerate(HOURS, 1)]
SIZE = 2  # people, days and places of a passage

SENTENCES = (
    "On {day} {person} {activity} in {place} at {time}.",
    "{person} {activity} in {place} on {day} at {time}.",
)
# Kinds of questions and their wording. An activity or a time alone identifies the sentence;
# of person, place and date it takes two.
QUESTIONS = (
    ("place", "Where is {person} on {date}?"),
    ("place", "In which city does one find {person} on {date}?"),
    ("person", "Who is in {place} on {date}?"),
    ("day", "When is {person} in {place}?"),
    ("day", "On which day does one find {person} in {place}?"),
    ("time", "At what time is {person} busy on {date}?"),
    ("time", "At what time does something happen in {place} on {date}?"),
    ("activity", "What does {person} do in {place}?"),
    ("activity", "What does {person} do on {date}?"),
    ("person", "Who {activity}?"),
    ("place", "Where is the one who {activity}?"),
    ("time", "At what time is it that somebody {activity}?"),
    ("person", "Who is busy at {clock}?"),
    ("place", "Where is somebody busy at {clock}?"),
    ("activity", "What does somebody do at {clock}?"),
)


class Questions(NamedTuple):
    """N questions; lists of the same length.

    Attributes:
        questions, passages: str each.
        answers: (begin, end) each: `passage[begin:end]` is the answer.
        candidates: for each question a list of such pairs: what its passage has of the kind that is
            asked for, the answer among them, one for each sentence.
    """

    questions: list
    passages: list
    answers: list
    candidates: list


def calendar_questions(passages=4000, limit=None):
    """Sets of made questions about made calendars, to train on, to choose by and to measure on.

    A passage has four sentences about two people, two days and two places: who does what, where,
    on which day and at what time. Nine questions of fifteen name two of person, day and place: each
    of them stands in two sentences, and only both together tell which one. The others name an
    activity or a time, which stands in one. Passages write "the third of May" and "half past six",
    questions "3/5" and "6:30". Four questions are asked of a passage.

    The same are drawn in every call. No passage is in two sets.

    Args:
        passages: int, how many to train on. 250 others are the validation set, 250 the test set.
        limit: int, number of questions used of each set. Defaults to `None`: all.

    Returns:
        Three `Questions`: train, valid, test.

    Raises:
        ValueError: `passages` is less than 1.

    Example:

    >>> train, valid, test = calendar_questions(10)
    >>> len(train.questions), len(test.questions)
    (40, 1000)
    >>> begin, end = test.answers[0]
    >>> test.questions[0], test.passages[0][begin:end]
    ('In which city does one find Carla on 9/3?', 'Cairo')
    """
    sets = []
    for drawn in _drawn(passages):
        draw = random.Random(1)  # one each, so that no set depends on another's size
        rows = [row for text, facts in drawn for row in _asked(draw, text, facts)]
        sets.append(Questions(*map(list, zip(*rows[:limit], strict=True))))
    return tuple(sets)


def calendar_summaries(passages=4000, limit=None):
    """Sets of made calendars and summaries of them: who is where, whatever else the passage tells.

    The passages come from `calendar_questions`. Each of the two people is in both places, in
    one order or the other.

    Args:
        passages: int, how many to train on. 250 others are the validation set, 250 the test set.
        limit: int, number of examples used of each set. Defaults to `None`: all.

    Returns:
        `TextSets` of passages and summaries, with one test set, "test".

    Raises:
        ValueError: `passages` is less than 1.

    Example:

    >>> passages, summaries = calendar_summaries(10).train
    >>> summaries[0]
    'Noah in Berlin and Kyoto; Mia in Berlin and Kyoto'
    """
    sets = []
    for rows in _drawn(passages):
        sides = [(text, _summary(facts)) for text, facts in rows[:limit]]
        sets.append([list(side) for side in zip(*sides, strict=True)])
    train, valid, test = sets
    return TextSets(train, valid, {"test": test})


def word_overlap_answers(questions):
    """Answers by word overlap: a baseline.

    Takes the sentence that has most words in common with the question, the first of several, and
    in it the words of the right kind. The kind is given.

    Args:
        questions: `Questions`.

    Returns:
        List of (begin, end).
    """
    found = []
    for question, passage, candidates in zip(
        questions.questions, questions.passages, questions.candidates, strict=True
    ):
        begins = [match.start() for match in re.finditer(r"(?:^|(?<=\. ))\S", passage)]
        ends = [*begins[1:], len(passage)]
        asked = set(re.findall(r"\w+", question))
        common = [
            len(asked & set(re.findall(r"\w+", passage[begin:end])))
            for begin, end in zip(begins, ends, strict=True)
        ]
        found.append(candidates[common.index(max(common))])
    return found


def _drawn(passages):
    """Passages with their facts: to train on, to choose by, and to measure on."""
    if passages < 1:
        raise ValueError(f"passages must be at least 1, got {passages}.")
    sets = []
    for seed, count in enumerate((passages, 250, 250)):
        draw = random.Random(seed)
        sets.append([_passage(draw) for _ in range(count)])
    return sets


def _summary(facts):
    """People and their places, in the order of the passage."""
    places = {}
    for fact in facts:
        places.setdefault(fact["person"][0], []).append(fact["place"][0])
    return "; ".join(f"{person} in {' and '.join(found)}" for person, found in places.items())


def _passage(draw):
    """A text, and for each of its sentences {kind: (words, begin, end)}."""
    people, places = draw.sample(PEOPLE, SIZE), draw.sample(PLACES, SIZE)
    months, numbers = draw.sample(range(len(MONTHS)), 2), draw.sample(range(len(ORDINALS)), 2)
    days = draw.sample([(number, month) for number in numbers for month in months], SIZE)
    # Any two of person, day and place tell the third: a Latin square.
    cells = [(i, j, (i + j) % SIZE) for i in range(SIZE) for j in range(SIZE)]
    draw.shuffle(cells)
    activities = draw.sample(ACTIVITIES, len(cells))
    times = draw.sample(TIMES, len(cells))
    text, facts = "", []
    for (person, day, place), activity, (time, clock) in zip(cells, activities, times, strict=True):
        number, month = days[day]
        words = {
            "person": people[person],
            "day": f"the {ORDINALS[number]} of {MONTHS[month]}",
            "place": places[place],
            "activity": activity,
            "time": time,
        }
        begin = len(text)
        text += draw.choice(SENTENCES).format(**words) + " "
        facts.append({"date": (f"{number + 1}/{month + 1}",), "clock": (clock,)})
        for kind, part in words.items():
            at = text.index(part, begin)
            facts[-1][kind] = part, at, at + len(part)
    return text.rstrip(), facts


def _asked(draw, text, facts):
    """Four questions about a text, each with its answer and what else is of the answer's kind."""
    chosen = zip(draw.sample(facts, 4), draw.sample(QUESTIONS, 4), strict=True)
    for fact, (kind, question) in chosen:
        question = question.format(**{name: part[0] for name, part in fact.items()})
        yield question, text, fact[kind][1:], [other[kind][1:] for other in facts]
