"""Tagged sentences, some with labels: public sets, and sets of small grammars.

Tags have the form B-TYPE, I-TYPE and O: the first word of an entity, its other words, the rest.
"""

import gzip
import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple


class Sentences(NamedTuple):
    """Sentences of one set.

    Attributes:
        words: list of N lists of str.
        tags: list of N lists of str, one for each word.
        labels: list of N str, such as intents; empty if the set has none.
    """

    words: list[list[str]]
    tags: list[list[str]]
    labels: list[str]


def read_requests(folder, name, limit=None):
    """Reads spoken requests with slots and an intent each, from SNIPS or ATIS.

    Args:
        folder: folder of `NAME.train.gz`, `NAME.valid.gz` and `NAME.test.gz`: each line has
            `WORD:TAG` for each word, then ` <=> ` and the intent.
        name: str, "snips" or "atis".
        limit: int, number of requests used per set. Defaults to `None`: all.

    Returns:
        Three `Sentences`, for training, validation and test.

    Raises:
        ValueError: a line has another form.
        FileNotFoundError: a file is missing.

    Example:

    >>> *_, test = read_requests("slots", "snips")  # doctest: +SKIP
    >>> test.labels[0]  # doctest: +SKIP
    'AddToPlaylist'
    """
    sets = []
    for part in ("train", "valid", "test"):
        path, rows = Path(folder, f"{name}.{part}.gz"), []
        for number, line in enumerate(_lines(path)[:limit], 1):
            text, arrow, intent = line.partition(" <=> ")
            pairs = [token.rpartition(":") for token in text.split()]  # SNIPS has empty words
            if not arrow or not intent.strip() or not all(tag for *_, tag in pairs):
                raise ValueError(
                    f"{path}, line {number}: expected 'WORD:TAG ... <=> INTENT', got {line[:60]!r}."
                )
            words, _, tags = map(list, zip(*pairs, strict=True))
            rows.append((words, tags, intent.strip()))
        sets.append(Sentences(*map(list, zip(*rows, strict=True))))
    return sets


def read_entities(folder, languages=("en", "de"), limit=None):
    """Reads WikiANN: named entities of Wikipedia (Pan et al. 2017, split of Rahimi et al. 2019).

    Args:
        folder: folder of `wikiann.LANGUAGE.train.gz`, `.dev.gz` and `.test.gz`: one line per word,
            `LANGUAGE:WORD`, a tab and the tag; an empty line after each sentence.
        languages: sequence of str.
        limit: int, number of sentences used per language and set. Defaults to `None`: all.

    Returns:
        Dict from "train", "valid" and "test" to a dict from language to `Sentences`.

    Raises:
        ValueError: a line has another form.
        FileNotFoundError: a file is missing.
    """
    parts = {"train": "train", "valid": "dev", "test": "test"}
    return {
        part: {
            language: _read_conll(Path(folder, f"wikiann.{language}.{name}.gz"), language, limit)
            for language in languages
        }
        for part, name in parts.items()
    }


def _read_conll(path, language, limit):
    words, tags = [[]], [[]]
    for number, line in enumerate([*_lines(path), ""], 1):
        if not line.strip():
            if len(words) == limit:
                break
            words.append([])
            tags.append([])
            continue
        word, tab, tag = line.removeprefix(f"{language}:").partition("\t")
        if not (word and tab and tag):
            raise ValueError(f"{path}, line {number}: expected a word, TAB, a tag: {line[:60]!r}.")
        words[-1].append(word)
        tags[-1].append(tag)
    return Sentences([one for one in words if one], [one for one in tags if one], [])


def _lines(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


PLACES = "Rome Oslo Lima Cairo Vienna Dublin San#Marino New#York Santa#Cruz Saint#Louis".split()
PEOPLE = "Anna#Berg Otto Mia#Lind Paul#Stern Eva Jonas#Hall Nina#Roth Max".split()
DAYS = "Monday Tuesday Friday Sunday#morning Saturday#night tomorrow".split()
SONGS = "Blue#River Summer Old#Friends Rain#in#Oslo Monday#Blues Anna Dancing#Stars".split()
REQUESTS = {
    "weather": [
        "what is the weather in {place} {day}",
        "will it rain {day} in {place}",
        "will it rain in {place} or {place} {day}",
    ],
    "music": [
        "play {song} by {artist} {day}",
        "i want to hear {artist}",
        "put on {song}",
        "play something by {artist} {day}",
    ],
    "book": [
        "book a table in {place} for {guest} {day}",
        "reserve a table for {guest} {day}",
        "i need a table in {place} with {guest}",
    ],
    "travel": [
        "show trains from {place} to {place}",
        "i want to go to {place} {day} with {guest}",
        "when do trains to {place} leave {day}",
    ],
}
FILLERS = {"place": PLACES, "day": DAYS, "song": SONGS, "artist": PEOPLE, "guest": PEOPLE}


def made_requests(limit=None):
    """Draws requests of a small grammar: weather, music, tables, trains. All are different.

    Args:
        limit: int, number of requests used per set. Defaults to `None`: all, 1,000 for training
            and 100 each in the other sets.

    Returns:
        Three `Sentences`, the same in every call.
    """
    draw, rows = random.Random(0), {}
    while len(rows) < 1200:
        intent = draw.choice(list(REQUESTS))
        words, tags = _filled(draw, draw.choice(REQUESTS[intent]), FILLERS)
        rows.setdefault(" ".join(words), (words, tags, intent))
    rows = list(rows.values())
    parts = rows[:1000], rows[1000:1100], rows[1100:]
    return [Sentences(*map(list, zip(*part[:limit], strict=True))) for part in parts]


NAMES = {
    "PER": "Anna#Berg Otto#Lind Mia#Stern Paul#Roth Eva#Hall Jonas#Winter Max#Vogel".split(),
    "LOC": "Rome Oslo Lima Vienna Hamburg New#York San#Marino Bad#Ems Winter#Hill".split(),
    "ORG": "Nordbank Lang#&#Co Roth#Records Hamburg#Motors Oslo#Museum Stern#Verlag".split(),
}
SENTENCES = {
    "en": [
        "{PER} was born in {LOC}",
        "{PER} works for {ORG} in {LOC}",
        "{ORG} was founded by {PER}",
        "the river flows through {LOC} and {LOC}",
        "{PER} met {PER} in {LOC}",
        "the head office of {ORG} is in {LOC}",
    ],
    "de": [
        "{PER} wurde in {LOC} geboren",
        "{PER} arbeitet für {ORG} in {LOC}",
        "{ORG} wurde von {PER} gegründet",
        "der Fluss fließt durch {LOC} und {LOC}",
        "{PER} traf {PER} in {LOC}",
        "der Sitz von {ORG} liegt in {LOC}",
    ],
}


def made_entities(limit=None):
    """Draws English and German sentences of a small grammar, with persons, places, organizations.

    Some names share a word, such as "Winter" or "Stern". No sentence is in two sets.

    Args:
        limit: int, number of sentences used per language and set. Defaults to `None`: all, 500 for
            training and 50 each in the other sets.

    Returns:
        As `read_entities`, the same in every call.
    """
    sets = {"train": {}, "valid": {}, "test": {}}
    for language, templates in SENTENCES.items():
        draw, rows = random.Random(language), {}
        while len(rows) < 600:
            words, tags = _filled(draw, draw.choice(templates), NAMES)
            rows.setdefault(" ".join(words), (words, tags))
        rows = list(rows.values())
        parts = rows[:500], rows[500:550], rows[550:]
        for name, part in zip(sets, parts, strict=True):
            sets[name][language] = Sentences(*map(list, zip(*part[:limit], strict=True)), [])
    return sets


def _filled(draw, template, fillers):
    """Replaces the words in braces of a template by names; returns words and tags."""
    words, tags = [], []
    for word in template.split():
        kind = word.strip("{}")
        if kind == word:
            words.append(word)
            tags.append("O")
            continue
        filler = draw.choice(fillers[kind]).split("#")
        words += filler
        tags += [f"B-{kind}", *[f"I-{kind}"] * (len(filler) - 1)]
    return words, tags


def usual_tags(words, tags, others):
    """Returns the most frequent tag of each word, and of all words for an unknown one.

    Args:
        words, tags: lists of N lists of str, the training sentences.
        others: list of M lists of str, the words of other sentences.

    Returns:
        List of M lists of tags.

    Example:

    >>> usual_tags([["a", "hat"], ["a", "cap"]], [["D", "N"], ["D", "N"]], [["a", "hut"]])
    [['D', 'D']]
    """
    counts, all_tags = {}, Counter()
    for sentence, marks in zip(words, tags, strict=True):
        all_tags.update(marks)
        for word, tag in zip(sentence, marks, strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    usual = {word: found.most_common(1)[0][0] for word, found in counts.items()}
    (commonest, _), *_ = all_tags.most_common(1)
    return [[usual.get(word, commonest) for word in sentence] for sentence in others]
