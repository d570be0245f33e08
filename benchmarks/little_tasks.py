"""Small tasks that code generates: pairs of short strings.

`REPORTED` are the tasks of the table. The recipes were chosen on the tasks of `CHOICE`.
"""

import datetime
import random

from num2words import num2words

ROMAN = {1000: "m", 900: "cm", 500: "d", 400: "cd", 100: "c", 90: "xc", 50: "l", 40: "xl"}
ROMAN |= {10: "x", 9: "ix", 5: "v", 4: "iv", 1: "i"}
VOWELS = "aeıioöuü"


def romans(draw, count):
    """Roman numerals below 4,000, and their words."""
    pairs = []
    for number in draw.sample(range(1, 4000), count):
        rest, numeral = number, ""
        for size, letters in ROMAN.items():
            numeral += letters * (rest // size)
            rest %= size
        pairs.append((numeral, num2words(number)))
    return pairs


def dates(draw, count):
    """Dates of 1900 to 2099 as people write them, and their ISO form."""
    first = datetime.date(1900, 1, 1)
    forms = ("%d %B %Y", "%B %d, %Y", "%d. %b '%y", "%m/%d/%y", "the {} of %B %Y", "%b {}, %Y")
    texts = {}
    while len(texts) < count:
        date = first + datetime.timedelta(draw.randrange(365 * 200))
        form = draw.choice(forms)
        if "%y" in form and not 1950 <= date.year < 2050:
            continue  # two digits name one of the nearest hundred years
        day = num2words(date.day, to="ordinal_num")
        texts[date.strftime(form.format(day)).lower()] = date.isoformat()
    return list(texts.items())


def suffixes(draw, count):
    """Invented stems with Turkish grammar, and their inflected forms.

    Vowels agree with the last vowel of the stem, and consonants with their neighbours.
    """
    pairs = {}
    while len(pairs) < count:
        stem = "".join(
            draw.choice("bcçdgkmnprsştyz") + draw.choice(VOWELS) for _ in range(draw.choice((1, 2)))
        ) + draw.choice(("", *"kmnprstçl"))
        plural, owner = draw.choice(("", "pl")), draw.choice(("", "my"))
        case = draw.choice(("", "acc", "dat", "loc", "abl"))
        word = stem
        if plural:
            word += "l" + _two(word) + "r"
        if owner:
            word = _soft(word, stem) + ("" if _ends_in_vowel(word) else _four(word)) + "m"
        if case in ("acc", "dat"):
            soft = _soft(word, stem) + ("y" if _ends_in_vowel(word) else "")
            word = soft + (_four(word) if case == "acc" else _two(word))
        elif case:
            word += ("t" if word[-1] in "çkpst" else "d") + _two(word) + "n" * (case == "abl")
        pairs[" ".join(filter(None, (stem, plural, owner, case)))] = word
    return list(pairs.items())


def _last_vowel(word):
    return [letter for letter in word if letter in VOWELS][-1]


def _two(word):
    return "a" if _last_vowel(word) in "aıou" else "e"


def _four(word):
    return dict(zip("aıeioöuü", "ııiiuüuü", strict=True))[_last_vowel(word)]


def _ends_in_vowel(word):
    return word[-1] in VOWELS


def _soft(word, stem):
    """Softens the last consonant of a stem with several vowels, before a vowel."""
    if word != stem or sum(letter in VOWELS for letter in stem) < 2:
        return word
    return word[:-1] + {"k": "ğ", "p": "b", "t": "d", "ç": "c"}.get(word[-1], word[-1])


def reversals(draw, count):
    """Random strings, and the same backwards."""
    words = set()
    while len(words) < count:
        words.add("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(4, 12))))
    return [(word, word[::-1]) for word in sorted(words)]


def sortings(draw, count):
    """Random strings of few letters, and their letters in order."""
    words = set()
    while len(words) < count:
        words.add("".join(draw.choices("abcdefghijkl", k=draw.randint(4, 9))))
    return [(word, "".join(sorted(word))) for word in sorted(words)]


REPORTED = {"romans": romans, "dates": dates, "suffixes": suffixes}
CHOICE = {"reversals": reversals, "sortings": sortings}


def pairs(task, train=3000, test=599):
    """Returns sources and targets for training, and the same for the test.

    Every call returns the same pairs.
    """
    found = (REPORTED | CHOICE)[task](random.Random(0), train + test)
    random.Random(1).shuffle(found)
    return [list(zip(*part, strict=True)) for part in (found[:train], found[train:])]
