"""The word error rate, by which recognised speech is measured."""


def word_error_rate(texts, references):
    """Words that are wrong, too many or missing, per word of the references.

    The fewest insertions, deletions and replacements that make each text its reference, summed over
    all of them, divided by the references' words. Words are what white space separates.

    Args:
        texts: list of N strings.
        references: list of N strings.

    Returns:
        Float, 0 if all is right; it may be above 1.

    Raises:
        ValueError: numbers of texts and references differ, or the references have no word.

    Example:

    >>> word_error_rate(["one two two", "four"], ["one two", "five"])
    0.6666666666666666
    """
    if len(texts) != len(references):
        raise ValueError(f"There are {len(texts)} texts, but {len(references)} references.")
    pairs = [(a.split(), b.split()) for a, b in zip(texts, references, strict=True)]
    count = sum(len(reference) for _, reference in pairs)
    if not count:
        raise ValueError("The references have no word to measure by.")
    return sum(_edits(*pair) for pair in pairs) / count


def _edits(found, wanted):
    """Levenshtein's distance of two lists."""
    row = list(range(len(wanted) + 1))  # from no word of `found` to the first j of `wanted`
    for i, word in enumerate(found, start=1):
        previous, row = row, [i]
        for j, other in enumerate(wanted, start=1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (word != other)))
    return row[-1]
