"""The word error rate of recognised speech."""


def word_error_rate(texts, references):
    """Computes the number of wrong, extra or missing words per word of the references.

    It is the fewest insertions, deletions and replacements that turn each text into its reference,
    summed over all texts, divided by the references' words. White space separates words.

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
        raise ValueError("The references have no words.")
    return sum(_edits(*pair) for pair in pairs) / count


def _edits(found, wanted):
    """Computes the Levenshtein distance of two lists."""
    row = list(range(len(wanted) + 1))  # from no word of `found` to the first j of `wanted`
    for i, word in enumerate(found, start=1):
        previous, row = row, [i]
        for j, other in enumerate(wanted, start=1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (word != other)))
    return row[-1]
