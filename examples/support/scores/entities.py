"""Precision, recall and F1 of entities, from tags of the form B-TYPE, I-TYPE and O."""

from collections import Counter


def entities(tags):
    """Returns the entities of a sentence.

    An entity begins at "B-TYPE", or at "I-TYPE" that continues no entity of this type, and ends
    with its last "I-TYPE". These are the rules of CoNLL 2000's script and of seqeval.

    Args:
        tags: list of str, one for each word.

    Returns:
        List of (type, first word, word after the last).

    Raises:
        ValueError: a tag has another form.

    Example:

    >>> entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    """
    found, kind, start = [], None, 0
    for place, tag in enumerate([*tags, "O"]):
        prefix, dash, name = tag.partition("-")
        if tag != "O" and not (prefix in ("B", "I") and dash and name):
            raise ValueError(f"tag {place} is {tag!r}; expected O, B-TYPE or I-TYPE.")
        if kind is not None and (prefix != "I" or name != kind):
            found.append((kind, start, place))
            kind = None
        if tag != "O" and kind is None:
            kind, start = name, place
    return found


def entity_scores(found, true):
    """Computes F1, precision and recall over all entities of all sentences ("micro").

    An entity is right if its type, first word and last word are right.

    Args:
        found: list of N lists of tags, one for each word.
        true: list of N lists of tags, likewise.

    Returns:
        Dict with "f1", "precision" and "recall"; 0 instead of a division by 0.

    Raises:
        ValueError: numbers of sentences or words differ, or a tag has another form.

    Example:

    >>> entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]])["recall"]
    1.0
    """
    if list(map(len, found)) != list(map(len, true)):
        raise ValueError("found and true differ in their number of sentences or words.")
    right = count = expected = 0
    for tags, others in zip(found, true, strict=True):
        some, wanted = entities(tags), entities(others)
        right += len({*some} & {*wanted})
        count, expected = count + len(some), expected + len(wanted)
    precision, recall = right / max(count, 1), right / max(expected, 1)
    f1 = 2 * right / max(count + expected, 1)
    return {"f1": f1, "precision": precision, "recall": recall}


def entity_outcomes(found, true):
    """Counts the outcomes of the true entities of each type.

    Args:
        found, true: as in `entity_scores`.

    Returns:
        Dict from each type to a `Counter` of "right", "other type" (the same words), "other words"
        (an entity of the type overlaps), and "missed".

    Example:

    >>> entity_outcomes([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "B-ORG"]])["ORG"]
    Counter({'other type': 1})
    """
    outcomes = {}
    for tags, others in zip(found, true, strict=True):
        some = entities(tags)
        words = {(start, end) for _, start, end in some}
        for kind, start, end in entities(others):
            near = [one for one in some if one[0] == kind and one[1] < end and start < one[2]]
            if (kind, start, end) in some:
                outcome = "right"
            elif (start, end) in words:
                outcome = "other type"
            else:
                outcome = "other words" if near else "missed"
            outcomes.setdefault(kind, Counter())[outcome] += 1
    return outcomes
