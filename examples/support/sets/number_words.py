"""Number words in two languages: parallel text that needs no download."""

import random

from support.sets.text_sets import TextSets

LARGEST = 1_000_000


def number_words(source="en", target="de", count=20_000, limit=None):
    """Makes sets of numbers below a million in words of two languages, without duplicates.

    All numbers below 1,000 are among them. Every call draws the same numbers: 500 for validation,
    500 for the test, and the others for training.

    Args:
        source, target: str, language codes of num2words, such as "en", "de" or "pt_BR".
        count: int, total size of the sets, from 2,000 to a million.
        limit: int, number of pairs used per set. Defaults to `None`: all.

    Returns:
        `TextSets` with one test set, "test".

    Raises:
        ValueError: an unknown language, or a `count` out of range.
        ImportError: num2words is not installed.

    Example:

    >>> sources, targets = number_words().valid
    >>> len(sources)
    500
    """
    from num2words import CONVERTER_CLASSES, num2words

    languages = source, target
    if not CONVERTER_CLASSES.keys() >= set(languages):
        raise ValueError(
            f"num2words has {sorted(CONVERTER_CLASSES)}, got {' and '.join(languages)}."
        )
    if not 2000 <= count <= LARGEST:
        raise ValueError(f"count must lie in [2000, {LARGEST}], got {count}.")
    draw = random.Random(0)
    numbers = [*range(1000), *draw.sample(range(1000, LARGEST), count - 1000)]
    draw.shuffle(numbers)

    def words(chosen):
        return [[num2words(n, lang=language) for n in chosen[:limit]] for language in languages]

    valid, test, train = numbers[:500], numbers[500:1000], numbers[1000:]
    return TextSets(words(train), words(valid), {"test": words(test)})
