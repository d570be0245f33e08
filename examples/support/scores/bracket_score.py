"""Labelled brackets of trees: precision, recall and F1, by the rules of EVALB.

EVALB (Sekine and Collins, 1997) is the program behind published parsing scores. Its documented
rules, with the parameter file COLLINS.prm:

- a bracket is a label and the words that it spans; tags of words do not count;
- TOP is left out; ADVP and PRT are equal;
- punctuation is left out, and the words are counted without it, so that a comma in a phrase changes
  nothing. A phrase of punctuation alone does not count;
- a bracket that occurs twice over the same words must be found twice;
- sums are over the brackets of all sentences, so long sentences count more.

EVALB leaves out sentences whose words differ, and so sentences without a tree. Here they count,
with no bracket found.
"""

from collections import Counter

from support.sets.trees import TOP, TRACE, is_word, tagged_words

LEFT_OUT = {",", ":", "``", "''", ".", TRACE}  # tags
EQUAL = {"PRT": "ADVP"}


def brackets(tree, tags=None):
    """Counts the brackets of a tree.

    Args:
        tree: `Tree`.
        tags: list of str, the tags of its words. Defaults to `None`: the tree's own.

    Returns:
        `Counter` of (label, begin, end): words from `begin` up to, not including, `end`, counted
        without punctuation.

    Example:

    >>> tree = read_trees("(S (NP (NNP Anna)) (, ,) (VP (VBZ sleeps)) (. .))")[0]
    >>> sorted(brackets(tree))
    [('NP', 0, 1), ('S', 0, 2), ('VP', 1, 2)]
    """
    tags = iter([tag for _, tag in tagged_words(tree)] if tags is None else tags)
    found = Counter()

    def end_of(node, begin):
        if is_word(node):
            return begin + (next(tags) not in LEFT_OUT)
        end = begin
        for child in node.children:
            end = end_of(child, end)
        if end > begin and node.label != TOP:
            found[EQUAL.get(node.label, node.label), begin, end] += 1
        return end

    end_of(tree, 0)
    return found


def bracket_score(gold, predicted):
    """Compares predicted trees with gold trees.

    Args:
        gold: sequence of N `Tree`.
        predicted: sequence of N `Tree`, over the same words; or `None` where there is no tree.

    Returns:
        Dict: "precision", "recall" and "f1" over the brackets of all sentences, "complete", the
        share of sentences with all brackets right, and "trees", the share of sentences with a tree.

    Raises:
        ValueError: there are no sentences, the numbers of trees differ, or a tree has another
            number of words than its sentence.

    Example:

    >>> trees = read_trees("(S (NP (NNP Anna)) (VP (VBZ sleeps)))")
    >>> bracket_score(trees, [None])["recall"], bracket_score(trees, trees)["f1"]
    (0.0, 1.0)
    """
    if not gold or len(gold) != len(predicted):
        raise ValueError(
            "Pass one predicted tree, or None, for each sentence, and at least one sentence. "
            f"There are {len(gold)} sentences and {len(predicted)} trees."
        )
    wanted, made, right, complete = 0, 0, 0, 0
    for number, (truth, tree) in enumerate(zip(gold, predicted, strict=True)):
        true = brackets(truth)
        found = Counter() if tree is None else _found(truth, tree, number)
        wanted, made = wanted + true.total(), made + found.total()
        right += (true & found).total()
        complete += tree is not None and true == found
    return {
        "precision": right / made if made else 0.0,
        "recall": right / wanted if wanted else 0.0,
        "f1": 2 * right / (wanted + made) if wanted + made else 0.0,
        "complete": complete / len(gold),
        "trees": sum(tree is not None for tree in predicted) / len(gold),
    }


def _found(truth, tree, number):
    """Counts the brackets of a predicted tree. The gold tags identify punctuation."""
    tags = [tag for _, tag in tagged_words(truth)]
    if len(tagged_words(tree)) != len(tags):
        raise ValueError(
            f"sentence {number} has {len(tags)} words, but its tree has {len(tagged_words(tree))}: "
            f"{tree}. Pass None instead of this tree."
        )
    return brackets(tree, tags)
