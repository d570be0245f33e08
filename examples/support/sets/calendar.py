"""Synthetic calendars with questions and summaries, which need no download."""

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
# Activities in passages and questions.
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
# Times in the form of passages and of questions.
TIMES = [(f"{hour} o'clock", f"{number}:00") for number, hour in enumerate(HOURS, 1)]
TIMES += [(f"half past {hour}", f"{number}:30") for number, hour in enumerate(HOURS, 1)]
SIZE = 2  # people, days and places per passage

SENTENCES = (
    "On {day} {person} {activity} in {place} at {time}.",
    "{person} {activity} in {place} on {day} at {time}.",
)
# Kinds of questions and their wording. An activity or a time alone identifies the sentence; from
# person, place and date, it takes two.
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
    """N questions, in lists of the same length.

    Attributes:
        questions, passages: str each.
        answers: (begin, end) each: `passage[begin:end]` is the answer.
        candidates: for each question a list of such pairs, one per sentence: the spans of the
            requested kind, including the answer.
    """

    questions: list
    passages: list
    answers: list
    candidates: list


def calendar_questions(passages=4000, limit=None):
    """Makes training, validation and test sets of questions about synthetic calendars.

    A passage has four sentences about two people, two days and two places: who does what, where,
    on which day and at what time. Nine of fifteen questions name two of person, day and place. Each
    occurs in two sentences, and only both together identify one. The others name an activity or a
    time, which occurs in one sentence. Passages write "the third of May" and "half past six",
    questions "3/5" and "6:30". Each passage has four questions.

    Every call draws the same sets. No passage is in two sets.

    Args:
        passages: int, number for training. 250 others are the validation set, 250 the test set.
        limit: int, number of questions used per set. Defaults to `None`: all.

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
        draw = random.Random(1)  # one per set, so that sets do not depend on each other's size
        rows = [row for text, facts in drawn for row in _asked(draw, text, facts)]
        sets.append(Questions(*map(list, zip(*rows[:limit], strict=True))))
    return tuple(sets)


def calendar_summaries(passages=4000, limit=None):
    """Makes sets of synthetic calendars and summaries, which tell only who is where.

    The passages are the same as in `calendar_questions`. Each of the two people is in both places,
    in either order.

    Args:
        passages: int, number for training. 250 others are the validation set, 250 the test set.
        limit: int, number of examples used per set. Defaults to `None`: all.

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
    """Returns the answers of a word-overlap baseline.

    Takes the first sentence with most words in common with the question, and its words of the
    requested kind. The kind is given.

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
    """Draws passages with their facts for training, validation and test."""
    if passages < 1:
        raise ValueError(f"passages must be at least 1, got {passages}.")
    sets = []
    for seed, count in enumerate((passages, 250, 250)):
        draw = random.Random(seed)
        sets.append([_passage(draw) for _ in range(count)])
    return sets


def _summary(facts):
    """Lists people and their places, in the order of the passage."""
    places = {}
    for fact in facts:
        places.setdefault(fact["person"][0], []).append(fact["place"][0])
    return "; ".join(f"{person} in {' and '.join(found)}" for person, found in places.items())


def _passage(draw):
    """Draws a text; returns it with {kind: (words, begin, end)} for each sentence."""
    people, places = draw.sample(PEOPLE, SIZE), draw.sample(PLACES, SIZE)
    months, numbers = draw.sample(range(len(MONTHS)), 2), draw.sample(range(len(ORDINALS)), 2)
    days = draw.sample([(number, month) for number in numbers for month in months], SIZE)
    # Any two of person, day and place determine the third: a Latin square.
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
    """Yields four questions about a text, each with its answer and the candidates."""
    chosen = zip(draw.sample(facts, 4), draw.sample(QUESTIONS, 4), strict=True)
    for fact, (kind, question) in chosen:
        question = question.format(**{name: part[0] for name, part in fact.items()})
        yield question, text, fact[kind][1:], [other[kind][1:] for other in facts]
